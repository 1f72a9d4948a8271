"""Answers a client that begins with HTTP/2: one complete response of that protocol, which says to use HTTP/1.1.

A client that sends HTTP/2 unasked (prior knowledge, RFC 9113, 3.3) reads nothing else: it shows an answer of HTTP/1.1
as none at all. Frames are skipped up to the head of the first request, as a response before it would be an error.
"""

import struct

from fairlead.gateway.byte_stream import ByteStream

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
_REST = b"SM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _GOAWAY = 0x0, 0x1, 0x4, 0x7
_END_STREAM, _END_HEADERS = 0x1, 0x4
_LONGEST_FRAME = 16_384
_MOST_FRAMES = 16
_TEXT = b'{"error": "HTTP/2 is not served here: use HTTP/1.1"}\n'
# HPACK (RFC 7541): `:status` and `content-type` by their places in the static table, with values of their own.
_HEAD = b"\x08\x03505" + b"\x0f\x10\x10application/json"


async def refuse(stream: ByteStream) -> None:
    """Answer the first request after a preface with 505; only close if none comes."""
    if await _take(stream, len(_REST)) != _REST:
        return
    for _ in range(_MOST_FRAMES):
        head = await _take(stream, 9)
        length, kind = int.from_bytes(head[:3], "big"), head[3:4]
        if len(head) < 9 or length > _LONGEST_FRAME:
            return
        stream_id = head[5:9]
        if kind == bytes((_HEADERS,)):
            answer = _frame(_HEADERS, _END_HEADERS, stream_id, _HEAD) + _frame(_DATA, _END_STREAM, stream_id, _TEXT)
            last = stream_id + struct.pack(">I", 0)
            stream.write(_frame(_SETTINGS, 0, bytes(4), b"") + answer + _frame(_GOAWAY, 0, bytes(4), last))
            return
        await _take(stream, length)


async def _take(stream: ByteStream, number: int) -> bytes:
    """Take so many bytes, or fewer at the end."""
    while len(stream.buffer) < number and await stream.more():
        pass
    return stream.take(number)


def _frame(kind: int, flags: int, stream_id: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream_id + content
