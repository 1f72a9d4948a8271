"""The phases of a workload, and what its user intends with it."""

from enum import StrEnum


class Phase(StrEnum):
    """A phase of a workload; the legal transitions are in ``fairlead.state.phase_transitions``."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    STOPPING = "Stopping"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"

    @property
    def is_final(self) -> bool:
        """Return whether nothing more happens without a user's request."""
        return self in _FINAL


class Intent(StrEnum):
    """The user's intent for a workload."""

    RUN = "run"
    SUSPEND = "suspend"
    STOP = "stop"
    DELETE = "delete"


_FINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED})
