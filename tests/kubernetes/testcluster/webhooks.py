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


def register(plane: ControlPlane, configurations: Iterable[dict[str, Any]], port: int, authority: str) -> list[str]:
    """Have the API server ask webhooks by a port of loopback, each at the path that it has in the cluster.

    Returns:
        The paths of the configurations.
    """
    paths = []
    for each in configurations:
        for hook in each["webhooks"]:
            client = hook["clientConfig"]
            path = client["service"]["path"] if "service" in client else urlsplit(client["url"]).path
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
            hook["timeoutSeconds"] = TIMEOUT_S
        place = f"{REGISTERED}/{each['kind'].lower()}s/{each['metadata']['name']}"
        plane.request("PATCH", f"{place}?fieldManager=test&force=true", each, kind="apply-patch+yaml")
        paths.append(place)
    return paths


def withdraw(plane: ControlPlane, paths: Iterable[str]) -> None:
    """Take configurations away: nothing would be let in once their webhooks do not answer."""
    for path in paths:
        plane.request("DELETE", path)


@contextmanager
def registered(
    plane: ControlPlane, configurations: Iterable[dict[str, Any]], port: int, authority: str
) -> Iterator[None]:
    """Webhooks that serve meanwhile."""
    paths = register(plane, configurations, port, authority)
    try:
        yield
    finally:
        withdraw(plane, paths)
