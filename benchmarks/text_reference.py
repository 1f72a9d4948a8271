"""Runs of text servers for `benchmarks.text_serving`, made by a simulation that is finer than the predicting one.

    python -m benchmarks.text_reference --out DIR [--only TEXT] [--seed 1]

Each run is 300 requests with the lengths of a chat, to one or two engines of vLLM on a GPU each, below, about and above
what they can serve, with a dense model or a mixture of experts, with much memory or little. DIR gets
RUN.requests.jsonl in the format that `benchmarks.text_serving` reads, and RUN.engine.json, the facts that an operator
of such a server knows.

Finer means: every layer's products in tiles, a choice of experts that favours some, the slowest rank of an exchange,
blocks one by one, the host's time and its noise. Nothing of `fairlead.policy.serving` is used.
"""

import argparse
import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

BLOCK = 16
NUM_REQUESTS = 300
BANDWIDTH, FLOPS, LINK = 1.45e12, 3.2e14, 2.6e10
MAX_TOKENS, MAX_SEQS = 2048, 128


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a transformer; `experts` of 0 for a dense one."""

    layers: int
    hidden: int
    key_value: int
    inner: int
    vocabulary: int
    experts: int = 0
    used: int = 0


DENSE = Model(layers=32, hidden=4096, key_value=1024, inner=14336, vocabulary=128256)
MIXTURE = Model(layers=48, hidden=2048, key_value=512, inner=768, vocabulary=151936, experts=128, used=8)


@dataclass(frozen=True, slots=True)
class Run:
    """A server and the rate of requests to it; `blocks` are those of each engine."""

    name: str
    model: Model
    engines: int
    rate: float
    blocks: int


def runs() -> list[Run]:
    """Return all runs: below, about and above saturation, with much and little memory."""
    made = []
    for kind, model, rates, little in (
        ("dense", DENSE, (2.0, 3.5, 8.0), 3000),
        ("experts", MIXTURE, (2.5, 5.0, 12.0), 3000),
    ):
        for engines in (1, 2):
            for load, rate in zip(("below", "near", "above"), rates, strict=True):
                for memory, blocks in (("much", 30000), ("little", little)):
                    made.append(Run(f"{kind}-{engines}-{load}-{memory}", model, engines, rate * engines, blocks))
    return made


@dataclass(slots=True)
class Request:
    """A request and its progress."""

    number: int
    prompt: int
    output: int
    sent: float
    queued: float = 0.0
    scheduled: float = 0.0
    first: float = 0.0
    last: float = 0.0
    computed: int = 0
    generated: int = 0
    blocks: list[int] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)


class Server:
    """One engine: its scheduler and its blocks."""

    def __init__(self, blocks: int) -> None:
        self.free = deque(range(blocks))
        # How often a block was written; a request finds its own again as long as that has not changed.
        self.versions = [0] * blocks
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.inbox: list[Request] = []
        self.num_preempted = 0
        # The end of the last step, the time at which the next one is composed, and what it holds.
        self.end = 0.0
        self.at = 0.0

    def compose(self, now: float) -> list[tuple[Request, int]]:
        """Return requests with the number of their tokens in the next step."""
        for request in self.inbox:
            request.queued = now
            self.waiting.append(request)
        self.inbox = []
        budget, step, preempted = MAX_TOKENS, list[tuple[Request, int]](), False
        place = 0
        while place < len(self.running) and budget > 0:
            request = self.running[place]
            tokens = min(request.prompt + request.generated - request.computed, budget)
            while not self._allocate(request, request.computed + tokens):
                victim = self.running.pop()
                self._release(victim, keep=True)
                budget += sum(num for entry, num in step if entry is victim)
                step = [pair for pair in step if pair[0] is not victim]
                self.waiting.appendleft(victim)
                self.num_preempted += 1
                preempted = True
                if victim is request:
                    break
            else:
                step.append((request, tokens))
                budget -= tokens
                place += 1
                continue
            break
        while not preempted and self.waiting and budget > 0 and len(self.running) < MAX_SEQS:
            request = self.waiting[0]
            total = request.prompt + request.generated
            cached = self._cached(request)
            if -(-total // BLOCK) - cached > len(self.free) - cached:
                break
            self.waiting.popleft()
            for block, _ in request.lost[:cached]:
                self.free.remove(block)
                request.blocks.append(block)
            request.lost = []
            request.computed = min(cached * BLOCK, total - 1)
            assert self._allocate(request, total)
            self.running.append(request)
            request.scheduled = request.scheduled or now
            tokens = min(total - request.computed, budget)
            step.append((request, tokens))
            budget -= tokens
        return step

    def advance(self, step: Sequence[tuple[Request, int]], end: float) -> int:
        """Count what a step has computed; return how many requests are over."""
        over = 0
        for request, tokens in step:
            request.computed += tokens
            if request.computed < request.prompt + request.generated:
                continue
            request.generated += 1
            request.first = request.first or end
            if request.generated == request.output:
                request.last = end
                self.running.remove(request)
                self._release(request, keep=False)
                over += 1
        return over

    def _allocate(self, request: Request, tokens: int) -> bool:
        missing = -(-tokens // BLOCK) - len(request.blocks)
        if missing > len(self.free):
            return False
        for _ in range(missing):
            block = self.free.popleft()
            self.versions[block] += 1
            request.blocks.append(block)
        return True

    def _release(self, request: Request, *, keep: bool) -> None:
        if keep:
            full = request.computed // BLOCK
            request.lost = [(block, self.versions[block]) for block in request.blocks[:full]]
            request.computed = 0
        self.free.extend(reversed(request.blocks))
        request.blocks = []

    def _cached(self, request: Request) -> int:
        cached = 0
        for block, version in request.lost:
            if self.versions[block] != version:
                break
            cached += 1
        return min(cached, (request.prompt + request.generated - 1) // BLOCK)


class Kernels:
    """The time of a step on a GPU, layer by layer."""

    def __init__(self, model: Model, engines: int, rng: np.random.Generator) -> None:
        self.model, self.engines, self.rng = model, engines, rng
        # Some experts are chosen more often, others in each layer.
        popular = rng.dirichlet(np.full(max(1, model.experts), 4.0), size=4)
        self.popular = popular

    def product(self, rows: int, inner: int, columns: int) -> float:
        """Return the seconds of a product of matrices: reading the weights, or tiles of 64 rows."""
        read = 2.0 * inner * columns / BANDWIDTH
        padded = 64 * math.ceil(rows / 64) if rows > 32 else 32
        return max(read, 2.0 * padded * inner * columns / FLOPS) + 2.5e-6

    def experts(self, tokens: int) -> float:
        """Return the seconds of a layer's experts on the slowest rank, for tokens of all ranks together."""
        model = self.model
        own = model.experts // self.engines
        slowest = 0.0
        for weights in self.popular:
            missed = np.exp(tokens * np.log1p(-np.minimum(0.95, weights * model.used)))
            loads = weights * model.used * tokens
            for rank in range(self.engines):
                part = slice(rank * own, (rank + 1) * own)
                used = self.rng.binomial(1, 1.0 - missed[part]).sum()
                rows = float(np.sum(np.maximum(loads[part], 0.0)))
                # Tiles of 16 rows, partly empty.
                rows += 8.0 * used
                size = 3.0 * model.hidden * model.inner
                slowest += max(2.0 * size * used / BANDWIDTH, 2.0 * rows * size / (0.7 * FLOPS)) / self.engines
        layer = slowest / len(self.popular) + 9e-6
        if self.engines > 1:
            layer += 2.0 * (1.5e-5 + 2.0 * tokens * model.hidden / self.engines / LINK)
        return layer

    def step(self, step: Sequence[tuple[Request, int]], all_tokens: int) -> float:
        """Return the seconds of one engine's step; `all_tokens` are those of all engines."""
        model = self.model
        tokens = max(1, sum(num for _, num in step))
        decoding = [request.computed for request, num in step if num == 1 and request.computed >= request.prompt]
        graphs = len(decoding) == len(step) and tokens <= 512
        rows = 8 * math.ceil(tokens / 8) if graphs else tokens
        layer = self.product(rows, model.hidden, model.hidden + 2 * model.key_value)
        layer += self.product(rows, model.hidden, model.hidden)
        if model.experts:
            layer += self.experts(max(1, all_tokens))
        else:
            layer += self.product(rows, model.hidden, 2 * model.inner) + self.product(rows, model.inner, model.hidden)
        context = sum(decoding)
        # A long context among short ones keeps its part of the GPU busy alone.
        longest = max(decoding, default=0)
        layer += 4.0 * model.key_value * (0.96 * context + 0.6 * longest) / BANDWIDTH
        pairs = sum(num * (request.computed + num / 2) for request, num in step if num > 1)
        layer += 4.0 * model.hidden * pairs / (0.5 * FLOPS) + 1.2e-5
        head = self.product(min(tokens, len(step) + 1), model.hidden, model.vocabulary)
        host = 0.0012 + 1.1e-5 * len(step) if graphs else 0.0035 + 1.6e-5 * len(step) + 4e-7 * tokens
        noise = math.exp(0.015 * self.rng.standard_normal())
        hiccup = 0.02 * self.rng.random() if self.rng.random() < 0.002 else 0.0
        return (model.layers * layer + head) * noise + host + hiccup


def serve(run: Run, seed: int) -> tuple[list[Request], int]:
    """Return the served requests, and how many preemptions there were."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1.0 / run.rate, NUM_REQUESTS))
    prompts = np.clip(rng.lognormal(6.4, 0.85, NUM_REQUESTS), 8, 6000).astype(int)
    outputs = np.clip(rng.lognormal(6.2, 0.75, NUM_REQUESTS), 4, 3000).astype(int)
    requests = [Request(i, int(prompts[i]), int(outputs[i]), float(at[i])) for i in range(NUM_REQUESTS)]
    servers = [Server(run.blocks) for _ in range(run.engines)]
    kernels = Kernels(run.model, run.engines, rng)
    together = run.model.experts > 0 and run.engines > 1
    loads, refreshed = [0] * run.engines, -1.0
    coming, left = 0, NUM_REQUESTS
    offsets = [2e-4 * (1 + rank) for rank in range(run.engines)]

    def arrive(until: float) -> None:
        nonlocal coming, refreshed
        while coming < NUM_REQUESTS and requests[coming].sent <= until:
            request = requests[coming]
            if request.sent >= refreshed + 0.1:
                loads[:] = [4 * (len(server.waiting) + len(server.inbox)) + len(server.running) for server in servers]
                refreshed = request.sent
            chosen = min(range(run.engines), key=loads.__getitem__)
            loads[chosen] += 1
            servers[chosen].inbox.append(request)
            coming += 1

    groups = [servers] if together else [[server] for server in servers]
    while left:
        group = min(groups, key=lambda entry: entry[0].at)
        now = group[0].at
        arrive(now)
        steps = [server.compose(now) for server in group]
        if not any(steps):
            soonest = requests[coming].sent + 1e-3 if coming < NUM_REQUESTS else math.inf
            for server in group:
                server.at = max(soonest, server.end)
            continue
        all_tokens = sum(num for step in steps for _, num in step)
        begin = max(now, group[0].end)
        end = begin + max(kernels.step(step, all_tokens) for step in steps)
        for server, step in zip(group, steps, strict=True):
            offset = offsets[servers.index(server)] * math.exp(0.3 * rng.standard_normal())
            left -= server.advance(step, end + offset)
            # The next step is composed once the one before this has ended, which is when this one begins.
            server.at, server.end = begin, end
    return requests, sum(server.num_preempted for server in servers)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--only", default="", help="only runs whose name has this text")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(runs()):
        if options.only not in run.name:
            continue
        requests, preempted = serve(run, 1000 * options.seed + number)
        rows = [
            {
                "input_toks": request.prompt, "output_toks": request.output, "queued_ts": request.queued,
                "scheduled_ts": request.scheduled, "first_token_ts": request.first, "last_token_ts": request.last,
            }
            for request in requests
        ]  # fmt: skip
        text = "".join(json.dumps(row) + "\n" for row in rows)
        Path(options.out, f"{run.name}.requests.jsonl").write_text(text, encoding="utf-8")
        facts = {"engines": run.engines, "blocks": run.blocks}
        if run.model.experts:
            facts |= {"experts": run.model.experts, "experts_per_token": run.model.used}
        Path(options.out, f"{run.name}.engine.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
        waits = [request.first - request.queued for request in requests]
        paces = [(request.last - request.first) / max(1, request.output - 1) for request in requests]
        ended = max(request.last for request in requests)
        first_ms, further_ms = 1e3 * float(np.mean(waits)), 1e3 * float(np.mean(paces))
        print(
            f"{run.name:<28} first token {first_ms:9.1f} ms, further {further_ms:6.2f} ms, "
            f"{preempted} preempted, {ended:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
