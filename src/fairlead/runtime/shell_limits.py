"""Carries what a process inherits beside its environment from the submitter's shell to the ranks of a run.

These are the limits of `ulimit`, the umask, the niceness and the cores of `taskset`. Ranks descend from a supervisor,
which an earlier shell may have started under others. Cgroups and namespaces stay those of the supervisor.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource

from fairlead.runtime.secret_entries import without_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

# In a kept environment it holds the limits as JSON; no program gets it.
VARIABLE = "FAIRLEAD_SHELL_LIMITS"
_INFINITE = resource.RLIM_INFINITY
# Limits under which a supervisor could not serve many runs for days.
_HARMFUL = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC")


def environment() -> dict[str, str]:
    """Return the environment of this process, with its limits under ``VARIABLE``, without secrets of its own run."""
    return {**without_secrets(os.environ), VARIABLE: current()}


def current() -> str:
    """Return the limits of this process."""
    umask = os.umask(0o077)
    os.umask(umask)
    settings = {
        "umask": umask,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in _names()},
    }
    return json.dumps(settings)


def apply(text: str | None) -> list[str]:
    """Give this process the limits of a submitter; return a sentence for each that it may not have.

    A process without privileges cannot raise a hard limit, or lower its niceness, above what the supervisor has.
    """
    if text is None:
        return []
    settings = json.loads(text)
    problems: list[str] = []
    os.umask(settings["umask"])
    for name in _names():
        if name in settings["limits"]:
            problems += _limit(name, *settings["limits"][name])
    if settings["nice"] != os.getpriority(os.PRIO_PROCESS, 0):
        try:
            os.setpriority(os.PRIO_PROCESS, 0, settings["nice"])
        except OSError:
            own = os.getpriority(os.PRIO_PROCESS, 0)
            problems.append(f"its niceness is {own}, not {settings['nice']} as in the shell that submitted it")
    if settings["cores"] is not None and set(settings["cores"]) != os.sched_getaffinity(0):
        try:
            os.sched_setaffinity(0, settings["cores"])
        except OSError:  # a cpuset leaves it none of these cores
            problems.append("it may not use the cores of the shell that submitted it")
    return problems


def has_used_up(text: str | None, cpu_s: float) -> bool:
    """Return whether that much processor time ends a process with these limits; the kernel then sends it SIGKILL."""
    hard = _INFINITE if text is None else json.loads(text)["limits"]["RLIMIT_CPU"][1]
    return bool(hard != _INFINITE and cpu_s >= hard - 0.5)


def raise_own() -> None:
    """Raise this process's soft limits to the hard ones, since a supervisor serves runs of other shells too."""
    for name in _HARMFUL:
        _, hard = resource.getrlimit(getattr(resource, name))
        with contextlib.suppress(OSError, ValueError):  # a hard limit above the system's own, which then stays
            resource.setrlimit(getattr(resource, name), (hard, hard))


def _limit(name: str, soft: int, hard: int) -> Iterator[str]:
    number = getattr(resource, name)
    own_soft, own_hard = resource.getrlimit(number)
    if (own_soft, own_hard) == (soft, hard):
        return
    try:
        resource.setrlimit(number, (soft, hard))
        return
    except (OSError, ValueError):
        least = _lower(soft, own_hard)
        resource.setrlimit(number, (least, _lower(hard, own_hard)))
    if least != soft:
        yield (
            f"its limit `{name}` is {_shown(least)}, not {_shown(soft)} as in the shell that submitted it, since the "
            "supervisor was started by a shell with a lower hard limit; it ends when nothing runs for a while"
        )


def _names() -> list[str]:
    return sorted(name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE")


def _lower(first: int, second: int) -> int:
    if _INFINITE in (first, second):
        return second if first == _INFINITE else first
    return min(first, second)


def _shown(limit: int) -> str:
    return "unlimited" if limit == _INFINITE else str(limit)
