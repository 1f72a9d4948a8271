"""Sums up how long a run has been active, from its status: the time before and that of the present phase."""

from fairlead.state.snapshot import Phase, Status


def ran_until(status: Status, at: float) -> float:
    """Return ``ran_s`` including the current start up to a time."""
    if status.phase is not Phase.RUNNING:
        return status.run_time.saved_s
    return status.run_time.saved_s + max(0.0, at - status.since) * (status.size.nodes or 1)


def active_until(status: Status, at: float) -> float:
    """Return ``active_s`` including the present time in Running, up to a time."""
    return status.run_time.active_s + (max(0.0, at - status.since) if status.phase is Phase.RUNNING else 0.0)
