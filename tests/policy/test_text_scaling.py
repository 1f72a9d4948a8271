"""Replicas of a text server: how they answer is known from few requests, and as many are asked for as that needs."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fairlead.policy.serving.latency_scaling import out_of_reach, service_of, shares
from fairlead.policy.serving.text_engine import EngineLimits, EngineRequest, StepTimes, simulate
from fairlead.policy.serving.text_scaling import answering, calibration, share_in_time
from fairlead.specs.serving import Scale, Serving
from fairlead.state.demand import Demand, Interval, TextRequest
from tests.policy.test_serving import World

STEP = StepTimes(
    base=0.02, sequence=3e-5, context=1e-7, prompt=1e-4, prompt_base=0.01, mixed_context=1e-7, mixed=2e-5
)  # fmt: skip
BY_TOKENS = Serving(
    name="chat", run="serve", replicas=1, most_replicas=8, scale=Scale(first_token_s=1.0, per_token_s=0.06)
)  # fmt: skip


def drawn(rate: float, num: int, seed: int = 1) -> list[EngineRequest]:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, num))
    return [
        EngineRequest(arrived_s=float(at[i]), prompt=int(rng.integers(100, 2000)), output=int(rng.integers(20, 400)))
        for i in range(num)
    ]


def told(rate: float, num: int, engine: EngineLimits | None = None, **changes: Any) -> tuple[TextRequest, ...]:
    requests = drawn(rate, num)
    served = simulate(requests, STEP, engine or EngineLimits(max_seqs=256))
    return tuple(
        TextRequest(**{
            "replica": "a", "sent": 1000.0 + each.arrived_s, "prompt": each.prompt, "output": each.output,
            "first": 1000.0 + float(first), "last": 1000.0 + float(last), **changes,
        })
        for each, first, last in zip(requests, served.first_s, served.last_s, strict=True)
    )  # fmt: skip


def demand(rate: float, known: tuple[TextRequest, ...]) -> Demand:
    intervals = tuple(Interval(at=at, arrivals=round(10 * rate)) for at in range(0, 1200, 10))
    return Demand(latest_text=known, busiest_text=known, intervals=intervals)


@pytest.mark.parametrize(("rate", "num"), [(0.5, 30), (2.0, 60), (5.0, 128)])
def test_few_requests_tell_how_many_a_replica_has_in_time(rate: float, num: int) -> None:
    known = told(rate, num)
    found = answering(known, known, 1.0, 0.06, None)
    assert found is not None
    assert found.shares[0] == (0.15, 1.0)
    assert all(after <= before for (_, before), (_, after) in pairwise(found.shares))
    # The greatest load, in requests a second, under which nine of ten were to be in time.
    loads = [load * found.most_per_s for load, share in found.shares if share >= 0.9]
    assert 0.5 * most_in_time() <= max(loads) <= 1.2 * most_in_time()


@cache
def most_in_time() -> float:
    truth = {
        rate: share_in_time(requests, simulate(requests, STEP, EngineLimits(max_seqs=256)), 1.0, 0.06)
        for rate in (2.0, 3.0, 4.0, 5.0, 6.0)
        for requests in [drawn(rate, 400, seed=3)]
    }
    return max(rate for rate, share in truth.items() if share >= 0.9)


def test_a_server_short_of_memory_is_known_to_do_less() -> None:
    engine = EngineLimits(max_seqs=256, blocks=4000)
    short, ample = (answering(each, each, 1.0, 0.06, None) for each in (told(7.0, 128, engine), told(7.0, 128)))
    assert short is not None
    assert ample is not None
    assert short.most_per_s < 0.8 * ample.most_per_s
    found = calibration(told(7.0, 128, engine), None)
    assert found is not None
    assert found.engine.blocks == pytest.approx(4000, rel=0.15)


def test_requests_under_way_are_load_of_which_no_times_are_known() -> None:
    known = told(5.0, 80)
    under_way = tuple(
        TextRequest(replica="a", sent=each.sent, prompt=each.prompt, output=0) if number % 4 == 3 else each
        for number, each in enumerate(known)
    )
    found, whole = calibration(under_way, None), calibration(known, None)
    assert found is not None
    assert whole is not None
    assert sum(found.times.values()[:2]) == pytest.approx(sum(whole.times.values()[:2]), rel=0.3)


@pytest.mark.parametrize("known", [(), told(2.0, 19), told(2.0, 40, first=None), told(2.0, 40, last=None)])
def test_too_few_requests_or_answers_that_come_at_once_tell_nothing(known: tuple[TextRequest, ...]) -> None:
    assert answering(known, known, 1.0, 0.06, None) is None


def test_a_time_that_no_replica_keeps_asks_for_no_replicas() -> None:
    known = told(2.0, 40)
    found = answering(known, known, 0.001, None, None)
    assert found is not None
    assert found.shares == ()
    spec = Serving(name="chat", run="serve", replicas=1, most_replicas=8, scale=Scale(first_token_s=0.001))
    assert service_of(spec, demand(4.0, known), 1, locked=False, start_s=None, now=1200.0) is None
    # As told, so that people know what a replica can do.
    problem = out_of_reach(spec, demand(4.0, known))
    usual = f"{found.first_token_s * 1000:.3g} ms"
    assert problem == f"on an idle replica the first token takes {usual}, and the target is 1ms"
    waits = [each.first - each.sent for each in known if each.first is not None]
    assert 0.5 * min(waits) <= found.first_token_s <= max(waits)
    assert out_of_reach(BY_TOKENS, demand(4.0, known)) == ""
    assert out_of_reach(BY_TOKENS, demand(4.0, ())) is None


class Answers(World):
    """An endpoint whose gateway tells of answers."""

    def _demand(self) -> Demand:
        known = told(2.0, 40)
        return replace(super()._demand(), latest_text=known, busiest_text=known)


def test_a_time_that_no_replica_keeps_is_told_once_with_what_helps_and_once_that_it_is_kept() -> None:
    spec = Serving(name="chat", run="serve", replicas=1, most_replicas=8, scale=Scale(first_token_s=0.001))
    world = Answers(spec=spec, in_flight=lambda _: 3)
    world.run(30)
    (event,) = (each for each in world.events if each.startswith("OutOfReach"))
    said = "no number of replicas meets the token latency targets, so it scales by 4 requests in flight per replica"
    assert f"{said}: on an idle replica" in event
    world.change(replace(spec, scale=Scale(first_token_s=1.0)))
    world.run(30)
    assert [each.partition(":")[0] for each in world.events if "Reach" in each] == ["OutOfReach", "WithinReach"]


@pytest.mark.parametrize(("rate", "wanted"), [(0.3, 1), (3.0, 1), (8.0, 3), (16.0, 5)])
def test_as_many_replicas_as_tokens_in_time_need(rate: float, wanted: int) -> None:
    service = service_of(BY_TOKENS, demand(rate, told(4.0, 100)), 2, locked=False, start_s=None, now=1200.0)
    assert service is not None
    (found,) = shares({"chat": service}, 6).values()
    assert abs(found - wanted) <= 1
    # One replica cannot: with fewer than are asked for requests are late.
    requests = drawn(rate / found, 400, seed=5)
    assert share_in_time(requests, simulate(requests, STEP, EngineLimits(max_seqs=256)), 1.0, 0.06) >= 0.95


def test_before_anything_is_known_it_goes_by_requests_in_flight() -> None:
    assert service_of(BY_TOKENS, demand(4.0, ()), 2, locked=False, start_s=None, now=1200.0) is None


@pytest.mark.slow
def test_requests_that_a_replica_is_given_at_once_bound_it() -> None:
    known = told(0.1, 40, EngineLimits(max_seqs=4))
    few, many = (answering(known, known, 1.0, None, most) for most in (4, None))
    assert few is not None
    assert many is not None
    assert few.most_per_s < 0.5 * many.most_per_s
