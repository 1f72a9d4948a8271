"""Exchanges failures between ranks and describes them."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.errors import RuntimeFault
from fairlead.runtime.channels import Channel
from fairlead.runtime.errors import StoreUnavailable

PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
PROBE_BYTES = 1 << 20


class Failed(RuntimeFault):
    """A failure of some rank in a phase; the message names the rank and the reason. Raised on all ranks.

    Attributes:
        is_passing: The failure may be temporary, as a full disk or an outage is; the same on all ranks.
    """

    def __init__(self, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_passing = is_passing


def failure(call: Callable[[], object]) -> Exception | None:
    """Make the call and return the exception that it raised, or None.

    Any exception of a save or a load has to reach the other ranks before anything else happens; otherwise they wait
    forever.
    """
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the caller tells the other ranks and reports it
        return error
    return None


def settle(channel: Channel, problem: Exception | None, value: Any = None) -> list[Any]:
    """Exchange outcomes and return every rank's value if no rank has a problem.

    Raises:
        Failed: Some rank has a problem.
        AgreementFailed: Some rank is gone.
    """
    answers = channel.gather([None if problem is None else clause(problem), value, may_pass(problem)])
    problems = [(rank, text, passing) for rank, (text, _, passing) in enumerate(answers) if text is not None]
    if problems:
        rank, text, passing = problems[0]
        raise Failed(text if channel.world_size == 1 else f"{text} (rank {rank})", is_passing=passing) from problem
    return [value for _, value, _ in answers]


def may_pass(error: BaseException | None) -> bool:
    """Return whether a retry may succeed later, as after a full disk or an outage."""
    root = _system_error(error)
    return isinstance(error, StoreUnavailable) or (root is not None and root.errno in PASSING)


def at_the_root(error: Exception | None, place: Path | None) -> Exception | None:
    """Return the operating system's error behind a library error that hides it, found by a test write to the place."""
    if error is None or place is None or _system_error(error) is not None or isinstance(error, RuntimeFault):
        return error
    probe = place / ".room"
    try:
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as root:
        return OSError(root.errno, root.strerror)
    return error


def clause(error: BaseException) -> str:
    """Return the reason in a few words; the operating system's reason if it is the cause."""
    text = " ".join(str(error).split())
    if isinstance(error, RuntimeFault) and text:
        return text
    root = _system_error(error)
    if root is not None and root.strerror:
        where = f": {root.filename}" if root.filename else ""
        return f"{root.strerror}{where}"
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _system_error(error: BaseException | None) -> OSError | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError):
            return error
        error = error.__cause__ or error.__context__
    return None
