"""By which rules one machine starts what waits: a word in a file of the state directory, if somebody put one there."""

from pathlib import Path

from fairlead.errors import ClusterError
from fairlead.specs.constraints import quote
from fairlead.state.scheduling_policy import DEFAULT, POLICIES, SchedulingPolicy


def read_rules(path: Path) -> SchedulingPolicy:
    """The rules that the file names; the usual ones when there is none.

    Raises:
        ClusterError: It names none; nothing is decided by others than were meant.
    """
    try:
        name = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return DEFAULT
    except (OSError, UnicodeError) as error:
        raise ClusterError(f"{path} cannot be read: {error}. Until it can nothing is started.") from error
    if name not in POLICIES:
        raise ClusterError(
            f"{path} says {quote(name)}; give one of {', '.join(POLICIES)}. "
            "Mend or remove the file; until then nothing "
            "is started."
        )
    return POLICIES[name]
