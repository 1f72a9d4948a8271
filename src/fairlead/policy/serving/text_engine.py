"""Simulates a text server with continuous batching step by step, for the times of first and last tokens.

The scheduler is that of vLLM (Kwon et al., SOSP 2023, with chunked prompts as in Agrawal et al., OSDI 2024): running
requests first, then others as long as blocks for their whole prompts are free, within limits on tokens and requests per
step, prompts in chunks; without free blocks the newest request is preempted and recomputed, as far as its blocks were
overwritten meanwhile. A step is composed while the previous one runs, once the one before that has ended. Data-parallel
engines (``ranks``) have their own blocks and limits; a request goes to the one with the least
``4 * waiting + running``. Those that share experts step together.

With D decoding sequences with a context of S tokens, and P prompt tokens whose attention reads A pairs, a step takes

    read + sequence * (D rounded up to 8) + context * S                  without prompts, and with them
    max(read + sequence * D, prompt_base + prompt * (P + D)) + mixed_context * S + attention * A + mixed * D

with read = base + experts * E.

In a mixture of experts of which each token uses a share k, T tokens of all engines that step together read the part
``E = 1 - (1 - k) ** T`` of all experts, if the choices of tokens are independent.

The number of output tokens is taken as known. Shared prefixes are not modelled.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import fields
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from fairlead.frozen import dataclass

BLOCK = 16
# Batch sizes for which decoding steps are recorded as CUDA graphs are multiples of this.
GRAPH = 8
# The interval at which the balancer reads the load of each rank.
BALANCE_S = 0.1

# The parts of a rank's step: whether it has prompts, decoding sequences, the same rounded up, S, P + D, A, E.
MIXED, DECODING, PADDED, CONTEXT, TOKENS, ATTENTION, EXPERTS = range(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """Arrival of a request in seconds, and its prompt and output tokens."""

    arrived_s: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The coefficients of a step's time in seconds, as in the module's formula."""

    base: float
    sequence: float
    context: float
    prompt: float
    prompt_base: float
    mixed_context: float
    attention: float = 0.0
    mixed: float = 0.0
    experts: float = 0.0

    def values(self) -> tuple[float, ...]:
        """Return the coefficients in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits of a server.

    Attributes:
        max_tokens: Tokens per step.
        max_seqs: Concurrent requests.
        blocks: Blocks of 16 tokens in memory; None if memory is never short.
        ranks: Data-parallel engines.
        is_lockstep: Whether these step together, as engines that share experts do.
        expert_share: The share of the experts of a layer that a token uses, 0 to 1; 0 for a dense model.
    """

    max_tokens: int = 2048
    max_seqs: int = 128
    blocks: int | None = None
    ranks: int = 1
    is_lockstep: bool = True
    expert_share: float = 0.0

    def experts_read(self, tokens: float) -> float:
        """Return the part of the experts that a step with so many tokens reads."""
        return 1.0 - math.exp(tokens * math.log1p(-min(0.99, self.expert_share))) if self.expert_share else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Times of the first and the last token of each request in seconds; NaN if not simulated."""

    first_s: NDArray[np.float64]
    last_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSteps:
    """The steps of a simulation.

    Attributes:
        parts: A row per step, with the columns ``MIXED`` to ``EXPERTS``, of the rank that took longest. The steps of
            ranks that step by themselves follow each other.
        begin: The first step of the rank that served a request, or of the ranks that step together.
        arrival: The step that was composed next when a request arrived.
        first, last: The steps in which requests had their first and last tokens; -1 if not simulated.
    """

    parts: NDArray[np.float64]
    begin: NDArray[np.int64]
    arrival: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


@dataclass(slots=True)
class _Sequence:
    """The state of a request.

    Attributes:
        target: Tokens to compute before the next output token.
        done: Computed tokens; while it decodes, less the number of the step.
        left: Output tokens left; while it decodes, plus the number of the step.
        held: Blocks that it holds, while it does not decode.
        cached: Released blocks from its beginning that were not overwritten.
    """

    index: int
    target: int
    left: int
    done: int = 0
    held: int = 0
    cached: int = 0
    decodes: bool = False


class Rank:
    """One replica; schedules how many tokens of which requests are computed in the next step.

    The demands of decoding requests are kept as sums, so that a step costs the same for any number of them.
    """

    def __init__(self, engine: EngineLimits) -> None:
        self._engine = engine
        self._free = engine.blocks if engine.blocks is not None else 1 << 60
        # Free blocks in the order in which they are overwritten: their previous owner, and their number.
        self._order: deque[tuple[_Sequence | None, int]] = deque([(None, self._free)])
        self._running: dict[int, _Sequence] = {}
        self._prompts: dict[int, _Sequence] = {}
        self._ends: list[tuple[int, int]] = []
        # Decoding requests by their computed tokens, less the number of the step, modulo a block.
        self._phases = [0] * BLOCK
        self._offsets = 0
        self.num_decoding = 0
        self.waiting: deque[_Sequence] = deque()

    def add(self, index: int, request: EngineRequest) -> None:
        """Add an arrived request under a unique number."""
        self.waiting.append(_Sequence(index, request.prompt, request.output))

    @property
    def num_running(self) -> int:
        """Return how many requests have blocks."""
        return len(self._running)

    def compose(self, step: int) -> tuple[float, ...] | None:
        """Return the parts of the step (``MIXED`` to ``EXPERTS``); None if there is nothing to do."""
        preempted = self._make_room(step)
        decoding, context = self.num_decoding, self._offsets + self.num_decoding * step
        self._take(self._phases[-step % BLOCK])
        budget, tokens, pairs = self._engine.max_tokens - decoding, 0, 0.0
        prompts = self._next_prompts(admits=not preempted)
        while budget > 0 and (sequence := next(prompts, None)) is not None:
            chunk = min(sequence.target - sequence.done, budget)
            pairs += chunk * (sequence.done + 0.5 * chunk)
            sequence.done += chunk
            budget -= chunk
            tokens += chunk
        if not decoding and not tokens:
            return None
        padded = -(-decoding // GRAPH) * GRAPH
        computed = float(tokens + decoding)
        read = self._engine.experts_read(computed)
        return float(tokens > 0), float(decoding), float(padded), float(context), computed, pairs, read

    def _next_prompts(self, *, admits: bool) -> Iterator[_Sequence]:
        """Yield the next requests with prompt tokens left: begun ones, then others as they are admitted."""
        yield from tuple(self._prompts.values())
        while admits and self.waiting and len(self._running) < self._engine.max_seqs:
            sequence = self.waiting[0]
            blocks = -(-sequence.target // BLOCK)
            if blocks > self._free:
                return
            self._take_back(sequence)
            self._take(blocks - sequence.held)
            sequence.held = blocks
            self._running[sequence.index] = self._prompts[sequence.index] = self.waiting.popleft()
            yield sequence

    def advance(self, step: int) -> tuple[list[int], list[int]]:
        """Return the requests that had their first token in the step, and those that had their last."""
        first, last = list[int](), list[int]()
        while self._ends and self._ends[0][0] <= step:
            sequence = self._running.get(heappop(self._ends)[1])
            # One that was preempted meanwhile has another end.
            if sequence is not None and sequence.decodes and sequence.left <= step:
                last.append(sequence.index)
                self._leave(sequence, step + 1)
        ready = [entry for entry in self._prompts.values() if entry.done >= entry.target]
        for sequence in ready:
            first.append(sequence.index)
            del self._prompts[sequence.index]
            sequence.left -= 1
            if sequence.left <= 0:
                last.append(sequence.index)
                del self._running[sequence.index]
                self._give(None, sequence.held)
                continue
            # It decodes from the next step on.
            sequence.decodes = True
            sequence.done -= step + 1
            sequence.left += step
            heappush(self._ends, (sequence.left, sequence.index))
            self._phases[sequence.done % BLOCK] += 1
            self._offsets += sequence.done
            self.num_decoding += 1
        return first, last

    def _stop_decoding(self, sequence: _Sequence, step: int) -> None:
        self._phases[sequence.done % BLOCK] -= 1
        self._offsets -= sequence.done
        self.num_decoding -= 1
        sequence.decodes = False
        sequence.left -= step - 1
        sequence.done += step
        sequence.held = -(-sequence.done // BLOCK)

    def _leave(self, sequence: _Sequence, step: int) -> None:
        self._stop_decoding(sequence, step)
        del self._running[sequence.index]
        self._give(None, sequence.held)

    def _make_room(self, step: int) -> bool:
        """Preempt the newest requests until decoding ones find the blocks that they need in this step."""
        preempted = False
        while self._phases[-step % BLOCK] > self._free:
            sequence = self._running.pop(next(reversed(self._running)))
            preempted = True
            if sequence.decodes:
                self._stop_decoding(sequence, step)
            else:
                del self._prompts[sequence.index]
            sequence.cached = min(sequence.held, sequence.done // BLOCK)
            self._give(None, sequence.held - sequence.cached)
            self._give(sequence, sequence.cached)
            sequence.target, sequence.done, sequence.held = max(sequence.target, sequence.done), 0, 0
            self.waiting.appendleft(sequence)
        return preempted

    def _take(self, blocks: int) -> None:
        self._free -= blocks
        while blocks > 0:
            owner, num = self._order.popleft()
            used = min(num, blocks)
            blocks -= used
            if owner is not None:
                owner.cached -= used
            if used < num:
                self._order.appendleft((owner, num - used))

    def _take_back(self, sequence: _Sequence) -> None:
        """Return the remaining cached blocks to a request; at least the last token is recomputed."""
        if sequence.cached:
            self._order = deque(part for part in self._order if part[0] is not sequence)
            self._free -= sequence.cached
        sequence.held, sequence.done, sequence.cached = (
            sequence.cached,
            min(sequence.cached * BLOCK, sequence.target - 1),
            0,
        )

    def _give(self, sequence: _Sequence | None, blocks: int) -> None:
        if blocks > 0:
            self._free += blocks
            self._order.append((sequence, blocks))


def simulate(
    requests: Sequence[EngineRequest], times: StepTimes, engine: EngineLimits, *, until: int | None = None
) -> Served:
    """Simulate all requests, given in order of arrival, or until the first ``until`` are done.

    Raises:
        ValueError: A request needs more blocks than exist.
    """
    return simulate_steps(requests, times, engine, until=until)[0]


def simulate_steps(
    requests: Sequence[EngineRequest], times: StepTimes, engine: EngineLimits, *, until: int | None = None
) -> tuple[Served, EngineSteps]:
    """Simulate requests as ``simulate`` does, and return the steps too."""
    num = len(requests)
    first, last = np.full(num, np.nan), np.full(num, np.nan)
    first_step, last_step, arrival_step = np.full(num, -1), np.full(num, -1), np.full(num, -1)
    ranks = [Rank(engine) for _ in range(engine.ranks)]
    groups = [_Group(ranks)] if engine.is_lockstep else [_Group([rank]) for rank in ranks]
    group_of = {id(rank): group for group in groups for rank in group.ranks}
    served_by = np.zeros(num, dtype=np.int64)
    balancer = _Balancer(ranks)
    values = times.values()
    left = goal = num if until is None else until
    arrivals = [request.arrived_s for request in requests]
    coming = 0
    while left:
        group = groups[0] if len(groups) == 1 else min(groups, key=lambda entry: entry.now)
        if coming < num and arrivals[coming] <= group.now:
            at = arrivals[coming]
            rank = balancer.choose(group.now if group.now < math.inf else at)
            rank.add(coming, requests[coming])
            chosen = group_of[id(rank)]
            if chosen.now == math.inf:
                chosen.now = chosen.end = max(chosen.end, at)
            served_by[coming], arrival_step[coming] = groups.index(chosen), len(chosen.parts)
            coming += 1
            continue
        if group.now == math.inf:
            raise ValueError(f"a request needs more than the {engine.blocks} blocks that there are")
        for begun, ended in group.step(values, engine):
            for index in begun:
                if first_step[index] < 0:
                    first[index], first_step[index] = group.end, len(group.parts) - 1
            for index in ended:
                last[index], last_step[index] = group.end, len(group.parts) - 1
                left -= index < goal
    offsets = np.cumsum([0, *(len(group.parts) for group in groups)])
    begin = offsets[:-1][served_by]
    steps = EngineSteps(
        parts=np.array([part for group in groups for part in group.parts]),
        begin=begin,
        arrival=begin + arrival_step,
        first=np.where(first_step < 0, -1, begin + first_step),
        last=np.where(last_step < 0, -1, begin + last_step),
    )
    return Served(first_s=first, last_s=last), steps


class _Group:
    """Ranks that step together.

    Attributes:
        now: When the next step is composed; infinite if there is nothing to do.
        end: When the last one ends.
        parts: The parts of its steps, of the rank that took longest.
    """

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self.ranks = ranks
        self.now, self.end = math.inf, 0.0
        self.parts: list[tuple[float, ...]] = []

    def step(self, values: Sequence[float], engine: EngineLimits) -> list[tuple[list[int], list[int]]]:
        """Make a step; return for each rank the requests that had their first token in it, and their last."""
        number = len(self.parts)
        composed = [part for rank in self.ranks if (part := rank.compose(number)) is not None]
        if not composed:
            self.now = math.inf
            return []
        if len(self.ranks) > 1 and engine.expert_share:
            read = engine.experts_read(sum(part[TOKENS] for part in composed))
            composed = [(*part[:EXPERTS], read) for part in composed]
        longest = max(composed, key=lambda part: step_s(part, values))
        begin = max(self.end, self.now)
        self.now, self.end = begin, begin + step_s(longest, values)
        self.parts.append(longest)
        return [rank.advance(number) for rank in self.ranks]


class _Balancer:
    """Sends requests to the rank with the least load, by periodically refreshed counts."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = ranks
        self._loads = [0] * len(ranks)
        self._looks_at = 0.0

    def choose(self, now: float) -> Rank:
        if len(self._ranks) == 1:
            return self._ranks[0]
        if now >= self._looks_at:
            self._loads = [4 * len(rank.waiting) + rank.num_running for rank in self._ranks]
            self._looks_at = now + BALANCE_S
        chosen = min(range(len(self._ranks)), key=self._loads.__getitem__)
        self._loads[chosen] += 4
        return self._ranks[chosen]


def step_s(part: Sequence[float], values: Sequence[float]) -> float:
    """Return the seconds of a step with these parts, by the coefficients of ``StepTimes.values``."""
    base, sequence, context, prompt, prompt_base, mixed_context, attention, mixed, experts = values
    is_mixed, decoding, padded, read, tokens, pairs, experts_read = part
    base += experts * experts_read
    if not is_mixed:
        return base + sequence * padded + context * read
    computing = prompt_base + prompt * tokens
    return max(base + sequence * decoding, computing) + mixed_context * read + attention * pairs + mixed * decoding
