"""Handles standard streams whose reader has gone."""

import contextlib
import io
import os
from typing import Any


def discard(stream: Any) -> None:
    """Discard a stream's buffer, so that the interpreter's flush at exit prints no error."""
    if stream is None:
        return
    # A stream without a file descriptor, as in a test, cannot fail at exit.
    with contextlib.suppress(io.UnsupportedOperation):
        target, null = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)
