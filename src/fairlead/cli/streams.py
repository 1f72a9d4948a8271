"""Standard streams that nobody reads any more."""

import contextlib
import io
import os
from typing import Any


def discard(stream: Any) -> None:
    """Send what is still in a stream's buffer nowhere, so that the interpreter's own flush at exit says nothing."""
    if stream is None:
        return
    # A stream that is no file of the system, as in a test, has nothing that could fail at exit.
    with contextlib.suppress(io.UnsupportedOperation):
        target, null = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)
