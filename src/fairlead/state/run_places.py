"""Names the place of a run below one that many runs share."""

from fairlead.state.snapshot import AnyWorkload


def place_of(to: str, run: AnyWorkload) -> str:
    """Return the run's own directory or URL below that which `checkpoint.to` names."""
    return f"{to.rstrip('/')}/{run.spec.name}-{run.uid}"
