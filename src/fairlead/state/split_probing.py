"""The candidate splits of a run: which are still untried, and which one its current start has."""

import hashlib
import json
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

from fairlead.frozen import dataclass
from fairlead.specs.parallel import Parallel, SplitCandidate

if TYPE_CHECKING:
    from fairlead.specs.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A split that was tried.

    Attributes:
        step_s: Seconds per step; None if it completed none.
        problem: Why it completed none.
    """

    name: str
    step_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """The splits of a run that were tried, in order.

    Attributes:
        of: A short identifier of the splits and the number of ranks that this is valid for.
        chosen: The split that is kept; None while some are untried.
        kills: How often the split under test was killed, or hung.
    """

    of: str
    tried: tuple[Probed, ...] = ()
    chosen: str | None = None
    kills: int = 0


PARTS = tuple(part.name for part in fields(SplitCandidate) if part.name != "estimate_s")


def subject(spec: "Training") -> str:
    """Return a short identifier of the splits and the number of ranks of a run; results are valid for these alone."""
    assert spec.parallel is not None
    # Sorted by name: an API server does not preserve their order. Estimates do not matter.
    candidates = sorted(
        (name, asdict(replace(candidate, estimate_s=None))) for name, candidate in spec.parallel.candidates.items()
    )
    own = asdict(replace(spec.parallel, candidates={}))
    text = json.dumps([spec.world_size, spec.run, own, candidates], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def found_of(spec: "Training", probing: Probing | None) -> Probing | None:
    """Return the results for the current splits of a run; None if they were of others."""
    return probing if probing is not None and probing.of == subject(spec) else None


def untried(spec: "Training", probing: Probing | None) -> tuple[str, ...]:
    """Return the untried splits, in order; none once one is chosen."""
    if spec.parallel is None or not spec.parallel.candidates:
        return ()
    outcome = found_of(spec, probing)
    if outcome is not None and outcome.chosen is not None:
        return ()
    done = set() if outcome is None else {probe.name for probe in outcome.tried}
    return tuple(name for name in order(spec.parallel) if name not in done)


def order(parallel: Parallel) -> tuple[str, ...]:
    """Return the names of the splits in the order of trials: by estimated time, then by name."""
    known = parallel.candidates
    return tuple(sorted(known, key=lambda name: (known[name].estimate_s or float("inf"), name)))


def split_of_candidate(parallel: Parallel, name: str) -> Parallel:
    """Return a candidate split; what it omits is as in the run's own."""
    own = parallel.candidates[name]
    parts = {part: value for part in PARTS if (value := getattr(own, part)) is not None}
    return replace(parallel, candidates={}, **parts)


def in_force(spec: "Training", probing: Probing | None) -> Parallel:
    """Return the split of the current start: the one under test, or the one that is kept."""
    assert spec.parallel is not None
    left, outcome = untried(spec, probing), found_of(spec, probing)
    name = left[0] if left else None if outcome is None else outcome.chosen
    if name is None:
        return replace(spec.parallel, candidates={})
    return split_of_candidate(spec.parallel, name)
