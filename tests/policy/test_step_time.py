"""What must hold of every estimate of a step's time; how near it comes is `benchmarks.step_time`'s to say."""

from dataclasses import replace

import pytest

from fairlead.errors import UnknownModel
from fairlead.policy.strategy.gpus import GPUS, MEASURED, coefficients, find
from fairlead.policy.strategy.split import Recompute, Split
from fairlead.policy.strategy.step_time import MEGATRON_2021, UNSEEN, step_time
from fairlead.policy.strategy.transformer import Experts, Transformer

GPT_18B = Transformer(
    layers=40, hidden=6144, heads=48, key_value_heads=48, head=128, width=24_576, vocabulary=51_200, sequence=2048,
    gated=False, biases=True,
)  # fmt: skip
SPLIT = Split(data=32, tensor=8, micro_batch=8, micro_batches=4, recompute=Recompute.FULL)
A100 = MEASURED["A100"]


def ms(split: Split, model: Transformer = GPT_18B) -> float:
    return step_time(model, split, A100, software=MEGATRON_2021).total


def test_a_measured_step_lies_within_the_interval() -> None:
    """18.4 billion parameters on 256 A100 took 9.6 s (vTrain)."""
    low, high = (ms(SPLIT) * factor for factor in UNSEEN)
    assert low < 9603.6 < high


def test_more_work_takes_longer() -> None:
    assert ms(replace(SPLIT, micro_batches=8)) > ms(SPLIT)
    assert ms(SPLIT, replace(GPT_18B, layers=48)) > ms(SPLIT)
    assert ms(replace(SPLIT, recompute=Recompute.NONE)) < ms(SPLIT)
    assert ms(replace(SPLIT, tensor=16, data=16, micro_batches=8)) > ms(SPLIT)


def test_a_pipeline_waits_for_its_ends_and_less_with_several_parts_a_stage() -> None:
    split = replace(SPLIT, data=8, pipeline=4, micro_batches=16)
    whole = step_time(GPT_18B, split, A100)
    assert whole.bubble == pytest.approx(whole.layers / 16 * 3, rel=0.2)
    assert step_time(GPT_18B, replace(split, virtual=2), A100).bubble == pytest.approx(whole.bubble / 2)


def test_every_gpu_has_coefficients_and_one_of_that_name_is_found() -> None:
    for gpu in GPUS:
        for name in gpu.names:
            assert find(name) is gpu
        assert coefficients(gpu).tflops < gpu.peak_tflops
    assert find("NVIDIA-H100-SXM5-80GB") is find("h100")
    assert find("abacus") is None


def test_experts_are_refused_rather_than_guessed() -> None:
    model = replace(GPT_18B, experts=Experts(count=8, per_token=2, width=1024))
    with pytest.raises(UnknownModel):
        step_time(model, SPLIT, A100)
