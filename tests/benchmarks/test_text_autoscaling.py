"""A text server that scales by when its tokens come needs fewer replica hours than by plain service times."""

import csv
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks import text_autoscaling as benchmark
from fairlead.gateway.routes import Backend
from fairlead.gateway.services import UpstreamReplica
from fairlead.policy.serving.text_capacity import blocks_of, by_data_sheet
from fairlead.policy.serving.text_engine import EngineLimits, EngineRequest, Rank, simulate
from fairlead.policy.strategy.gpus import find
from fairlead.policy.strategy.transformer import hugging_face
from fairlead.specs.serving import Scale


def drawn(minutes: int) -> list[EngineRequest]:
    rng = np.random.default_rng(7)
    found = list[EngineRequest]()
    for minute in range(minutes):
        rate = 5.0 + 4.0 * np.sin(minute / 2.0)
        for at in np.sort(rng.uniform(60.0 * minute, 60.0 * minute + 60.0, rng.poisson(60 * rate))):
            prompt, output = int(rng.integers(100, 2_000)), int(rng.integers(20, 400))
            found.append(EngineRequest(arrived_s=float(at), prompt=prompt, output=output))
    return found


@pytest.mark.long
def test_as_many_are_in_time_with_fewer_replica_hours_than_by_plain_service_times() -> None:
    gpu, model = find("RTX4090"), hugging_face(benchmark.LLAMA)
    assert gpu is not None
    times, engine = by_data_sheet(model, gpu, 1), EngineLimits(max_seqs=128, blocks=blocks_of(model, gpu, 1))
    requests = drawn(8)

    def outcome(scale: Scale) -> benchmark.Outcome:
        return benchmark.simulate(requests, benchmark.spec_of(scale), times, engine, 30.0)

    tokens = outcome(Scale(first_token_s=benchmark.FIRST_S, per_token_s=benchmark.FURTHER_S))
    latency = outcome(Scale(latency_s=14.0, shed=False))
    assert tokens.in_time > latency.in_time - 0.01
    assert tokens.hours < 0.9 * latency.hours


def test_between_settings_the_share_at_some_hours_lies_between_theirs() -> None:
    outcomes = [benchmark.Outcome(0.9, 2.0, 2), benchmark.Outcome(0.5, 1.0, 1)]
    assert benchmark.at_hours(outcomes, 1.5) == 0.7


def test_a_replica_that_is_given_requests_as_they_come_answers_as_the_simulation_does() -> None:
    gpu, model = find("RTX4090"), hugging_face(benchmark.LLAMA)
    assert gpu is not None
    times, engine = by_data_sheet(model, gpu, 1), EngineLimits(max_seqs=128)
    requests = drawn(1)
    served = simulate(requests, times, engine)
    replica = benchmark.Replica("a", times, Rank(engine), UpstreamReplica(Backend("a", "", 1)))
    for number, request in enumerate(requests):
        replica.run(request.arrived_s)
        replica.give(number, request, request.arrived_s)
    replica.run(1e9)
    assert [replica.firsts[number] for number in range(len(requests))] == list(served.first_s)
    assert [replica.lasts[number] for number in range(len(requests))] == list(served.last_s)


def test_a_trace_is_read_from_its_first_request_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    began = datetime(2023, 11, 16, 18, 15, 46)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        for second, output in ((0, 44), (30, 0), (90, 7)):
            writer.writerow([f"{began + timedelta(seconds=second)}.6805900", 374, output])
    assert benchmark.read(path, 1) == [
        EngineRequest(arrived_s=0.0, prompt=374, output=44), EngineRequest(arrived_s=30.0, prompt=374, output=1),
    ]  # fmt: skip
