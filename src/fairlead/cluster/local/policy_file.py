"""Reads the scheduling policy of one machine from an optional file of the state directory."""

from pathlib import Path

from fairlead.errors import ClusterError
from fairlead.specs.constraints import quote
from fairlead.state.scheduling_policy import DEFAULT, POLICIES, SchedulingPolicy


def read_rules(path: Path) -> SchedulingPolicy:
    """Return the policy that the file names; the default without a file.

    Raises:
        ClusterError: The file names no policy.
    """
    try:
        name = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return DEFAULT
    except (OSError, UnicodeError) as error:
        raise ClusterError(f"{path} cannot be read: {error}.") from error
    if name not in POLICIES:
        raise ClusterError(f"{path} says {quote(name)}; give one of {', '.join(POLICIES)}. Fix or remove the file.")
    return POLICIES[name]
