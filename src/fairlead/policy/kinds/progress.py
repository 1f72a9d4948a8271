"""Describes the progress of a workload and its warnings, the same for every interface."""

from fairlead.policy.kinds.checkpoint_health import warning
from fairlead.policy.kinds.table import parent_of
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Progress, is_leaf


def warning_of(workload: AnyWorkload, now: float) -> Reason | None:
    """Return the warning of a running run, or of a workload at which Fairlead itself failed; None without one."""
    shown = workload.status.warning.reason
    if shown is not None and shown.code is Code.INTERNAL_ERROR:
        return shown
    if not is_leaf(workload):
        return None
    if shown is not None and shown.code is Code.NODE_SILENT:
        return shown
    # Only the loop knows measurements of a run; it stores its finding.
    return warning(workload, now) or (
        shown if shown is not None and shown.code in (Code.IDLE, Code.SLOW_RANK) else None
    )


def progress_of(workload: AnyWorkload, *, short: bool = False) -> str:
    """Describe the progress of a workload of any kind in one line; ``-`` if unknown."""
    if is_leaf(workload):
        return describe_progress(workload.progress, short=short)
    kind = parent_of(workload.spec)
    return "-" if kind is None else kind.progress(workload)


def describe_progress(progress: Progress | None, *, short: bool = False) -> str:
    """Describe step, loss, throughput and checkpoint in one line; ``-`` without a report."""
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
