"""A text server with continuous batching, simulated step by step from coefficients that its own requests tell.

The scheduler is vLLM's: running requests first, then others as long as blocks for their whole prompts are free, so
many tokens and requests a step, prompts in chunks; without free blocks the newest gives its own back and is computed
again, as far as others have overwritten them meanwhile. A step is composed while the one before it still runs, when the
one before that has ended (asynchronous scheduling).

With P tokens of prompts, D sequences that decode and S tokens that these have read, a step takes

    base + sequence * (D rounded up to 8) + context * S                                 without prompts
    max(base + sequence * D, prompt_base + prompt * (P + D)) + context * S + mixed * D  with prompts

The coefficients are fitted by a pattern search on the logarithms, so that they stay positive, to when the first
requests had their first and last tokens; so is the number of blocks where memory and not ``max_seqs`` bounds what runs.
How many tokens a request gets is taken as known. Shared prefixes and replicas that step together are not modelled.

Whoever plans a service of text would ask this how long requests wait under a load; the replicas of a service are
calibrated once they have served some.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 16
# Sizes for which decoding steps are recorded as CUDA graphs.
GRAPH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Arrival of a request, seconds, and its tokens in and out."""

    arrived_s: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Of the time of a step, seconds; the module says of what each is."""

    base: float
    sequence: float
    context: float
    prompt: float
    prompt_base: float
    mixed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Limits of a server: tokens and requests a step, blocks of 16 tokens in memory (None: never short)."""

    max_tokens: int = 2048
    max_seqs: int = 128
    blocks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """When each request had its first and its last token, seconds; NaN where it was not simulated so far."""

    first_s: NDArray[np.float64]
    last_s: NDArray[np.float64]


@dataclass(slots=True)
class _Sequence:
    """A request on its way.

    Attributes:
        target: Tokens to compute before the next one comes out.
        done: Tokens that are computed.
        generated: Tokens that came out.
        held: Blocks that it holds.
        cached: Blocks that it gave back and nobody has overwritten, from its beginning.
    """

    index: int
    target: int
    output: int
    done: int = 0
    generated: int = 0
    held: int = 0
    cached: int = 0

    @property
    def decodes(self) -> bool:
        """Whether all that was known of it is computed, so that each step gives a token."""
        return self.done >= self.target


class _Scheduler:
    """Who computes how many tokens in the next step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._free = engine.blocks if engine.blocks is not None else 1 << 60
        # Free blocks in the order in which they are overwritten: whose they were, and how many.
        self._order: deque[list[Any]] = deque([[None, self._free]])
        self.running: list[_Sequence] = []
        self.waiting: deque[_Sequence] = deque()

    def compose(self) -> list[tuple[_Sequence, int]]:
        """The sequences of a step with the tokens of each."""
        budget, chosen = self._engine.max_tokens, list[tuple[_Sequence, int]]()
        has_preempted, position = False, 0
        while position < len(self.running) and budget > 0:
            each = self.running[position]
            tokens = 1 if each.decodes else min(each.target - each.done, budget)
            blocks = max(0, -(-(each.done + tokens) // BLOCK) - each.held)
            while blocks > self._free and each in self.running:
                has_preempted = True
                self._preempt(self.running.pop())
            if each not in self.running:
                break
            self._take(each, blocks)
            budget -= tokens
            chosen.append((each, tokens))
            position += 1
        while self.waiting and not has_preempted and budget > 0 and len(self.running) < self._engine.max_seqs:
            each = self.waiting[0]
            if -(-each.target // BLOCK) > self._free:
                break
            self._take_back(each)
            tokens = min(each.target - each.done, budget)
            self._take(each, -(-each.target // BLOCK) - each.held)
            budget -= tokens
            self.running.append(self.waiting.popleft())
            chosen.append((each, tokens))
        return chosen

    def finish(self, each: _Sequence) -> None:
        """Take out one that has all its tokens."""
        self.running.remove(each)
        self._give(None, each.held)

    def _preempt(self, each: _Sequence) -> None:
        each.cached = min(each.held, each.done // BLOCK)
        self._give(None, each.held - each.cached)
        self._give(each, each.cached)
        each.target, each.done, each.held = max(each.target, each.done), 0, 0
        self.waiting.appendleft(each)

    def _take(self, each: _Sequence, blocks: int) -> None:
        each.held += blocks
        self._free -= blocks
        while blocks > 0:
            owner, num = self._order[0]
            used = min(num, blocks)
            blocks -= used
            self._order[0][1] -= used
            if owner is not None:
                owner.cached -= used
            if used == num:
                self._order.popleft()

    def _take_back(self, each: _Sequence) -> None:
        """What of its own blocks is still there; of the last of them at least one token is computed again."""
        self._order = deque(part for part in self._order if part[0] is not each)
        self._free -= each.cached
        each.held, each.done, each.cached = each.cached, min(each.cached * BLOCK, each.target - 1), 0

    def _give(self, each: _Sequence | None, blocks: int) -> None:
        if blocks > 0:
            self._free += blocks
            self._order.append([each, blocks])


def simulate(
    requests: Sequence[Request], coefficients: Coefficients, engine: Engine, *, until: int | None = None
) -> Served:
    """Serve all requests, which are in the order in which they came, or until the first so many are done."""
    first, last = np.full(len(requests), np.nan), np.full(len(requests), np.nan)
    scheduler = _Scheduler(engine)
    left = goal = len(requests) if until is None else until
    coming = 0
    now = end = 0.0
    while left:
        while coming < len(requests) and requests[coming].arrived_s <= now:
            asked = requests[coming]
            scheduler.waiting.append(_Sequence(coming, asked.prompt, asked.output))
            coming += 1
        chosen = scheduler.compose()
        if not chosen:
            if coming == len(requests):
                raise ValueError(f"a request needs more than the {engine.blocks} blocks that there are")
            now = end = max(end, requests[coming].arrived_s)
            continue
        begin, end = max(end, now), max(end, now) + _step_s(chosen, coefficients)
        for each, tokens in chosen:
            decoded = each.decodes
            each.done += tokens
            if not each.decodes:
                continue
            each.target = each.done if decoded else each.target
            each.generated += 1
            if each.generated == 1:
                first[each.index] = end
            if each.generated >= each.output:
                last[each.index] = end
                left -= each.index < goal
                scheduler.finish(each)
        now = begin
    return Served(first_s=first, last_s=last)


def _step_s(chosen: Sequence[tuple[_Sequence, int]], by: Coefficients) -> float:
    decoding = context = prompts = 0
    for each, tokens in chosen:
        if each.decodes:
            decoding += 1
            context += each.done
        else:
            prompts += tokens
    if not prompts:
        return by.base + by.sequence * (-(-decoding // GRAPH) * GRAPH) + by.context * context
    computing = by.prompt_base + by.prompt * (prompts + decoding)
    return max(by.base + by.sequence * decoding, computing) + by.context * context + by.mixed * decoding


def fit(
    requests: Sequence[Request], observed: Served, num: int, engine: Engine, *, evaluations: int = 240
) -> tuple[Coefficients, Engine]:
    """Coefficients from when the first ``num`` requests had their tokens; and blocks, where ``engine`` has a number.

    Args:
        engine: Its blocks are where the search begins.
        evaluations: Simulations that may be run, at most.
    """
    arrived = np.array([each.arrived_s for each in requests[:num]])
    outputs = np.array([max(1, each.output - 1) for each in requests[:num]])
    first, last = observed.first_s[:num], observed.last_s[:num]
    pace = (last - first) / outputs

    def loss(point: NDArray[np.float64]) -> float:
        try:
            found = simulate(requests, *_at(point, engine), until=num)
        except ValueError:
            return math.inf
        pairs = (
            (found.first_s[:num] - first, np.mean(first - arrived)),
            ((found.last_s[:num] - found.first_s[:num]) / outputs - pace, np.mean(pace)),
            (found.last_s[:num] - last, np.mean(last - arrived)),
        )
        # The mean is what is asked for, and each by itself keeps it from being right by chance.
        return float(sum((np.mean(np.abs(error)) + abs(np.mean(error))) / size for error, size in pairs))

    # A decoding step of some 30 sequences takes about as long as tokens are apart, a prompt's token a three-hundredth.
    typical = float(np.median(pace))
    begin = [0.6 * typical, 1e-3 * typical, 4e-6 * typical, 3e-3 * typical, 0.3 * typical, 6e-4 * typical]
    point = np.log(np.array(begin + ([float(engine.blocks)] if engine.blocks is not None else [])))
    best, used = loss(point), 1
    steps = np.full(len(point), 0.2)
    while used < evaluations and steps.max() > 0.002:
        for axis in range(len(point)):
            for sign in (1.0, -1.0):
                tried = point.copy()
                tried[axis] += sign * steps[axis]
                found = loss(tried)
                used += 1
                if found < best:
                    point, best = tried, found
                    steps[axis] *= 1.3
                    break
            else:
                steps[axis] *= 0.5
    return _at(point, engine)


def _at(point: NDArray[np.float64], engine: Engine) -> tuple[Coefficients, Engine]:
    base, sequence, context, prompt, prompt_base, mixed, *blocks = (float(each) for each in np.exp(point))
    found = Coefficients(
        base=base, sequence=sequence, context=context, prompt=prompt, prompt_base=prompt_base, mixed=mixed
    )  # fmt: skip
    if not blocks:
        return found, engine
    return found, Engine(max_tokens=engine.max_tokens, max_seqs=engine.max_seqs, blocks=round(blocks[0]))
