"""A simulated text server: nothing is lost, memory is never overdrawn, and its own coefficients are found again."""

from dataclasses import replace

import numpy as np
import pytest

from fairlead.control.served_requests import ServedRequests
from fairlead.errors import UnknownModel
from fairlead.policy.serving.text_calibration import calibrate, predict
from fairlead.policy.serving.text_capacity import answers, blocks_of, by_data_sheet
from fairlead.policy.serving.text_engine import (
    DECODING,
    EngineLimits,
    EngineRequest,
    Served,
    StepTimes,
    simulate,
    simulate_steps,
    step_s,
)
from fairlead.policy.strategy.gpus import find
from fairlead.policy.strategy.transformer import hugging_face

STEP = StepTimes(
    base=0.02, sequence=3e-5, context=1e-7, prompt=1e-4, prompt_base=0.01, mixed_context=1e-7, mixed=2e-5
)  # fmt: skip


def drawn(num: int, seed: int = 1, every_s: float = 0.05) -> list[EngineRequest]:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(every_s, num))
    return [
        EngineRequest(arrived_s=float(at[i]), prompt=int(rng.integers(20, 900)), output=int(rng.integers(2, 60)))
        for i in range(num)
    ]


def test_a_request_by_itself_takes_its_steps() -> None:
    served = simulate([EngineRequest(arrived_s=1.0, prompt=100, output=11)], STEP, EngineLimits())
    assert served.first_s[0] == pytest.approx(1.0 + max(0.02, 0.01 + 100 * 1e-4))
    contexts = sum(range(100, 110))
    assert served.last_s[0] - served.first_s[0] == pytest.approx(10 * (0.02 + 8 * 3e-5) + 1e-7 * contexts)


@pytest.mark.parametrize("blocks", [None, 400, 80])
def test_every_request_gets_all_its_tokens_in_any_memory(blocks: int | None) -> None:
    requests = drawn(60)
    served = simulate(requests, STEP, EngineLimits(blocks=blocks))
    arrived = np.array([each.arrived_s for each in requests])
    assert np.all(served.first_s > arrived)
    assert np.all(served.last_s >= served.first_s)


def test_less_memory_takes_longer() -> None:
    requests = drawn(80)
    ends = [float(simulate(requests, STEP, EngineLimits(blocks=blocks)).last_s.max()) for blocks in (None, 200, 70)]
    assert ends == sorted(ends)


def test_a_request_that_memory_never_holds_is_an_error() -> None:
    with pytest.raises(ValueError, match="more than the 10 blocks"):
        simulate([EngineRequest(arrived_s=0.0, prompt=1000, output=2)], STEP, EngineLimits(blocks=10))


def test_ranks_that_step_together_divide_the_requests_and_wait_for_the_longest() -> None:
    requests = drawn(60)
    alone = simulate(requests, STEP, EngineLimits(max_seqs=4))
    both = simulate(requests, STEP, EngineLimits(max_seqs=4, ranks=2))
    assert 0.45 * alone.last_s.max() < both.last_s.max() < 0.75 * alone.last_s.max()


@pytest.mark.parametrize("blocks", [None, 400, 70])
def test_the_steps_that_are_told_add_up_to_the_times(blocks: int | None) -> None:
    requests = [replace(each, arrived_s=0.0) for each in drawn(60)]
    served, steps = simulate_steps(requests, STEP, EngineLimits(blocks=blocks))
    ends = np.cumsum([step_s(part, STEP.values()) for part in steps.parts])
    assert served.first_s == pytest.approx(ends[steps.first])
    assert served.last_s == pytest.approx(ends[steps.last])
    # Each sequence that decodes gets a token in each step, and its first one by its prompt, as the next one by what
    # is computed again once others have taken its memory.
    further = sum(each.output - 1 for each in requests)
    decoded = steps.parts[:, DECODING].sum()
    assert decoded == further if blocks is None else 0.95 * further < decoded < further


def test_requests_before_it_tell_how_a_server_serves_the_others() -> None:
    requests = drawn(60)
    truth = simulate(requests, STEP, EngineLimits())
    later = np.arange(60) >= 30
    seen = Served(first_s=np.where(later, np.nan, truth.first_s), last_s=np.where(later, np.nan, truth.last_s))
    found = calibrate(requests, seen, EngineLimits(), simulations=60)
    arrived = np.array([each.arrived_s for each in requests])
    waits = np.mean([served.last_s - arrived for served in predict(requests, found)])
    assert waits == pytest.approx(np.mean(truth.last_s - arrived), rel=0.05)
    assert found == sorted(found, key=lambda each: each.error)


def test_memory_that_bounds_a_server_is_found_from_what_it_served() -> None:
    requests = [replace(each, arrived_s=0.01 * number) for number, each in enumerate(drawn(80))]
    truth = simulate(requests, STEP, EngineLimits(blocks=300))
    found = calibrate(requests, truth, EngineLimits(blocks=310), simulations=60)
    assert found[0].engine.blocks == pytest.approx(300, rel=0.1)
    ends = [served.last_s.max() for served in predict(requests, found)]
    assert np.mean(ends) == pytest.approx(truth.last_s.max(), rel=0.05)


def test_engines_that_do_not_share_experts_step_by_themselves() -> None:
    requests = drawn(60)
    alone = simulate(requests, STEP, EngineLimits(ranks=2, is_lockstep=False))
    together = simulate(requests, STEP, EngineLimits(ranks=2))
    assert np.mean(alone.last_s) < np.mean(together.last_s)
    served, steps = simulate_steps(
        [replace(request, arrived_s=0.0) for request in requests], STEP, EngineLimits(ranks=2, is_lockstep=False)
    )
    ends = np.concatenate([[0.0], np.cumsum([step_s(part, STEP.values()) for part in steps.parts])])
    assert served.last_s == pytest.approx(ends[steps.last + 1] - ends[steps.begin])


def test_a_step_reads_the_experts_that_its_tokens_use() -> None:
    times = replace(STEP, experts=0.1)
    few, many = ([EngineRequest(arrived_s=0.0, prompt=1, output=20)] * num for num in (1, 200))
    paces = []
    for requests in (few, many):
        served = simulate(requests, times, EngineLimits(max_seqs=256, expert_share=1 / 16))
        paces.append(float(np.mean(served.last_s - served.first_s)) / 19)
    assert paces[0] == pytest.approx(0.02 + 0.1 / 16, rel=0.02)
    assert paces[1] == pytest.approx(0.12 + 200 * 3e-5, rel=0.02)


def served_by(requests: list[EngineRequest], served: Served, scheduled_s: float = 0.001) -> ServedRequests:
    begins_s = np.array([request.arrived_s for request in requests]) + scheduled_s
    return ServedRequests(requests=requests, served=served, begins_s=begins_s)


def test_memory_that_nobody_waited_for_is_no_limit() -> None:
    requests = drawn(60)
    served = simulate(requests, STEP, EngineLimits())
    assert [engine.blocks for engine in served_by(requests, served).engines(EngineLimits(), is_mixture=False)] == [None]
    waited = served_by(requests, served, scheduled_s=2.0).engines(EngineLimits(), is_mixture=False)
    assert [engine.blocks is None for engine in waited] == [True, False]


def test_engines_are_counted_by_tokens_that_come_at_almost_the_same_time() -> None:
    requests = drawn(200)
    one, two = (simulate(requests, STEP, EngineLimits(ranks=ranks, is_lockstep=False)) for ranks in (1, 2))
    [engine] = served_by(requests, one).engines(EngineLimits(), is_mixture=False)
    assert engine.ranks == 1
    [engine] = served_by(requests, two).engines(EngineLimits(), is_mixture=False)
    assert (engine.ranks, engine.is_lockstep) == (2, False)
    together = simulate(requests, STEP, EngineLimits(ranks=2))
    # The second engine's clock is read a moment later.
    late_s = 3e-4 * (np.arange(200) % 2)
    shifted = Served(first_s=together.first_s + late_s, last_s=together.last_s + late_s)
    [engine] = served_by(requests, shifted).engines(EngineLimits(), is_mixture=False)
    assert (engine.ranks, engine.is_lockstep) == (2, True)


def test_requests_of_two_engines_at_moderate_load_predict_heavier_load() -> None:
    # Of the second half more run at once than of the first; nobody waits for memory.
    gaps = np.concatenate([np.full(60, 0.12), np.full(60, 0.05)])
    requests = [replace(request, arrived_s=float(at)) for request, at in zip(drawn(120), np.cumsum(gaps), strict=True)]
    truth = simulate(requests, replace(STEP, experts=0.02), EngineLimits(ranks=2, expert_share=1 / 16))
    seen = served_by(requests, truth).first(60)
    engines = seen.engines(EngineLimits(expert_share=1 / 16), num_ranks=2)
    predicted = predict(requests, calibrate(requests, seen.served, engines, simulations=40))
    arrived = np.array([request.arrived_s for request in requests])
    assert np.mean([served.first_s - arrived for served in predicted]) == pytest.approx(
        np.mean(truth.first_s - arrived), rel=0.06
    )
    assert np.mean([served.last_s - arrived for served in predicted]) == pytest.approx(
        np.mean(truth.last_s - arrived), rel=0.02
    )


LLAMA = hugging_face(
    {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    }
)  # fmt: skip


def test_a_data_sheet_tells_what_a_step_of_decoding_reads() -> None:
    gpu = find("RTX4090")
    assert gpu is not None
    times = by_data_sheet(LLAMA, gpu, 1)
    # 7.5 billion weights besides the input embedding, and 128 KiB a token, at .85 of 1,008 GB/s.
    assert times.base == pytest.approx(0.003 + 2 * 7.505e9 / (0.85 * 1008e9), rel=1e-3)
    assert times.context == pytest.approx(2**17 / (0.85 * 1008e9))
    # vLLM 0.19 had 2,588 there.
    assert blocks_of(LLAMA, gpu, 1) == pytest.approx(2588, rel=0.1)
    assert by_data_sheet(LLAMA, gpu, 2).base < times.base


def test_more_requests_wait_longer_for_their_first_token_and_never_come_out_faster() -> None:
    gpu = find("H100")
    assert gpu is not None
    found = answers(by_data_sheet(LLAMA, gpu, 1), EngineLimits(blocks=blocks_of(LLAMA, gpu, 1)), 512, 128)
    assert [each.further_s for each in found] == sorted(each.further_s for each in found)
    assert found[-1].first_s > found[0].first_s
    assert all(each.tokens_s == pytest.approx(128 * each.requests_s) for each in found)


def test_a_request_too_long_for_memory_has_no_estimate() -> None:
    with pytest.raises(UnknownModel, match="do not fit into its memory"):
        answers(STEP, EngineLimits(blocks=10), 512, 128)
