"""Share of a text server's requests in time, and the replica hours for it, by the metric that it scales by.

    python -m benchmarks.text_autoscaling --data DIR [--minutes 60] [--start 60] [--traces conv,code] [--json]

DIR holds llm/AzureLLMInferenceTrace_*.csv (TIMESTAMP, ContextTokens, GeneratedTokens; Azure, 2023). A replica is a
simulated vLLM with an 8B model on an RTX 4090 by its data sheet, of which no rule knows; a new one serves after
`--start` seconds, and requests go to the one with the fewest. Every 10 s a rule says how many there are to be, 1 to 16.
A request is in time with its first token within 2 s and 60 ms for each further one on average.

`tokens` is `scale: {time_to_first_token: 2s, time_per_token: 60ms}`. The others are told what they cannot find out, in
several settings: `latency` is `scale: {latency: 2 s and 60 ms for each token of a usual answer, concurrency: C}`, and
`in flight` is `scale: {concurrency: C}`. At as many replica hours their share in time is between their settings'.
"""

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

from benchmarks.data import folder_of
from fairlead.gateway.request_metrics import ServiceMetrics
from fairlead.gateway.routes import Backend
from fairlead.gateway.services import UpstreamReplica
from fairlead.gateway.text_requests import TextRequests, TextRow
from fairlead.policy.serving.latency_scaling import service_of, shares
from fairlead.policy.serving.replica_count import wanted_replicas
from fairlead.policy.serving.text_capacity import blocks_of, by_data_sheet
from fairlead.policy.serving.text_engine import EngineLimits, EngineRequest, Rank, StepTimes, step_s
from fairlead.policy.strategy.gpus import find
from fairlead.policy.strategy.transformer import hugging_face
from fairlead.specs.serving import Scale, Serving
from fairlead.state.demand import Demand, read_demand

FIRST_S, FURTHER_S = 2.0, 0.06
MOST = 16
DECIDE_S = 10
CONCURRENCIES = (4, 8, 12, 16, 24, 32)
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip


@dataclass(slots=True)
class Replica:
    """A text server that is given requests as they come.

    Attributes:
        ends: When each of its requests ends, soonest first, and its number.
        times: When each had its first and last token.
    """

    id: str
    times_of: StepTimes
    rank: Rank
    door: UpstreamReplica[None]
    step: int = 0
    now: float = 0.0
    end: float = 0.0
    idle: bool = True
    firsts: dict[int, float] = field(default_factory=dict)
    lasts: dict[int, float] = field(default_factory=dict)
    ends: list[tuple[float, int]] = field(default_factory=list)

    def give(self, number: int, request: EngineRequest, at: float) -> None:
        """Take a request that has come now."""
        if self.idle:
            self.now = self.end = max(self.end, at)
            self.idle = False
        self.rank.add(number, request)

    def run(self, until: float) -> None:
        """Compose the steps that begin before then."""
        values = self.times_of.values()
        while not self.idle and self.now < until:
            part = self.rank.compose(self.step)
            if part is None:
                self.idle = True
                return
            begin = max(self.end, self.now)
            self.end = begin + step_s(part, values)
            begun, ended = self.rank.advance(self.step)
            for number in begun:
                self.firsts.setdefault(number, self.end)
            for number in ended:
                self.lasts[number] = self.end
                heappush(self.ends, (self.end, number))
            self.step += 1
            self.now = begin


@dataclass(frozen=True, slots=True)
class Outcome:
    """Share of requests in time, and what it took."""

    in_time: float
    hours: float
    most: int


def simulate(
    requests: Sequence[EngineRequest], spec: Serving, times: StepTimes, engine: EngineLimits, start_s: float
) -> Outcome:
    """Serve requests with as many replicas as a spec's rule says."""
    tally, texts = ServiceMetrics(), TextRequests()
    made = 0

    def make() -> Replica:
        nonlocal made
        made += 1
        name = f"p{made:04d}"
        return Replica(name, times, Rank(engine), UpstreamReplica(Backend(name, "", 1)))

    live, leaving = [make()], list[Replica]()
    texts.replica = live[0].id
    coming = list[float]()
    rows = dict[int, TextRow]()
    wanted, hours_s, most = 1, 0.0, 1
    where = dict[int, Replica]()

    def settle(now: float) -> None:
        """Count what has ended until now, at its own time."""
        over = []
        for each in [*live, *leaving]:
            each.run(now)
            while each.ends and each.ends[0][0] <= now:
                over.append((*heappop(each.ends), each))
        for at, number, each in sorted(over, key=lambda item: item[:2]):
            each.door.count_busy(at, spec.scale.concurrency)
            each.door.outstanding -= 1
            tally.in_flight -= 1
            tally.end(at, busy_s=each.door.busy_s, took_s=at - requests[number].arrived_s)
            each.door.busy_s = 0.0
            row = rows.pop(number, None)
            if row is not None:
                row.first = each.firsts[number]
                texts.end(row, prompt=requests[number].prompt, output=requests[number].output, epoch=at)

    coming_at = 0
    # A little more than the arrivals: what came last ends too.
    for now in range(0, int(requests[-1].arrived_s) + 600, 1):
        for at in [at for at in coming if at <= now]:
            coming.remove(at)
            live.append(make())
        while coming_at < len(requests) and requests[coming_at].arrived_s < now + 1:
            request = requests[coming_at]
            settle(request.arrived_s)
            chosen = min(live, key=lambda each: (each.door.outstanding, each.id))
            chosen.door.count_busy(request.arrived_s, spec.scale.concurrency)
            chosen.door.outstanding += 1
            where[coming_at] = chosen
            tally.arrive(request.arrived_s)
            row = texts.begin("r1", chosen.id, request.arrived_s)
            if row is not None:
                row.prompt = request.prompt
                rows[coming_at] = row
            chosen.give(coming_at, request, request.arrived_s)
            coming_at += 1
        settle(now + 1)
        tally.look(now + 1)
        leaving = [each for each in leaving if each.door.outstanding]
        if now <= requests[-1].arrived_s:
            hours_s += len(live) + len(coming) + len(leaving)
        if now % DECIDE_S == 0 and now:
            told = {**tally.demand(queued=0, epoch=now), "text": texts.as_json()}
            demand = read_demand({"since": -600.0, "services": {"a": told}}, "gateway", ["a"])["a"]
            wanted = _wanted(spec, demand, wanted, len(live) + len(coming), bool(coming), start_s, float(now))
            while len(live) + len(coming) > wanted and len(live) > 1 and not coming:
                leaving.append(live.pop())
            coming += [now + start_s] * (wanted - len(live) - len(coming))
            most = max(most, wanted)
            texts.replica = min(each.id for each in live)
    first = np.array([where[number].firsts[number] for number in range(len(requests))])
    last = np.array([where[number].lasts[number] for number in range(len(requests))])
    arrived = np.array([each.arrived_s for each in requests])
    further = np.array([max(1, each.output - 1) for each in requests])
    in_time = (first - arrived <= FIRST_S) & ((last - first) / further <= FURTHER_S)
    return Outcome(float(np.mean(in_time)), hours_s / 3600.0, most)


def _wanted(spec: Serving, demand: Demand, before: int, there: int, moves: bool, start_s: float, now: float) -> int:
    """Return how many replicas there are to be, as endpoints are judged."""
    share = None
    if spec.scale.is_by_time:
        service = service_of(spec, demand, there, locked=moves, start_s=start_s, now=now)
        share = None if service is None else shares({"a": service}, MOST - there)["a"]
    return wanted_replicas(spec, demand, 0.0, before, now, share)


def read(path: Path, minutes: int) -> list[EngineRequest]:
    """Read the requests of the first minutes."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    found = [
        EngineRequest(
            arrived_s=at - times[0], prompt=int(row["ContextTokens"]), output=max(1, int(row["GeneratedTokens"]))
        )
        for at, row in zip(times, rows, strict=True)
        if at - times[0] < 60 * minutes
    ]
    return sorted(found, key=lambda each: each.arrived_s)


def spec_of(scale: Scale) -> Serving:
    """Return an endpoint of one to so many replicas that scales so."""
    return Serving(name="chat", run="serve", replicas=1, most_replicas=MOST, timeout_s=3_600.0, scale=scale)


def main(given: Sequence[str] | None = None) -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=folder_of("llm"), default=Path("../shared/traces/llm"), help="folder of the traces"
    )
    parser.add_argument("--minutes", type=int, default=60, help="only the first minutes (default 60)")
    parser.add_argument("--start", type=float, default=60.0, help="seconds until a further replica serves (default 60)")
    parser.add_argument("--traces", default="conv,code", help="which of them (default conv,code)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    gpu = find("RTX4090")
    assert gpu is not None
    model = hugging_face(LLAMA)
    times, engine = by_data_sheet(model, gpu, 1), EngineLimits(max_seqs=128, blocks=blocks_of(model, gpu, 1))
    for trace in arguments.traces.split(","):
        path = arguments.data / f"AzureLLMInferenceTrace_{trace}.csv"
        if not path.is_file():
            parser.error(f"no trace {path}")
        requests = read(path, arguments.minutes)
        usual = float(np.median([each.output for each in requests]))
        latency_s = FIRST_S + FURTHER_S * usual
        rules = [("tokens", "", Scale(first_token_s=FIRST_S, per_token_s=FURTHER_S))]
        rules += [
            ("latency", f"{number}", Scale(latency_s=latency_s, concurrency=number, shed=False))
            for number in CONCURRENCIES
        ]
        rules += [("in flight", f"{number}", Scale(concurrency=number)) for number in CONCURRENCIES]
        found = dict[str, list[Outcome]]()
        for rule, setting, scale in rules:
            outcome = simulate(requests, spec_of(scale), times, engine, arguments.start)
            found.setdefault(rule, []).append(outcome)
            if arguments.json:
                row = {
                    "trace": trace, "rule": rule, "concurrency": setting, "in_time": round(outcome.in_time, 4),
                    "replica_hours": round(outcome.hours, 3), "most": outcome.most,
                }  # fmt: skip
                print(json.dumps(row), flush=True)
            else:
                label = f"{trace:<6}{rule:<11}{setting:>3}"
                print(
                    f"{label}{outcome.in_time:>9.4f} in time{outcome.hours:>8.2f} hours, {outcome.most} at most",
                    flush=True,
                )
        if not arguments.json:
            (tokens,) = found.pop("tokens")
            for rule, outcomes in found.items():
                share = at_hours(outcomes, tokens.hours)
                print(f"{trace:<6}{rule:<11}   {share:>9.4f} in time at {tokens.hours:.2f} hours", flush=True)


def at_hours(outcomes: Sequence[Outcome], hours: float) -> float:
    """Return the share in time of a rule's settings that take so many hours, between those that take about as many."""
    ordered = sorted(outcomes, key=lambda each: each.hours)
    return float(
        np.interp(hours, [each.hours for each in ordered], np.maximum.accumulate([e.in_time for e in ordered]))
    )


if __name__ == "__main__":
    main()
