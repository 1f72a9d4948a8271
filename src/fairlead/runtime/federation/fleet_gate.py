"""Lets sites of other clusters reach the server of a federation: ``python -m fairlead.runtime.federation.fleet_gate``.

Flower's superlink serves everything at one port, also the calls by which anybody may register sites and run apps. So it
listens on loopback, and this passes on the calls of supernodes alone, if a key of an enrolled site has signed them. It
ends the TLS of the sites, with the certificate of the server.

See decision 278.
"""

from __future__ import annotations

import binascii
import sys
from base64 import b64decode
from pathlib import Path

from fairlead.runtime.federation.identities import CERTIFICATE, KEY
from fairlead.runtime.federation.settings import CA, ENROLLED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import Any

    import httpx
    from starlette.requests import Request
    from starlette.responses import Response

CALLS = "/v1/fleet/"
LONGEST_CALL_BYTES = 2 << 30
MOST_CONNECTIONS = 2_000
TIMEOUT_S = 300.0
PER_HOP = frozenset((b"host", b"connection", b"transfer-encoding", b"content-length", b"keep-alive", b"upgrade"))
"""Headers that belong to one connection."""


class EnrolledKeys:
    """The public keys of the enrolled sites, read anew when one is added."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_at = 0
        self._keys: frozenset[bytes] = frozenset()

    def have_signed(self, headers: Mapping[str, str]) -> bool:
        """Return whether one of them has signed a call, as Flower's supernodes sign; Flower checks the time."""
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            signed = headers[TIMESTAMP_HEADER].encode("ascii")
        except (KeyError, UnicodeError, binascii.Error):
            return False
        return key in self._current() and bool(verify_signature(bytes_to_public_key(key), signed, signature))

    def _current(self) -> frozenset[bytes]:
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        changed_at = self._directory.stat().st_mtime_ns
        if changed_at != self._read_at:
            paths = self._directory.glob("*.pub")
            self._keys = frozenset(public_key_to_bytes(load_ssh_public_key(path.read_bytes())) for path in paths)
            self._read_at = changed_at
        return self._keys


def make_gate(superlink: str, directory: Path) -> Any:
    """Return the ASGI application that passes calls of supernodes on.

    Args:
        superlink: URL of the superlink on loopback.
        directory: That of the server's files.
    """
    import ssl

    import httpx
    from starlette.applications import Starlette
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    context = ssl.create_default_context(cafile=str(directory / CA))
    limits = httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=100)
    client = httpx.AsyncClient(base_url=superlink, verify=context, timeout=TIMEOUT_S, limits=limits, trust_env=False)
    keys = EnrolledKeys(directory / ENROLLED)

    async def forward(request: Request) -> Response:
        name = request.path_params["call"]
        if not name.replace("-", "").isalpha():
            return Response(status_code=404)
        if not keys.have_signed(request.headers):
            return Response(status_code=401)
        headers = [(name, value) for name, value in request.headers.raw if name.lower() not in PER_HOP]
        sent = client.build_request("POST", f"{CALLS}{name}", headers=headers, content=_body(request))
        try:
            answer = await client.send(sent, stream=True)
        except (httpx.HTTPError, ValueError):
            return Response(status_code=502)
        response = StreamingResponse(_relayed(answer), status_code=answer.status_code)
        response.raw_headers = [(name, value) for name, value in answer.headers.raw if name.lower() not in PER_HOP]
        return response

    return Starlette(routes=[Route(f"{CALLS}{{call}}", forward, methods=["POST"])])


async def _body(request: Request) -> AsyncIterator[bytes]:
    total = 0
    async for part in request.stream():
        total += len(part)
        if total > LONGEST_CALL_BYTES:
            raise ValueError(f"a call has more than {LONGEST_CALL_BYTES} bytes")
        yield part


async def _relayed(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()


def main() -> None:
    """Serve until it is stopped: ``HOST PORT SUPERLINK_PORT DIRECTORY``, the last of which has the server's files."""
    import uvicorn

    host, port, superlink_port, directory = sys.argv[1:]
    place = Path(directory)
    uvicorn.run(
        make_gate(f"https://127.0.0.1:{int(superlink_port)}", place), host=host, port=int(port),
        ssl_certfile=str(place / CERTIFICATE), ssl_keyfile=str(place / KEY), log_level="warning", access_log=False,
        server_header=False, timeout_keep_alive=60,
    )  # fmt: skip


if __name__ == "__main__":
    main()
