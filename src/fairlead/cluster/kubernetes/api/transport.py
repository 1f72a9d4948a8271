"""Begins every connection to an API server: TLS, the way through a proxy, and who we are."""

import ssl
import tempfile
from urllib.request import getproxies, proxy_bypass

from fairlead.cluster.kubernetes.api.config import Access
from fairlead.errors import ClusterError


def identity_headers(access: Access) -> list[tuple[str, str]]:
    """Headers that say who asks, and for whom.

    Raises:
        ClusterError: The credentials cannot be had.
    """
    authorization = access.credentials.authorization()
    return [*access.impersonate, *([] if authorization is None else [("Authorization", authorization)])]


def tls_context(access: Access, certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext:
    """Set up what the server has to prove, and what we prove to it.

    Args:
        certificate: PEM of ours and of its key; None for none.

    Raises:
        ClusterError: The certificate is not usable.
    """
    context = ssl.create_default_context(cadata=access.ca.decode() if access.ca else None)
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        # The ssl module reads keys from files only; this one is ours alone and gone at once.
        with tempfile.NamedTemporaryFile(prefix="fairlead-") as file:
            file.write(certificate[0] + b"\n" + certificate[1])
            file.flush()
            try:
                context.load_cert_chain(file.name)
            except ssl.SSLError as error:
                raise ClusterError(
                    f"Context {access.context!r}: its client certificate is not usable: {error}"
                ) from error
    return context


def proxy_of_environment(server: str) -> str | None:
    """The proxy that the environment names for this server."""
    scheme, _, rest = server.partition("://")
    host = rest.partition("/")[0]
    name = host.rpartition(":")[0] or host
    return None if proxy_bypass(name.strip("[]")) else getproxies().get(scheme)
