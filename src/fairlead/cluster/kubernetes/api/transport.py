"""Sets up connections to an API server: TLS, proxies and identity."""

import ssl
import tempfile
from urllib.request import getproxies, proxy_bypass

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.errors import ClusterError


def identity_headers(access: ClusterAccess) -> list[tuple[str, str]]:
    """Return the headers for authentication and impersonation.

    Raises:
        ClusterError: The credentials cannot be obtained.
    """
    authorization = access.credentials.authorization()
    return [*access.impersonate, *([] if authorization is None else [("Authorization", authorization)])]


def tls_context(access: ClusterAccess, certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext:
    """Return a TLS context that verifies the server and has the client's certificate.

    Args:
        certificate: PEM of the client's certificate and of its key; None for none.

    Raises:
        ClusterError: The certificate cannot be used.
    """
    context = ssl.create_default_context(cadata=access.ca.decode() if access.ca else None)
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        # The ssl module reads keys only from files; this one is private and removed at once.
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
    """Return the proxy that the environment names for this server, or None."""
    scheme, _, rest = server.partition("://")
    host = rest.partition("/")[0]
    name = host.rpartition(":")[0] or host
    return None if proxy_bypass(name.strip("[]")) else getproxies().get(scheme)
