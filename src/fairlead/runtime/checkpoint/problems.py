"""How failures travel between ranks, and how they are told."""

from collections.abc import Callable
from typing import Any

from fairlead.errors import RuntimeFault
from fairlead.runtime.channels import Channel


class Failed(RuntimeFault):
    """Some rank failed in a phase; the message names the rank and the reason. Raised on all ranks."""


def failure(call: Callable[[], object]) -> Exception | None:
    """Make the call; what it raised, or None.

    Whatever a save or a load raises has to reach the other ranks before anything else happens, or they wait for ever.
    """
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the caller tells the other ranks and reports it
        return error
    return None


def settle(channel: Channel, problem: Exception | None, value: Any = None) -> list[Any]:
    """Exchange outcomes; every rank's value when all is well.

    Raises:
        Failed: Some rank has a problem.
        AgreementFailed: Some rank is gone.
    """
    answers = channel.gather([None if problem is None else clause(problem), value])
    problems = [(rank, text) for rank, (text, _) in enumerate(answers) if text is not None]
    if problems:
        rank, text = problems[0]
        raise Failed(text if channel.world_size == 1 else f"{text} (rank {rank})") from problem
    return [value for _, value in answers]


def clause(error: BaseException) -> str:
    """The reason in a few words; that of the operating system where it is at the root."""
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
