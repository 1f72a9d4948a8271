"""Peaks that others measured, and what must hold of every estimate."""

from dataclasses import replace

import pytest

from benchmarks import megatron_memory
from benchmarks.convnets import NETWORKS
from benchmarks.convolutions import peak_memory
from benchmarks.memory import MODELS
from fairlead.errors import UnknownModel
from fairlead.policy.strategy import torch_memory
from fairlead.policy.strategy.memory import GIB, worst
from fairlead.policy.strategy.split import PipelineSchedule, Recompute, Split
from fairlead.policy.strategy.transformer import Transformer, hugging_face

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50_257, "n_positions": 1024}


@pytest.mark.parametrize(
    ("name", "layers", "split", "measured_gib"),
    [
        ("llama3-70b", 12, Split(data=1, zero=1, tensor=8, micro_batches=4), 28.29),
        ("llama3-70b", 12, Split(data=4, zero=1, pipeline=2, micro_batches=4), 66.55),
        ("llama3-405b", 4, Split(data=4, zero=1, tensor=2, micro_batches=4), 81.59),
        ("deepseekv3", 4, Split(data=4, zero=1, pipeline=2, expert=4, micro_batches=4), 114.0),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_megatron_takes_what_was_measured_on_eight_b200(
    name: str, layers: int, split: Split, measured_gib: float
) -> None:
    estimated = worst(megatron_memory.stages(replace(MODELS[name], layers=layers), split)).allocated / GIB
    assert estimated == pytest.approx(measured_gib, rel=0.002)


def test_resnet50_takes_what_was_measured() -> None:
    assert peak_memory(NETWORKS["resnet50"](), 32) / GIB == pytest.approx(5262 / 1024, rel=0.05)
    assert NETWORKS["resnet50"]().parameters == 25_557_032


def test_a_config_of_hugging_face_gives_the_published_number_of_parameters() -> None:
    assert hugging_face(LLAMA, 8192).parameters == 8_030_261_248
    assert hugging_face(GPT2).parameters == 124_439_808


@pytest.mark.parametrize("missing", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"])
def test_a_config_that_lacks_a_number_is_refused_with_its_name(missing: str) -> None:
    with pytest.raises(UnknownModel, match=missing):
        hugging_face({key: value for key, value in LLAMA.items() if key != missing})


def peak(model: Transformer, split: Split) -> float:
    return worst(torch_memory.stages(model, split)).allocated


def test_more_sharding_and_recomputation_take_less_and_larger_batches_more() -> None:
    model = hugging_face(LLAMA, 4096)
    base = Split(data=8, zero=3, micro_batch=2, recompute=Recompute.SELECTIVE)
    assert peak(model, replace(base, data=16)) < peak(model, base)
    assert peak(model, replace(base, zero=0)) > peak(model, base)
    assert peak(model, replace(base, recompute=Recompute.FULL)) < peak(model, base)
    assert peak(model, replace(base, recompute=Recompute.NONE)) > peak(model, base)
    assert peak(model, replace(base, micro_batch=4)) > peak(model, base)
    assert peak(model, replace(base, tensor=2)) < peak(model, base)


def test_every_layer_is_on_one_stage() -> None:
    for virtual in (1, 2):
        for pipeline in (1, 2, 4):
            split = Split(pipeline=pipeline, virtual=virtual, micro_batches=8)
            layers = [layer for stage in range(pipeline) for layer in split.layers_of(stage, 30)]
            assert sorted(layers) == list(range(30))


def test_an_interleaved_first_stage_holds_what_korthikanti_says() -> None:
    """1 + (p - 1) / (p v) times the stages' activations (arXiv 2205.05198, sec. 4.2.3)."""
    pipeline, virtual = 4, 2
    split = Split(pipeline=pipeline, virtual=virtual, schedule=PipelineSchedule.INTERLEAVED, micro_batches=32)
    assert split.in_flight(0) == pipeline * (1 + (pipeline - 1) / (pipeline * virtual))


def test_what_no_formula_covers_is_refused() -> None:
    with pytest.raises(UnknownModel):
        torch_memory.stages(replace(MODELS["deepseekv2"], layers=4), Split())
    with pytest.raises(UnknownModel):
        megatron_memory.stages(hugging_face(GPT2), Split())
