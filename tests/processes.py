"""Processes of a test, which end with it."""

import subprocess
import threading
from types import TracebackType
from typing import Any, AnyStr

LIMIT_S = 240.0
"""More than any test gives a process that works."""


class Child(subprocess.Popen[AnyStr]):
    """A process that is killed once its block ends with an error, or after ``limit_s``.

    Plain ``Popen`` as a context waits without a limit for a process that nobody has told to end, so that a failed
    assertion in its block would be a hang; and reading a line from one that has stopped to write never ends.
    """

    def __init__(self, *arguments: Any, limit_s: float = LIMIT_S, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limit = threading.Timer(limit_s, self.kill)
        self._limit.daemon = True
        self._limit.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)
        self._limit.cancel()
