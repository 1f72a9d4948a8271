"""Webhooks of a controller beside a control plane: their certificate, and how the API server finds them on loopback."""

import base64
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trustme

from tests.kubernetes.testcluster.control_plane import ControlPlane

REGISTERED = "/apis/admissionregistration.k8s.io/v1"
TIMEOUT_S = 10
"""The API server's own default, as a busy machine needs longer than some controllers ask for."""


def certified(home: Path, *names: str) -> str:
    """Put a certificate into a directory, with the authority that vouches for it, which is returned in base64.

    Args:
        names: Those of the server besides 127.0.0.1.
    """
    home.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(home / "ca.crt"))
    certificate = authority.issue_cert("127.0.0.1", *names)
    certificate.private_key_pem.write_to_path(str(home / "tls.key"))
    (home / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    return base64.b64encode(authority.cert_pem.bytes()).decode()


@contextmanager
def registered(
    plane: ControlPlane, configurations: Iterable[dict[str, Any]], port: int, authority: str
) -> Iterator[None]:
    """Webhooks that the API server asks by a port of loopback, each at the path that it has in the cluster.

    They are taken away after that, as nothing would be let in once they do not answer.
    """
    places = []
    for each in configurations:
        for hook in each["webhooks"]:
            client = hook["clientConfig"]
            path = client["service"]["path"] if "service" in client else urlsplit(client["url"]).path
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
            hook["timeoutSeconds"] = TIMEOUT_S
        place = f"{REGISTERED}/{each['kind'].lower()}s/{each['metadata']['name']}"
        plane.request("PATCH", f"{place}?fieldManager=test&force=true", each, kind="apply-patch+yaml")
        places.append(place)
    try:
        yield
    finally:
        for place in places:
            plane.request("DELETE", place)
