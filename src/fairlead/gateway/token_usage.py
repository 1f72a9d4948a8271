"""Counts the tokens of a response as it passes: by its `usage` in the format of OpenAI's API, or by an estimate."""

import re

from fairlead.gateway.messages import ResponseHead

BYTES_PER_TOKEN = 4
"""Approximate bytes per token of English text, for responses that report no tokens."""
KEPT_BYTES = 4096
"""Bytes at the beginning and at the end of a response that are searched for `usage`."""
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*([0-9]{1,9})(?![0-9])')
_OUTPUT = re.compile(rb'"completion_tokens"\s*:\s*([0-9]{1,9})(?![0-9])')
# The event that only gives the role has no token.
_EMPTY = re.compile(rb'"content"\s*:\s*(?:""|null)')
_TOTAL = re.compile(rb'"total_tokens"\s*:\s*([0-9]{1,9})(?![0-9])')
_EVENT = b"\ndata:"


class TokenUsage:
    """The tokens of one response. Output of a model cannot imitate `usage`, as its quotes are escaped within JSON."""

    __slots__ = ("_begin", "_end", "_events", "_is_stream", "_length", "_without")

    def __init__(self, response: ResponseHead) -> None:
        kind = next((value for low, _, value in response.fields if low == b"content-type"), b"")
        self._is_stream = kind.lower().startswith(b"text/event-stream")
        self._begin = b""
        self._end = b"\n"
        self._length = 0
        self._events = 0
        self._without = 0

    def add(self, piece: bytes) -> None:
        """Add the next piece of the body."""
        if self._is_stream:
            self._events += (self._end[-len(_EVENT) + 1 :] + piece).count(_EVENT)
            if not self._without and self._events == 1:
                self._without = len(_EMPTY.findall(piece))
        if len(self._begin) < KEPT_BYTES:
            self._begin += piece[: KEPT_BYTES - len(self._begin)]
        self._end = (self._end + piece[-KEPT_BYTES:])[-KEPT_BYTES:]
        self._length += len(piece)

    @property
    def has_begun(self) -> bool:
        """Return whether a streamed response has had its first token."""
        return self._events > self._without

    def parts(self, bytes_in: int) -> tuple[int, int]:
        """Return the tokens of the request, and those of the response so far; ``total`` returns their sum."""
        prompt, output = (pattern.findall(self._end) or pattern.findall(self._begin) for pattern in (_PROMPT, _OUTPUT))
        # The last event of a stream marks its end.
        events = max(self._events - self._without - 1, 0)
        answered = events if self._is_stream else self._length // BYTES_PER_TOKEN
        return (
            int(prompt[-1]) if prompt else bytes_in // BYTES_PER_TOKEN,
            int(output[-1]) if output else answered,
        )

    def total(self, bytes_in: int) -> int:
        """Return the tokens of request and response.

        Args:
            bytes_in: Bytes of the request's body. Without `usage`, four bytes count as a token, and so does an event of
                a stream.
        """
        totals = _TOTAL.findall(self._end) or _TOTAL.findall(self._begin)
        if totals:
            return int(totals[-1])
        answered = self._events if self._is_stream else self._length // BYTES_PER_TOKEN
        return bytes_in // BYTES_PER_TOKEN + answered
