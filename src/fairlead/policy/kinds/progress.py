"""Tells how far a workload is, and what is wrong with it while it runs, as every face says it."""

from fairlead.policy.kinds.checkpoint_health import warning
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Progress, is_leaf


def warning_of(workload: AnyWorkload, now: float) -> Reason | None:
    """Tell what is wrong with a run although it runs; None while nothing is, and for a parent."""
    if not is_leaf(workload):
        return None
    told = workload.status.warning
    # What is measured of a run the loop knows alone, and keeps what it found.
    return warning(workload, now) or (told if told is not None and told.code is Code.IDLE else None)


def progress_of(workload: AnyWorkload, *, short: bool = False) -> str:
    """Tell how far a workload of any kind is, in one line; ``-`` when nobody can tell."""
    from fairlead.policy.kinds.table import parent_of  # here and not above: a listing of runs needs no records of kinds

    if is_leaf(workload):
        return describe_progress(workload.progress, short=short)
    kind = parent_of(workload.spec)
    return "-" if kind is None else kind.progress(workload)


def describe_progress(progress: Progress | None, *, short: bool = False) -> str:
    """Step, loss, throughput and checkpoint in one line; ``-`` when nothing was said."""
    if progress is None or progress.step is None:
        return "-"
    steps = f"{progress.step}" if progress.total_steps is None else f"{progress.step}/{progress.total_steps}"
    if short:
        return steps
    parts = [f"step {steps}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    if progress.throughput is not None:
        parts.append(f"{progress.throughput:,.0f} {progress.throughput_unit or 'steps/s'}")
    if progress.checkpoint_step is not None:
        parts.append(f"checkpoint at {progress.checkpoint_step}")
    return ", ".join(parts)
