"""Simulates a text server with continuous batching step by step, for the times of first and last tokens.

The scheduler is that of vLLM (Kwon et al., SOSP 2023, with chunked prompts as in Agrawal et al., OSDI 2024): running
requests first, then others as long as blocks for their whole prompts are free, within limits on tokens and requests per
step, prompts in chunks; without free blocks the newest request is preempted and recomputed, as far as its blocks were
overwritten meanwhile. A step is composed while the previous one runs, once the one before that has ended. Replicas that
share experts (``ranks``) step together, each with its own blocks and limits; a request goes to the one with the least
``4 * waiting + running``.

With D decoding sequences with a context of S tokens, and P prompt tokens whose attention reads A pairs, a step takes

    base + sequence * (D rounded up to 8) + context * S           without prompts, and with them
    max(base + sequence * D, prompt_base + prompt * (P + D)) + mixed_context * S + attention * A + mixed * D

The number of output tokens is taken as known. Shared prefixes are not modelled.
"""

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

# The parts of a rank's step: whether it has prompts, decoding sequences, the same rounded up, S, P + D, A.
MIXED, DECODING, PADDED, CONTEXT, TOKENS, ATTENTION = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
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

    def values(self) -> tuple[float, ...]:
        """Return the coefficients in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Limits of a server.

    Attributes:
        max_tokens: Tokens per step.
        max_seqs: Concurrent requests.
        blocks: Blocks of 16 tokens in memory; None if memory is never short.
        ranks: Replicas that step together.
    """

    max_tokens: int = 2048
    max_seqs: int = 128
    blocks: int | None = None
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Times of the first and the last token of each request in seconds; NaN if not simulated."""

    first_s: NDArray[np.float64]
    last_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a simulation.

    Attributes:
        parts: A row per step, with the columns ``MIXED`` to ``ATTENTION``, of the rank that took longest.
        first, last: The steps in which requests had their first and last tokens; -1 if not simulated.
    """

    parts: NDArray[np.float64]
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

    def __init__(self, engine: Engine) -> None:
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

    def add(self, index: int, request: Request) -> None:
        """Add an arrived request under a unique number."""
        self.waiting.append(_Sequence(index, request.prompt, request.output))

    @property
    def num_running(self) -> int:
        """Return how many requests have blocks."""
        return len(self._running)

    def compose(self, step: int) -> tuple[float, ...] | None:
        """Return the parts of the step (``MIXED`` to ``ATTENTION``); None if there is nothing to do."""
        preempted = self._make_room(step)
        decoding, context = self.num_decoding, self._offsets + self.num_decoding * step
        self._take(self._phases[-step % BLOCK])
        budget, tokens, pairs = self._engine.max_tokens - decoding, 0, 0.0
        prompts = self._next_prompts(admits=not preempted)
        while budget > 0 and (each := next(prompts, None)) is not None:
            chunk = min(each.target - each.done, budget)
            pairs += chunk * (each.done + 0.5 * chunk)
            each.done += chunk
            budget -= chunk
            tokens += chunk
        if not decoding and not tokens:
            return None
        padded = -(-decoding // GRAPH) * GRAPH
        return float(tokens > 0), float(decoding), float(padded), float(context), float(tokens + decoding), pairs

    def _next_prompts(self, *, admits: bool) -> Iterator[_Sequence]:
        """Yield the next requests with prompt tokens left: begun ones, then others as they are admitted."""
        yield from tuple(self._prompts.values())
        while admits and self.waiting and len(self._running) < self._engine.max_seqs:
            each = self.waiting[0]
            blocks = -(-each.target // BLOCK)
            if blocks > self._free:
                return
            self._take_back(each)
            self._take(blocks - each.held)
            each.held = blocks
            self._running[each.index] = self._prompts[each.index] = self.waiting.popleft()
            yield each

    def advance(self, step: int) -> tuple[list[int], list[int]]:
        """Return the requests that had their first token in the step, and those that had their last."""
        first, last = list[int](), list[int]()
        while self._ends and self._ends[0][0] <= step:
            each = self._running.get(heappop(self._ends)[1])
            # One that was preempted meanwhile has another end.
            if each is not None and each.decodes and each.left <= step:
                last.append(each.index)
                self._leave(each, step + 1)
        ready = [each for each in self._prompts.values() if each.done >= each.target]
        for each in ready:
            first.append(each.index)
            del self._prompts[each.index]
            each.left -= 1
            if each.left <= 0:
                last.append(each.index)
                del self._running[each.index]
                self._give(None, each.held)
                continue
            # It decodes from the next step on.
            each.decodes = True
            each.done -= step + 1
            each.left += step
            heappush(self._ends, (each.left, each.index))
            self._phases[each.done % BLOCK] += 1
            self._offsets += each.done
            self.num_decoding += 1
        return first, last

    def _stop_decoding(self, each: _Sequence, step: int) -> None:
        self._phases[each.done % BLOCK] -= 1
        self._offsets -= each.done
        self.num_decoding -= 1
        each.decodes = False
        each.left -= step - 1
        each.done += step
        each.held = -(-each.done // BLOCK)

    def _leave(self, each: _Sequence, step: int) -> None:
        self._stop_decoding(each, step)
        del self._running[each.index]
        self._give(None, each.held)

    def _make_room(self, step: int) -> bool:
        """Preempt the newest requests until decoding ones find the blocks that they need in this step."""
        preempted = False
        while self._phases[-step % BLOCK] > self._free:
            each = self._running.pop(next(reversed(self._running)))
            preempted = True
            if each.decodes:
                self._stop_decoding(each, step)
            else:
                del self._prompts[each.index]
            each.cached = min(each.held, each.done // BLOCK)
            self._give(None, each.held - each.cached)
            self._give(each, each.cached)
            each.target, each.done, each.held = max(each.target, each.done), 0, 0
            self.waiting.appendleft(each)
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

    def _take_back(self, each: _Sequence) -> None:
        """Return the remaining cached blocks to a request; at least the last token is recomputed."""
        if each.cached:
            self._order = deque(part for part in self._order if part[0] is not each)
            self._free -= each.cached
        each.held, each.done, each.cached = each.cached, min(each.cached * BLOCK, each.target - 1), 0

    def _give(self, each: _Sequence | None, blocks: int) -> None:
        if blocks > 0:
            self._free += blocks
            self._order.append((each, blocks))


def simulate(requests: Sequence[Request], times: StepTimes, engine: Engine, *, until: int | None = None) -> Served:
    """Simulate all requests, given in order of arrival, or until the first ``until`` are done.

    Raises:
        ValueError: A request needs more blocks than exist.
    """
    return simulate_steps(requests, times, engine, until=until)[0]


def simulate_steps(
    requests: Sequence[Request], times: StepTimes, engine: Engine, *, until: int | None = None
) -> tuple[Served, Steps]:
    """Simulate requests as ``simulate`` does, and return the steps too."""
    num = len(requests)
    first, last = np.full(num, np.nan), np.full(num, np.nan)
    first_step, last_step = np.full(num, -1), np.full(num, -1)
    ranks = [Rank(engine) for _ in range(engine.ranks)]
    balancer = _Balancer(ranks)
    values, parts = times.values(), list[tuple[float, ...]]()
    left = goal = num if until is None else until
    arrivals = [each.arrived_s for each in requests]
    coming, step = 0, 0
    now = end = 0.0
    while left:
        while coming < num and arrivals[coming] <= now:
            balancer.choose(now).add(coming, requests[coming])
            coming += 1
        composed = [rank.compose(step) for rank in ranks]
        length, longest = 0.0, None
        for part in composed:
            if part is not None and (took := step_s(part, values)) > length:
                length, longest = took, part
        if longest is None:
            if coming == num:
                raise ValueError(f"a request needs more than the {engine.blocks} blocks that there are")
            now = end = max(end, arrivals[coming])
            continue
        begin = max(end, now)
        end = begin + length
        parts.append(longest)
        for rank in ranks:
            begun, ended = rank.advance(step)
            for index in begun:
                if first_step[index] < 0:
                    first[index], first_step[index] = end, len(parts) - 1
            for index in ended:
                last[index], last_step[index] = end, len(parts) - 1
                left -= index < goal
        step += 1
        now = begin
    return Served(first_s=first, last_s=last), Steps(parts=np.array(parts), first=first_step, last=last_step)


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
    base, sequence, context, prompt, prompt_base, mixed_context, attention, mixed = values
    is_mixed, decoding, padded, read, tokens, pairs = part
    if not is_mixed:
        return base + sequence * padded + context * read
    computing = prompt_base + prompt * tokens
    return max(base + sequence * decoding, computing) + mixed_context * read + attention * pairs + mixed * decoding
