"""Judges whether a run leaves its resources idle, why, and what follows.

Utilisation is sampled every few seconds; its mean over the time of the spec's ``idle`` counts, so that a run that saves
a checkpoint, or evaluates for a minute, is not idle. A sample covers the time since the previous one, at most
``MOST_SPAN_S``: time without measurement counts as neither busy nor idle.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.kinds import workspace_idle
from fairlead.policy.queue.budgets import HOUR_S, rate_of
from fairlead.policy.queue.changes import stop
from fairlead.specs.training import Idle, WhenIdle
from fairlead.state.idleness import Idleness
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Node, Phase, Pod, Progress, Workload, is_workspace
from fairlead.text.money import describe_microusd
from fairlead.text.quantities import describe_duration, plural

MOST_SPAN_S = 60.0
# The minimum part of the time that has to be measured for a finding.
LEAST_COVERED = 0.9
# A cause is named if it explains this part of the idle time; cores are short if this part of them is used.
EXPLAINS = 0.5
CORES_SHORT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """A measurement of what a run uses.

    Attributes:
        span_s: The seconds up to ``at`` that it covers.
        busy: Utilisation, from 0 to 1.
        has_gpus: Whether utilisation is that of GPUs; else of the cores that the run requests.
        cores: Utilisation of its processor cores, from 0 to 1; None if unknown.
        step, saving_s, loading_s: The program's reports by then, of its current start.
        active_at: Last sign of progress of any of its pods.
    """

    at: float
    span_s: float
    busy: float
    has_gpus: bool = True
    cores: float | None = None
    step: int | None = None
    saving_s: float | None = None
    loading_s: float | None = None
    active_at: float | None = None


def sample_of(
    run: Workload,
    pods: Iterable[Pod],
    *,
    at: float,
    span_s: float,
    busy: float,
    has_gpus: bool = True,
    cores: float | None = None,
) -> UsageSample:
    """Return a measurement with the run's reports by then."""
    progress = run.progress if run.progress is not None and run.progress.updated_at >= run.status.since else Progress()
    signs = [pod.active_at for pod in pods if pod.active_at is not None]
    return UsageSample(
        at=at, span_s=min(span_s, MOST_SPAN_S), busy=busy, has_gpus=has_gpus, cores=cores, step=progress.step,
        saving_s=progress.saving_s, loading_s=progress.loading_s, active_at=max(signs, default=None),
    )  # fmt: skip


def recent(samples: Iterable[UsageSample], wish: Idle, now: float) -> list[UsageSample]:
    """Return the samples that may still count."""
    return [sample for sample in samples if sample.at > now - wish.for_s]


def coarsened(samples: list[UsageSample], most: int) -> list[UsageSample]:
    """Return at most so many samples, merging pairs while there are more."""
    while len(samples) > most:
        pairs = zip(samples[::2], samples[1::2], strict=False)
        samples = [_joined(first, second) for first, second in pairs] + samples[len(samples) // 2 * 2 :]
    return samples


def _joined(first: UsageSample, second: UsageSample) -> UsageSample:
    span_s = first.span_s + second.span_s
    busy = (first.busy * first.span_s + second.busy * second.span_s) / span_s if span_s else second.busy
    return replace(second, span_s=span_s, busy=busy)


def idleness(samples: Sequence[UsageSample], wish: Idle, now: float) -> Idleness | None:
    """Return the idleness of a run over the time that it allows; None if it is not idle, or not known.

    Args:
        samples: Those of its current start, in order.
    """
    window = recent(samples, wish, now)
    covered_s = sum(sample.span_s for sample in window)
    if not window or covered_s < LEAST_COVERED * wish.for_s:
        return None
    busy = sum(sample.busy * sample.span_s for sample in window) / covered_s
    if busy >= wish.below:
        return None
    first, last = window[0], window[-1]
    known = [sample for sample in window if sample.cores is not None]
    known_s = sum(sample.span_s for sample in known)
    cores = sum((sample.cores or 0.0) * sample.span_s for sample in known) / known_s if known_s else None
    return Idleness(
        busy=round(busy, 2),
        has_gpus=last.has_gpus,
        cores=None if cores is None else round(cores, 2),
        steps=None if last.step is None else last.step - (first.step or 0),
        saving=round(_passed(first.saving_s, last.saving_s, covered_s) or 0.0, 2),
        loading=_passed(first.loading_s, last.loading_s, covered_s),
        is_silent=last.active_at is None or last.active_at <= first.at - first.span_s,
    )


def _passed(first: float | None, last: float | None, covered_s: float) -> float | None:
    return None if last is None else round(min(1.0, max(0.0, last - (first or 0.0)) / covered_s), 2)


def cause(sample: Idleness) -> str | None:
    """Return what keeps it from working, as a clause; None if unknown."""
    idle = 1.0 - sample.busy
    if sample.saving >= EXPLAINS * idle:
        return f"it waits for its checkpoints {sample.saving:.0%} of the time"
    if sample.loading is not None and sample.loading >= EXPLAINS * idle:
        return f"it waits for data {sample.loading:.0%} of the time"
    if sample.is_silent or sample.steps == 0:
        return "it has made no progress in all that time, so it hangs or waits for something outside"
    if sample.has_gpus and sample.cores is not None and sample.cores >= CORES_SHORT:
        return f"its processor cores are {sample.cores:.0%} busy, so that what prepares its data is short of them"
    if sample.steps is not None:
        return f"it continues, with {plural(sample.steps, 'step')}, and is idle between or within them"
    return None


def reason(run: Workload, nodes: Iterable[Node]) -> Reason | None:
    """Return the reason of an idle run, with the cause and the cost; None if it is not idle."""
    idle = run.idle
    if idle is None or run.status.phase is not Phase.RUNNING:
        return None
    what = "its GPUs" if idle.has_gpus else "the cores that it asks for"
    message = f"{what} were {idle.busy:.0%} busy in the last {describe_duration(run.spec.idle.for_s)}"
    why = cause(idle)
    if why is not None:
        message += f": {why}"
    wasted = rate_of(run.gang, nodes) * HOUR_S * (1.0 - idle.busy)
    if wasted:
        message += f"; what is idle costs {describe_microusd(round(wasted))} an hour"
    return Reason(code=Code.IDLE, message=message, remedy=_remedy(idle))


def announced(run: Workload, live: tuple[Pod, ...], nodes: Iterable[Node], now: float) -> Reason | None:
    """Return the warning about an idle run, or about the coming suspension of a workspace; None for none."""
    if is_workspace(run):
        return workspace_idle.reason(run, live, now)
    return reason(run, nodes)


def _remedy(idle: Idleness) -> str:
    if idle.saving >= EXPLAINS * (1.0 - idle.busy):
        return "Save less often, by `checkpoint.every`, or to a faster place, by `checkpoint.to`."
    if idle.is_silent or idle.steps == 0:
        return "`stall_timeout` would end it and say where it hangs; `idle: suspend` gives up what it holds."
    if not idle.has_gpus:
        return "Ask for fewer cores, by `resources.cpu`."
    if idle.loading is None:
        return "Take batches from `run.batches(loader)`: it tells whether data is what it waits for."
    return "More loader workers, more `resources.cpu`, larger batches or a smaller part of a GPU would use them better."


def act(run: Workload, live: tuple[Pod, ...], nodes: Iterable[Node], now: float) -> Change | None:
    """Return the change for an idle run whose spec asks for one; None if it asks for a notification only."""
    if is_workspace(run):
        return workspace_idle.act(run, live, now)
    wish = run.spec.idle
    if wish.then is WhenIdle.NOTIFY:
        return None
    why = reason(run, nodes)
    if why is None:
        return None
    if wish.then is WhenIdle.SUSPEND:
        remedy = f"`fairlead resume {run.spec.name}` continues it."
        final = Reason(code=Code.SUSPENDED, message=f"suspended by `idle`: {why.message}", remedy=remedy)
        return replace(stop(run, live, Phase.SUSPENDED, final, replace(why, remedy=remedy), now), intent=Intent.SUSPEND)
    num_nodes, fewest = run.gang.nodes, run.spec.nodes
    if num_nodes <= fewest or run.spec.most_nodes is None:
        return None
    shrinks = Reason(
        code=Code.RESIZED,
        message=f"shrinks from {num_nodes} to {plural(fewest, 'node')}: {why.message}; continues from a checkpoint",
    )
    return stop(run, live, Phase.PENDING, shrinks, shrinks, now, size=replace(run.status.size, is_kept_small=True))
