import pytest

from benchmarks.baselines.zero import deepspeed_zero2, deepspeed_zero3, model_states


@pytest.mark.parametrize(("stage", "published_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_model_states_are_those_of_figure_1_of_the_paper(stage: int, published_gb: float) -> None:
    """7.5 billion parameters on 64 GPUs, as arXiv 1910.02054 has them."""
    assert round(model_states(7_500_000_000, 64, stage) / 1e9, 1) == published_gb


@pytest.mark.parametrize("gpus", [1, 7, 64, 1024])
@pytest.mark.parametrize("parameters", [60_506_624, 2_851_598_336])
def test_what_deepspeed_publishes_is_matched_to_the_byte(parameters: int, gpus: int) -> None:
    """Its formulas as `deepspeed.runtime.zero` has them, written out."""
    largest = 32_899_072
    assert deepspeed_zero2(parameters, gpus) == 4 * parameters + int(16 * parameters / gpus)
    assert deepspeed_zero2(parameters, gpus, offload=True) == 2 * parameters
    assert deepspeed_zero3(parameters, largest, gpus) == 4 * largest + int(18 * parameters / gpus)
    assert deepspeed_zero3(parameters, largest, gpus, offload=True) == 4 * largest + int(2 * parameters / gpus)
    assert deepspeed_zero3(parameters, largest, gpus, offload=True, offload_parameters=True) == 4 * largest
