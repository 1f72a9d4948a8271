"""A slow S3 server on loopback for benchmarks: objects made from their names, a latency, and one bandwidth for all.

    python -m benchmarks.slow_store --objects 10000 --latency-ms 5 --mb-s 100 [--tls FILE]

It prints its port, and serves the bucket ``slow`` without looking at signatures. `/stats` is what it sent.
With ``--tls`` it speaks TLS, and writes the certificate of its authority to a file first.
"""

import argparse
import asyncio
import hashlib
import json
import random
import ssl
import time
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "slow"
PAGE = 1000
NUM_FOLDERS = 20
_RANDOM = random.Random(7).randbytes(1 << 20)
ETAG = '"0123456789abcdef0123456789abcdef"'


def sizes(num_objects: int) -> dict[str, int]:
    """Return the sizes in bytes of the objects by name: 10 to 100 kB, in twenty folders, as one class each."""
    rng = random.Random(1)
    per_folder = -(-num_objects // NUM_FOLDERS)
    names = (f"train/{number // per_folder:02}/{number:07}.jpg" for number in range(num_objects))
    return {name: rng.randint(10_000, 100_000) for name in names}


def content(key: str, size: int) -> bytes:
    """Return the bytes of an object, which differ from those of all others."""
    start = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big") % (len(_RANDOM) - size)
    return _RANDOM[start : start + size]


class Server:
    """The server; times are of the event loop."""

    def __init__(self, num_objects: int, latency_s: float, bytes_per_s: float) -> None:
        self._sizes = sizes(num_objects)
        self._keys = sorted(self._sizes)
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._stats = {"requests": 0, "bytes": 0}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.split(" ", 2)
                status, body = self._answer(target, head)
                if not target.startswith("/stats"):
                    await self._wait(len(body))
                name = {200: "OK", 206: "Partial Content", 404: "Not Found", 412: "Precondition Failed"}[status]
                writer.write(
                    f"HTTP/1.1 {status} {name}\r\nContent-Length: {len(body)}\r\nETag: {ETAG}\r\n"
                    "Last-Modified: Sat, 28 Nov 2026 10:00:00 GMT\r\n\r\n".encode()
                )
                if method != "HEAD":
                    writer.write(body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _wait(self, num_bytes: int) -> None:
        now = time.monotonic()
        self._stats["requests"] += 1
        self._stats["bytes"] += num_bytes
        self._free_at = max(now, self._free_at) + num_bytes / self._bytes_per_s
        await asyncio.sleep(max(now + self._latency_s, self._free_at) - now)

    def _answer(self, target: str, head: str) -> tuple[int, bytes]:
        parts = urlsplit(target)
        if parts.path == "/stats":
            return 200, json.dumps(self._stats).encode()
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").strip("/")
        if not key:
            return 200, self._listed(parse_qs(parts.query))
        size = self._sizes.get(key)
        if size is None:
            return 404, b""
        body = content(key, size)
        for line in head.split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "if-match" and value != ETAG:
                return 412, b""
            if name.lower() == "range":
                first, _, last = value.removeprefix("bytes=").partition("-")
                return 206, body[int(first) : int(last) + 1]
        return 200, body

    def _listed(self, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", [""])[0]
        keys = [key for key in self._keys if key.startswith(prefix) and key > after]
        folders: list[str] = []
        if "delimiter" in query:
            inner = {key[len(prefix) :].split("/")[0] for key in keys if "/" in key[len(prefix) :]}
            folders = sorted(f"{prefix}{name}/" for name in inner)
            keys = [key for key in keys if "/" not in key[len(prefix) :]]
        page = keys[:PAGE]
        text = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-11-28T10:00:00.000Z</LastModified>"
            f"<ETag>&quot;{ETAG[1:-1]}&quot;</ETag><Size>{self._sizes[key]}</Size></Contents>"
            for key in page
        )
        text += "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)
        is_cut = len(keys) > PAGE
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if is_cut else ""
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>{token}{text}</ListBucketResult>"
        ).encode()


async def _main(args: argparse.Namespace) -> None:
    server = Server(args.objects, args.latency_ms / 1000, args.mb_s * 1e6)
    context = None
    if args.tls is not None:
        import trustme

        authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        authority.cert_pem.write_to_path(args.tls)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=512, ssl=context)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--latency-ms", type=float, default=5)
    parser.add_argument("--mb-s", type=float, default=100)
    parser.add_argument("--tls", metavar="FILE")
    asyncio.run(_main(parser.parse_args()))
