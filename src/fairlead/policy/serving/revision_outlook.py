"""Predicts the effect of another spec on an endpoint: the revision that would serve, and how it would take over."""

from fairlead.frozen import dataclass
from fairlead.policy.kinds.serving import detail_with, is_to_be_tried
from fairlead.specs.endpoint_engines import TITLES
from fairlead.specs.quantities import format_duration
from fairlead.specs.serving import Canary, Serving
from fairlead.state.endpoint_detail import ServingDetail, detail_of
from fairlead.state.snapshot import Intent, Workload
from fairlead.text.quantities import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionOutlook:
    """The revision of an endpoint that another spec would result in.

    Attributes:
        name: The display name, such as ``r2``.
        replaces: The revision that it replaces; None if nothing serves, or none is replaced.
        is_new: Whether no remembered revision has these replicas.
        rollout: The steps of taking over, in sentences; empty if no replica is replaced.
    """

    name: str
    replaces: str | None
    is_new: bool
    rollout: tuple[str, ...] = ()


def revision_outlook(serving: Workload[Serving], spec: Serving, now: float) -> RevisionOutlook:
    """Return the outlook for an unfinished endpoint with another spec, as it would be judged next."""
    before, after = detail_of(serving), detail_with(serving, spec, now)
    target = after.revision(after.target)
    assert target is not None, "the revision that is asked for is kept"
    old = after.serving if after.serving is not None else before.target or None
    is_new = before.revision(target.number) is None
    stays = old in (None, target.number) or before.target == after.target
    if stays:
        sentences: list[str] = []
    else:
        sentences = _rollout(spec, after, target.name, f"r{old}")
    if serving.intent is not Intent.RUN:
        name = spec.name
        sentences = [f"nothing serves until `fairlead resume {name}`, as the endpoint is {serving.status.phase.value}"]
    return RevisionOutlook(
        name=target.name, replaces=None if stays else f"r{old}", is_new=is_new, rollout=tuple(sentences)
    )  # fmt: skip


def _rollout(spec: Serving, after: ServingDetail, new: str, old: str) -> list[str]:
    if spec.engine is not None:
        sentences = [f"{TITLES[spec.engine]} replaces the replicas of {old}"]
    else:
        wanted = min(max(after.wanted, spec.replicas), spec.most)
        sentences = [_surge(spec, max(1, wanted), old)]
    if is_to_be_tried(spec, after) and spec.canary is not None:
        sentences.append(_trial(spec.canary, new, old, by_hand=spec.engine is not None))
    if after.serving is not None:
        sentences.append(f"if none of {new} is ready within {format_duration(spec.ready_within_s)}, {old} stays")
    return sentences


def _surge(spec: Serving, wanted: int, old: str) -> str:
    surge = spec.rollout.max_surge
    if surge == 0:
        return f"one replica of {old} is removed before each new one starts, as `rollout.max_surge` is 0"
    most = f"at most {plural(wanted + surge, 'replica')} at once (`rollout.max_surge: {surge}`)"
    return f"new replicas start first, {most}; each one that is ready replaces one of {old}"


def _trial(canary: Canary, new: str, old: str, *, by_hand: bool) -> str:
    shares = ", ".join(f"{step * 100:g} %" for step in canary.steps[: 1 if by_hand else None])
    if by_hand:
        return f"canary: {new} gets {shares} of the requests, and {old} the others, until `canary` is removed"
    copies = "copies of " if canary.shadow else ""
    within = format_duration(canary.within_s)
    return (
        f"canary: {new} gets {copies}{shares} of the requests, and takes over once it is shown to be no worse than "
        f"{old}; {old} stays if it is worse, or if nothing is known after {within}"
    )
