"""The split of a run that tries several: which are left to be tried, and which one its present start has."""

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
        step_s: Seconds that a step took; None where it came to none.
        problem: Why it came to none.
    """

    name: str
    step_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """The splits of a run that were tried, in their order.

    Attributes:
        of: The splits and the number of ranks that this is about, in a few characters: it holds for no others.
        chosen: The one that is kept; None while some are still to be tried.
        kills: How often the one that is tried now was killed, or hung.
    """

    of: str
    tried: tuple[Probed, ...] = ()
    chosen: str | None = None
    kills: int = 0


PARTS = tuple(each.name for each in fields(SplitCandidate) if each.name != "estimate_s")


def subject(spec: "Training") -> str:
    """Name the splits and the number of ranks of a run in a few characters: what is found holds for these alone."""
    assert spec.parallel is not None
    # Names in their order: an API server keeps none of its own. What a split is thought to take changes nothing.
    candidates = sorted(
        (name, asdict(replace(each, estimate_s=None))) for name, each in spec.parallel.candidates.items()
    )
    own = asdict(replace(spec.parallel, candidates={}))
    text = json.dumps([spec.world_size, spec.run, own, candidates], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def found_of(spec: "Training", probing: Probing | None) -> Probing | None:
    """Return what was found of the splits that a run has now; None where that was of others."""
    return probing if probing is not None and probing.of == subject(spec) else None


def untried(spec: "Training", probing: Probing | None) -> tuple[str, ...]:
    """Return the splits that are still to be tried, in their order; none once one is chosen."""
    if spec.parallel is None or not spec.parallel.candidates:
        return ()
    found = found_of(spec, probing)
    if found is not None and found.chosen is not None:
        return ()
    done = set() if found is None else {each.name for each in found.tried}
    return tuple(name for name in order(spec.parallel) if name not in done)


def order(parallel: Parallel) -> tuple[str, ...]:
    """The names of the splits to try: those of which less time is expected first, the others as they are called."""
    known = parallel.candidates
    return tuple(sorted(known, key=lambda name: (known[name].estimate_s or float("inf"), name)))


def split_of_candidate(parallel: Parallel, name: str) -> Parallel:
    """Return a split that is tried; what it leaves out is as the run has it."""
    own = parallel.candidates[name]
    given = {part: value for part in PARTS if (value := getattr(own, part)) is not None}
    return replace(parallel, candidates={}, **given)


def in_force(spec: "Training", probing: Probing | None) -> Parallel:
    """Return the split of the present start: one that is tried, or the one that is kept."""
    assert spec.parallel is not None
    left, found = untried(spec, probing), found_of(spec, probing)
    name = left[0] if left else None if found is None else found.chosen
    if name is None:
        return replace(spec.parallel, candidates={})
    return split_of_candidate(spec.parallel, name)
