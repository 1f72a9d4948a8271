"""Decides which candidate split a run tries next, and which one it keeps.

Each start of a run with candidate splits uses another one, for a few steps. One that fails is ruled out with its
reason, and the run continues with the next; a failure not caused by the split, such as a lost node, is handled as
usual, after which the same split is tried again.
"""

from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.kinds.failures import Blame, Failure
from fairlead.policy.strategy.resolution import describe, split_of
from fairlead.specs.training import Training
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Pod, PodPhase, Workload
from fairlead.state.split_probing import Probed, Probing, found_of, split_of_candidate, subject, untried
from fairlead.text.quantities import describe_duration, plural

# The first step may compile for minutes; a program without a reported step by then gives no measurement.
MOST_S = 1800.0
# Without a memory limit the kernel kills a rank that is out of memory, which looks like any other kill.
MOST_KILLS = 2
_OF_THE_SPLIT_IN_TIME = frozenset({Code.KILLED, Code.STALLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The consequence of a start that tried a split.

    Attributes:
        probing: The updated results.
        reason: An explanation for users.
        failure: The run's failure if none of its splits completed a step; None if it continues.
    """

    probing: Probing
    reason: Reason
    failure: Failure | None = None


def follow(workload: Workload, own: tuple[Pod, ...], failure: Failure | None, now: float) -> Verdict | None:
    """Return the consequence for a run that tries a split; None while the trial runs, or for another kind of failure.

    Args:
        own: The pods of its current start.
        failure: The failure of that start; None without one.
    """
    spec, status, progress = workload.spec, workload.status, workload.progress
    left = untried(spec, status.measured.probing)
    before = found_of(spec, status.measured.probing) or Probing(of=subject(spec))
    if progress is not None and progress.probe_attempt == status.attempt and progress.probe_step_s is not None:
        return _next(spec, before, Probed(name=left[0], step_s=progress.probe_step_s), None)
    if failure is not None:
        code = failure.reason.code
        if code in _OF_THE_SPLIT_IN_TIME:
            kills = before.kills + 1
            if kills < MOST_KILLS:
                sentence = f"{_named(spec, left[0])} is tried again: {failure.reason.message}"
                return Verdict(
                    probing=replace(before, kills=kills), reason=Reason(code=Code.SPLIT_PROBED, message=sentence)
                )
        elif failure.blame is not Blame.PROGRAM and code is not Code.OUT_OF_MEMORY:
            return None
        return _next(spec, before, Probed(name=left[0], problem=failure.reason.message), failure)
    if own and all(pod.phase is PodPhase.SUCCEEDED for pod in own):
        problem = "its program ended before a step was over that run.forward_backward or run.progress told of"
    elif status.phase is Phase.RUNNING and now - status.since >= MOST_S:
        problem = (
            f"run.forward_backward or run.progress told of too few steps within {describe_duration(MOST_S)} to say how "
            "long one takes"
        )
    else:
        return None
    reason = Reason(code=Code.PROGRAM_FAILED, message=problem)
    return _next(spec, before, Probed(name=left[0], problem=problem), Failure(blame=Blame.PROGRAM, reason=reason))


def describe_candidate(spec: Training, name: str) -> str:
    """Describe a candidate split briefly."""
    assert spec.parallel is not None
    parallel = split_of_candidate(spec.parallel, name)
    if parallel.data is None:
        whole = spec.world_size // ((parallel.tensor or 1) * (parallel.pipeline or 1))
        parallel = replace(parallel, data=max(1, whole))
    return describe(split_of(parallel))


def describe_probing(spec: Training, probing: Probing | None) -> list[str]:
    """Describe the progress of a run with candidate splits, a sentence each, the chosen or current one first."""
    assert spec.parallel is not None
    results, left = found_of(spec, probing), untried(spec, probing)
    tried = () if results is None else results.tried
    chosen = None if results is None else results.chosen
    lines = [f"{_named(spec, left[0])} is tried"] if left else []
    for probed in sorted(tried, key=lambda probed: (probed.name != chosen, _step_s(probed))):
        verdict = "is kept and " if probed.name == chosen else ""
        lines.append(f"{_named(spec, probed.name)} {verdict}{_outcome(spec, probed)}")
    return [*lines, *(f"{_named(spec, name)} is tried later" for name in left[1:])]


def _next(spec: Training, before: Probing, probed: Probed, failure: Failure | None) -> Verdict:
    """Continue with the next split, or with the fastest one if all were tried."""
    after = replace(before, tried=(*before.tried, probed), kills=0)
    sentence = f"{_named(spec, probed.name)} {_outcome(spec, probed)}"
    left = untried(spec, after)
    if left:
        message = f"{sentence}; next is {_named(spec, left[0])}"
        return Verdict(probing=after, reason=Reason(code=Code.SPLIT_PROBED, message=message))
    best = min((other for other in after.tried if other.step_s is not None), key=_step_s, default=None)
    if best is None:
        assert failure is not None
        others = [f"{other.name}: {other.problem}" for other in after.tried[:-1]]
        message = "; ".join((f"none of {plural(len(after.tried), 'split')} could be run: {sentence}", *others))
        return Verdict(
            probing=after,
            reason=Reason(code=Code.SPLIT_PROBED, message=sentence),
            failure=replace(failure, reason=replace(failure.reason, message=message)),
        )
    others = [f"{other.name} {_outcome(spec, other)}" for other in after.tried if other is not best]
    message = "; ".join((f"{_named(spec, best.name)} is kept: it {_outcome(spec, best)}", *others))
    return Verdict(probing=replace(after, chosen=best.name), reason=Reason(code=Code.SPLIT_CHOSEN, message=message))


def _step_s(probed: Probed) -> float:
    return probed.step_s if probed.step_s is not None else float("inf")


def _named(spec: Training, name: str) -> str:
    return f"{name} ({describe_candidate(spec, name)})"


def _outcome(spec: Training, probed: Probed) -> str:
    if probed.step_s is None:
        return f"is ruled out: {probed.problem}"
    assert spec.parallel is not None
    estimate = spec.parallel.candidates[probed.name].estimate_s
    expected = "" if estimate is None else f", {describe_step(estimate)} by estimate"
    return f"takes {describe_step(probed.step_s)} a step{expected}"


def describe_step(seconds: float) -> str:
    """Format the time of a step, to three digits."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
