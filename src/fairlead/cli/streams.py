"""Handles standard streams whose reader has gone, and those that lead to a terminal."""

import contextlib
import io
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from fairlead.text.visible_text import on_terminal

RESET = "\x1b[0m"


def discard(stream: Any) -> None:
    """Discard a stream's buffer, so that the interpreter's flush at exit prints no error."""
    if stream is None:
        return
    # A stream without a file descriptor, as in a test, cannot fail at exit.
    with contextlib.suppress(io.UnsupportedOperation):
        target, null = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, target)
        os.close(null)


class TerminalText:
    """A text stream to a terminal, on which texts of programs, tenants and files cannot control the terminal.

    What draws on the screen itself writes to ``terminal``.
    """

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal

    def write(self, text: str) -> int:
        """Write a text with its control characters visible, except colours and line ends."""
        shown = on_terminal(text)
        # A colour that is not ended would continue in what follows.
        self.terminal.write(f"{shown}{RESET}" if "\x1b" in shown else shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)


def guard_terminal() -> None:
    """Guard the standard streams that lead to a terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, TerminalText) and stream.isatty():
            setattr(sys, name, TerminalText(stream))


def terminal() -> TextIO:
    """Return standard output for what draws on the screen."""
    stream: Any = sys.stdout
    unguarded: TextIO = stream.terminal if isinstance(stream, TerminalText) else stream
    return unguarded
