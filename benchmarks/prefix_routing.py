"""Seconds to the first token behind several text servers, by the rule that chooses the server of a request.

    python -m benchmarks.prefix_routing [--data DIR] [--loads chats,assistants,adapters,mooncake] [--minutes 3]
                                        [--rules least,hash,tree,prefix] [--gateways 1,2] [--played] [--json]

Eight vLLM with an 8B model on an A100-80GB are simulated, with step times of the data sheet. Each keeps the blocks of
prompts and answers that fit into its memory, and drops the least recently used; tokens of a cached prefix are not
computed again. It has eight adapters (LoRA) loaded. Another one waits until no running request uses one of them, and
takes 50 ms of the server's time. Gateways have counts and memories of their own, and requests come to one at random.

- chats: conversations of five turns on average behind one system prompt of 300 tokens, with turns of 150 tokens and
  answers of 250 (means of exponential distributions), 20 s between an answer and the next turn; 90 requests a second
- assistants: the same, each behind one of 200 system prompts of 3,000 tokens, by Zipf's law; 40 a second
- adapters: chats with 64 adapters, by Zipf's law; 60 a second
- mooncake: prompts of a real service by the hashes of their blocks, at .7 of their pace, if DIR has
  llm/mooncake_conversation.jsonl (Qin et al., FAST 2025); 12,000 tokens on average, few of which were there before

Rules: `least` is the fewest outstanding requests. `hash` is consistent hashing with bounded loads (Mirrokni et al.,
SODA 2018) by the beginning of the conversation, or by adapters where there are any. `tree` goes to the longest match if
that is half of the prompt, unless loads differ much, and else to the fewest requests. `prefix` is the gateway's.

`--played` instead starts four real servers behind a real gateway, with 12 clients at a time. They only play a model:
the computation of a prompt is a fixed amount of processor time for each 128 tokens that are not in the server's cache.
"""

import argparse
import asyncio
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil

from benchmarks import gateway as doors
from benchmarks.data import folder_of
from benchmarks.text_autoscaling import LLAMA
from fairlead.gateway.prefix_affinity import PrefixAffinity, Prompt, read_prompt, weight
from fairlead.gateway.routes import Backend, RevisionRoute, ServiceRoute
from fairlead.gateway.services import ReplicaLease, RoutedService
from fairlead.policy.serving.text_capacity import blocks_of, by_data_sheet
from fairlead.policy.serving.text_engine import BLOCK, GRAPH, EngineLimits, StepTimes, step_s
from fairlead.policy.strategy.gpus import find
from fairlead.policy.strategy.transformer import hugging_face
from tests.ports import free_ports

TOKENS = 128
"""Tokens of a block here, as many as the gateway's have about."""
SERVERS, SLOTS, LOAD_S = 8, 8, 0.05
RULES = ("least", "hash", "tree", "prefix")
PLACES = 4.0


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of conversations; see above."""

    per_s: float
    system: int = 300
    prompts: int = 1
    adapters: int = 0


LOADS = {"chats": Load(90.0), "assistants": Load(40.0, 3_000, 200), "adapters": Load(60.0, adapters=64)}
MOONCAKE, PACE = "mooncake", 0.7


@dataclass(slots=True)
class Request:
    """A request and how far it has come.

    Attributes:
        after: Blocks that are cached beside those of its prompt once it has been answered.
        then: Makes the next turn of the conversation, given when this one was answered.
    """

    arrived: float
    tokens: int
    output: int
    prompt: Prompt
    after: tuple[bytes, ...] = ()
    then: "Callable[[float], Request] | None" = None
    cached: int = 0
    done: int = 0
    own: int = 0
    first: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class Server:
    """A simulated server with a prefix cache and adapters.

    Attributes:
        cache: Blocks that no running request uses, the least recently used first.
        used: How many running requests use a block.
        own: Blocks that only one running request uses, for its answer and the rest of its prompt.
        adapters: Loaded adapters and the running requests of each, the least recently used first.
    """

    times: StepTimes
    blocks: int
    limits: EngineLimits = field(default_factory=EngineLimits)
    now: float = 0.0
    step: int = 0
    cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    used: dict[bytes, int] = field(default_factory=dict)
    own: int = 0
    adapters: OrderedDict[str, int] = field(default_factory=OrderedDict)
    num_loads: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    computing: list[Request] = field(default_factory=list)
    ends: list[tuple[int, int, Request]] = field(default_factory=list)
    context: int = 0
    given: int = 0

    def add(self, request: Request, at: float) -> None:
        if not self.is_busy:
            self.now = max(self.now, at)
        self.waiting.append(request)

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.computing or self.ends)

    def run(self, until: float) -> Iterator[Request]:
        """Run the steps that begin before then, and yield the requests that end."""
        while self.now < until and self.is_busy:
            self.now += self._admit()
            decoding = len(self.ends)
            padded = -(-decoding // GRAPH) * GRAPH
            if self.computing:
                budget, pairs, tokens = self.limits.max_tokens - decoding, 0.0, 0
                for each in self.computing:
                    part = min(each.tokens - each.done, budget)
                    pairs += part * (each.done + 0.5 * part)
                    each.done += part
                    budget -= part
                    tokens += part
                parts = (1.0, decoding, padded, self.context, tokens + decoding, pairs)
                self.now += step_s(parts, self.times.values())
                num = 1
            elif decoding:
                # Several steps at once, until one ends or another request arrives.
                num = self.ends[0][0] - self.step
                base = step_s((0.0, decoding, padded, self.context, decoding, 0.0), self.times.values())
                num = max(1, min(num, math.ceil((until - self.now) / base)))
                self.now += num * base + self.times.context * decoding * num * (num - 1) / 2
            else:
                raise ValueError("a request needs more memory than there is")
            self.step += num
            self.context += decoding * num
            while self.ends and self.ends[0][0] <= self.step:
                ended = heappop(self.ends)[2]
                self.context -= ended.tokens + ended.output - 1
                yield self._leave(ended)
            for each in [each for each in self.computing if each.done >= each.tokens]:
                self.computing.remove(each)
                each.first = self.now
                if each.output <= 1:
                    yield self._leave(each)
                    continue
                self.given += 1
                self.context += each.tokens
                heappush(self.ends, (self.step + each.output - 1, self.given, each))

    def _admit(self) -> float:
        """Admit waiting requests, first in, first out. Return the seconds that adapters took to load."""
        loading = 0.0
        while self.waiting and len(self.ends) + len(self.computing) < self.limits.max_seqs:
            each = self.waiting[0]
            adapter = each.prompt.model
            if adapter and adapter not in self.adapters and len(self.adapters) >= SLOTS:
                unused = next((name for name, num in self.adapters.items() if not num), None)
                if unused is None:
                    break
                del self.adapters[unused]
            own = -(-(each.tokens + each.output) // TOKENS) - len(each.prompt.blocks)
            new = sum(block not in self.used for block in each.prompt.blocks)
            if len(self.used) + self.own + new + own > self.blocks:
                break
            self.waiting.popleft()
            if adapter:
                if adapter not in self.adapters:
                    loading += LOAD_S
                    self.num_loads += 1
                self.adapters[adapter] = self.adapters.get(adapter, 0) + 1
                self.adapters.move_to_end(adapter)
            there = 0
            while there < len(each.prompt.blocks) and (
                each.prompt.blocks[there] in self.cache or each.prompt.blocks[there] in self.used
            ):
                there += 1
            each.cached = each.done = min(there * TOKENS, each.tokens - 1)
            each.own = own
            self.own += own
            for block in each.prompt.blocks:
                self.cache.pop(block, None)
                self.used[block] = self.used.get(block, 0) + 1
            self._evict()
            self.computing.append(each)
        return loading

    def _leave(self, each: Request) -> Request:
        each.last = self.now
        if each.prompt.model:
            self.adapters[each.prompt.model] -= 1
        self.own -= each.own
        # The end of a prompt is dropped before its beginning.
        for block in (*reversed(each.after), *reversed(each.prompt.blocks)):
            num = self.used.pop(block, 1) - 1
            if num:
                self.used[block] = num
            else:
                self.cache[block] = None
                self.cache.move_to_end(block)
        self._evict()
        return each

    def _evict(self) -> None:
        while self.cache and len(self.used) + self.own + len(self.cache) > self.blocks:
            self.cache.popitem(last=False)


class Gateway:
    """A gateway by one of the rules: the product's own service, or another choice with its counts."""

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.ids = [f"replica-{number}" for number in range(SERVERS)]
        backends = tuple(Backend(each, "127.0.0.1", 80) for each in self.ids)
        route = ServiceRoute(
            "m", "/m", (), None, 60.0, False, None, 100, (RevisionRoute("r1", 1, False, backends),), None,
            places=PLACES, by_prefix=rule == "prefix",
        )  # fmt: skip
        self.service: RoutedService[None] = RoutedService(route)
        self.service.update(route)
        self._known = PrefixAffinity()

    def take(self, request: Request, now: float) -> ReplicaLease[None]:
        if self.rule in ("least", "prefix"):
            given = self.service.take(now, request.prompt)
        else:
            chosen = self._hashed(request.prompt) if self.rule == "hash" else self._longest(request)
            revision = self.service.revisions[0]
            every = revision.replicas
            revision.replicas = [each for each in every if each.id == chosen]
            given = self.service.take(now)
            revision.replicas = every
        assert given is not None
        return given

    def _hashed(self, prompt: Prompt) -> str:
        loads = {each.id: each.outstanding for each in self.service.revisions[0].replicas}
        most = math.ceil(1.25 * (sum(loads.values()) + 1) / len(loads))
        key = prompt.model.encode() or prompt.opening
        return max((each for each in loads if loads[each] < most), key=lambda each: weight(key, each))

    def _longest(self, request: Request) -> str:
        replicas = self.service.revisions[0].replicas
        loads = {each.id: each.outstanding for each in replicas}
        fewest = min(replicas, key=lambda each: (each.outstanding, each.turn)).id
        matches = self._known.matches(request.prompt, loads)
        best = max(loads, key=lambda each: (matches.get(each, 0), -loads[each]))
        uneven = max(loads.values()) > 32 + min(loads.values()) and max(loads.values()) > 1.1 * min(loads.values())
        chosen = fewest if uneven or matches.get(best, 0) * TOKENS < 0.5 * request.tokens else best
        self._known.note(request.prompt, chosen)
        return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=folder_of("llm"), default=Path("../shared/traces/llm"), help="folder of the trace"
    )
    parser.add_argument("--loads", type=lambda text: text.split(","), help="these only (default all)")
    parser.add_argument("--rules", type=lambda text: text.split(","), default=RULES, help="these only (default all)")
    parser.add_argument("--gateways", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2])
    parser.add_argument("--minutes", type=float, default=3.0, help="simulated minutes (default 3; mooncake ten times)")
    parser.add_argument("--seed", type=int, default=1, help="of the loads (default 1)")
    parser.add_argument("--played", action="store_true", help="real servers and a real gateway, by least and prefix")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of --played (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        asyncio.run(serve(arguments.serve))
        return
    rows = played(arguments.rounds) if arguments.played else simulated(arguments)
    width = 0
    for row in rows:
        if arguments.json:
            print(json.dumps(row), flush=True)
            continue
        if not width:
            width = 1
            print("".join(f"{name:>13}" for name in row))
        print(
            "".join(f"{value:>13.3f}" if isinstance(value, float) else f"{value:>13}" for value in row.values()),
            flush=True,
        )


def simulated(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each load, number of gateways and rule."""
    trace = arguments.data / "mooncake_conversation.jsonl"
    names = arguments.loads or [*LOADS, *([MOONCAKE] if trace.exists() else [])]
    for name in names:
        for num_gateways in arguments.gateways:
            for rule in arguments.rules:
                seconds = arguments.minutes * 60
                if name == MOONCAKE:
                    begun = list(of_trace(trace, 10 * seconds))
                else:
                    begun = list(conversations(LOADS[name], seconds, arguments.seed))
                yield {"load": name, "gateways": num_gateways, "rule": rule, **simulate(begun, rule, num_gateways)}


def simulate(begun: list[Request], rule: str, num_gateways: int) -> dict[str, float]:
    """Serve conversations that begin with these requests, whose next turns come until the last one has begun."""
    shape, gpu = hugging_face(LLAMA, 8192), find("A100-80GB")
    assert gpu is not None
    times, blocks = by_data_sheet(shape, gpu, 1), blocks_of(shape, gpu, 1) * BLOCK // TOKENS
    servers = {f"replica-{number}": Server(times, blocks) for number in range(SERVERS)}
    gateways = [Gateway(rule) for _ in range(num_gateways)]
    rng = random.Random(0)
    coming = [(each.arrived, number, each) for number, each in enumerate(begun)]
    until, number = max(each.arrived for each in begun), len(begun)
    where: dict[int, tuple[Gateway, ReplicaLease[None]]] = {}
    ended: list[Request] = []
    while coming or any(each.is_busy for each in servers.values()):
        now = coming[0][0] if coming else math.inf
        busy = [each for each in servers.values() if each.is_busy and each.now < now]
        if not busy:
            _, _, request = heappop(coming)
            gateway = rng.choice(gateways)
            given = gateway.take(request, now)
            where[id(request)] = gateway, given
            servers[given.replica.id].add(request, now)
            continue
        # The one that is most behind, for a while, as answers bring further requests.
        last = min(busy, key=lambda each: each.now)
        for each in last.run(min(now, last.now + 0.25)):
            gateway, given = where.pop(id(each))
            gateway.service.release(given, each.last)
            ended.append(each)
            if each.then is not None:
                following = each.then(each.last)
                if following.arrived <= until:
                    number += 1
                    heappush(coming, (following.arrived, number, following))
    first = sorted(each.first - each.arrived for each in ended)
    return {
        "requests": len(ended),
        "first mean": mean(first),
        "first p50": first[len(first) // 2],
        "first p99": first[99 * len(first) // 100],
        "whole mean": mean(each.last - each.arrived for each in ended),
        "cached": sum(each.cached for each in ended) / sum(each.tokens for each in ended),
        "loads": sum(each.num_loads for each in servers.values()),
    }


def conversations(load: Load, seconds: float, seed: int) -> Iterator[Request]:
    """Yield the first requests of conversations that begin within some time."""
    rng = random.Random(seed)
    now, number = 0.0, 0
    while (now := now + rng.expovariate(load.per_s / 5)) < seconds:
        number += 1
        system = _zipf(rng, load.prompts)
        adapter = f"adapter-{_zipf(rng, load.adapters)}" if load.adapters else ""
        turns = 1 + min(19, int(rng.expovariate(1 / 4.5)))
        yield _turn(now, load, (system, adapter, number), turns, load.system, random.Random(rng.getrandbits(32)))


def _turn(at: float, load: Load, of: tuple[int, str, int], turns: int, length: int, rng: random.Random) -> Request:
    system, adapter, number = of
    tokens = length + max(10, int(rng.expovariate(1 / 150)))
    output = max(5, int(rng.expovariate(1 / 250)))

    def block(at: int) -> bytes:
        shared = (at + 1) * TOKENS <= load.system
        return _hash(adapter, system, at) if shared else _hash(adapter, number, "of", at)

    blocks = tuple(block(each) for each in range(tokens // TOKENS))
    after = tuple(block(each) for each in range(len(blocks), (tokens + output) // TOKENS))

    def then(ended: float) -> Request:
        return _turn(ended + rng.expovariate(1 / 20), load, of, turns - 1, tokens + output, rng)

    prompt = Prompt(adapter, blocks, _hash(adapter, number))
    return Request(at, tokens, output, prompt, after, then if turns > 1 else None)


def of_trace(path: Path, seconds: float) -> Iterator[Request]:
    """Yield the requests of Mooncake's trace. The first three blocks of 512 tokens count as the beginning."""
    with path.open() as lines:
        for told in map(json.loads, lines):
            at = told["timestamp"] / 1e3 / PACE
            if at > seconds:
                return
            ids = told["hash_ids"]
            blocks = [_hash(each, part) for each in ids for part in range(512 // TOKENS)]
            known = tuple(blocks[: told["input_length"] // TOKENS])
            opening = _hash(*ids[:3])
            yield Request(at, told["input_length"], told["output_length"], Prompt("", known, opening))


def _hash(*of: object) -> bytes:
    return blake2b(repr(of).encode(), digest_size=8).digest()


def _zipf(rng: random.Random, num: int) -> int:
    return rng.choices(range(num), [1 / (each + 1) for each in range(num)])[0]


NUM_PLAYED, CLIENTS, CONVERSATIONS, TURNS = 4, 12, 120, 5
PLAYED_SYSTEMS, PLAYED_CACHE, ROUNDS_A_BLOCK = 16, 600, 1_500
"""System prompts, blocks that a server keeps, and rounds of a hash for each block that it computes, about 1 ms."""


def played(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield medians of the rounds by rule; rules take turns."""
    rows: dict[str, list[dict[str, float]]] = {"least": [], "prefix": []}
    for number in range(rounds):
        for rule in sorted(rows, reverse=number % 2 == 1):
            with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-") as name:
                rows[rule].append(play(Path(name), rule))
    for rule, found in rows.items():
        yield {"rule": rule, **{key: median(each[key] for each in found) for key in found[0]}}


def play(directory: Path, rule: str) -> dict[str, float]:
    """Start servers and a gateway, hold conversations through it, and return times and processor times."""
    port, *ports = free_ports(1 + NUM_PLAYED)
    replicas = [{"id": f"replica-{at}", "url": f"http://127.0.0.1:{each}"} for at, each in enumerate(ports)]
    revisions = [{"name": "r1", "weight": 1, "shadow": False, "replicas": replicas}]
    told = {"path": "/m", "hosts": [], "timeout_s": 600, "revisions": revisions, "by_prefix": rule == "prefix"}
    (directory / "routes.json").write_text(json.dumps({"version": 2, "services": {"m": told}}))
    with ExitStack() as stack:
        argv = [sys.executable, "-m", "benchmarks.prefix_routing", "--serve"]
        servers = [stack.enter_context(doors.started(*argv, str(each), port=each)) for each in ports]
        argv = [sys.executable, "-m", "fairlead.gateway", "--directory", str(directory), "--port", str(port)]
        gateway = stack.enter_context(doors.started(*argv, port=port))
        before = [_processor_s([gateway]), _processor_s(servers)]
        answers = asyncio.run(hold_conversations(port))
        after = [_processor_s([gateway]), _processor_s(servers)]
    times = sorted(took for took, _, _ in answers)
    return {
        "requests": len(answers),
        "mean ms": 1e3 * mean(times),
        "p50 ms": 1e3 * median(times),
        "p99 ms": 1e3 * times[99 * len(times) // 100],
        "cached": sum(cached for _, cached, _ in answers) / sum(blocks for _, _, blocks in answers),
        "servers s": after[1] - before[1],
        "gateway us": 1e6 * (after[0] - before[0]) / len(answers),
        "load": os.getloadavg()[0],
    }


async def hold_conversations(port: int) -> list[tuple[float, int, int]]:
    """Return for each request how long it took, how many blocks were cached, and how many it had."""
    import aiohttp

    rng = random.Random(1)
    systems = [_words(rng, 10_000) for _ in range(PLAYED_SYSTEMS)]
    left = [rng.choice(systems) for _ in range(CONVERSATIONS)]
    answers = []

    async def client(session: aiohttp.ClientSession) -> None:
        while left:
            messages = [{"role": "system", "content": left.pop()}]
            for _ in range(TURNS):
                messages.append({"role": "user", "content": _words(rng, 1_000)})
                begun = time.perf_counter()
                url = f"http://127.0.0.1:{port}/m/v1/chat/completions"
                async with session.post(url, json={"model": "m", "messages": messages}) as response:
                    told = await response.json()
                answers.append((time.perf_counter() - begun, told["cached"], told["blocks"]))
                messages.append({"role": "assistant", "content": _words(rng, 1_500)})

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return answers


async def serve(port: int) -> None:
    """Play a text server: compute what is not cached, one prompt after the other, and answer how much that was."""
    from hashlib import pbkdf2_hmac

    from aiohttp import web

    cache: OrderedDict[bytes, None] = OrderedDict()
    turn = asyncio.Lock()

    async def answer(request: web.Request) -> web.Response:
        prompt = read_prompt(request.path.encode(), await request.read())
        if prompt is None:
            raise web.HTTPBadRequest
        async with turn:
            cached = 0
            while cached < len(prompt.blocks) and prompt.blocks[cached] in cache:
                cached += 1
            for block in prompt.blocks[cached:]:
                pbkdf2_hmac("sha256", block, b"", ROUNDS_A_BLOCK)
                await asyncio.sleep(0)
            for block in reversed(prompt.blocks):
                cache[block] = None
                cache.move_to_end(block)
            while len(cache) > PLAYED_CACHE:
                cache.popitem(last=False)
        return web.json_response({"cached": cached, "blocks": len(prompt.blocks)})

    app = web.Application(client_max_size=1 << 22)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def _processor_s(processes: list[psutil.Process]) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def _words(rng: random.Random, length: int) -> str:
    return "".join(f"{rng.getrandbits(24):x} " for _ in range(length // 7))


if __name__ == "__main__":
    main()
