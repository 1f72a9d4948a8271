"""The shape of a model, and the split of a training step over GPUs."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated

from fairlead.frozen import dataclass
from fairlead.specs.constraints import PATH, Limit, Text, enforce
from fairlead.specs.field_types import DURATION, Named
from fairlead.specs.key import Key, SameKey, broken

CANDIDATES_MOST = 16
CANDIDATE_NAME = Text(
    max_length=63, pattern="[a-z0-9]([-a-z0-9]*[a-z0-9])?", what="a name of lower-case letters, digits and dashes"
)


class Choose(StrEnum):
    """The method that fills in the open parts of a split."""

    AUTO = "auto"


class Shard(StrEnum):
    """The state that data parallel ranks shard instead of replicating (ZeRO stages 0, 2 and 3)."""

    NONE = "none"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"


class Recomputed(StrEnum):
    """The activations that the backward pass recomputes instead of storing."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of a transformer that determine its memory and time."""

    config: Annotated[
        str | None,
        Key("config", rule=PATH, example="config.json", also="config_file config_json path file hf_config", alone=True),
        "A Hugging Face config.json, relative to the spec file; other keys override its values.",
    ] = None
    layers: Annotated[
        int | None,
        Key(
            "layers",
            rule=Limit(low=1, high=10_000, whole=True),
            example="32",
            also="num_layers num_hidden_layers n_layer n_layers depth blocks",
        ),
        "Blocks of the transformer.",
    ] = None
    hidden: Annotated[
        int | None,
        Key(
            "hidden",
            rule=Limit(low=1, high=1_000_000, whole=True),
            example="4096",
            also="hidden_size n_embd d_model dim embed_dim",
        ),
        "Width of the residual stream.",
    ] = None
    heads: Annotated[
        int | None,
        Key(
            "heads",
            rule=Limit(low=1, high=100_000, whole=True),
            example="32",
            also="num_heads num_attention_heads n_head n_heads",
        ),
        "Attention heads.",
    ] = None
    kv_heads: Annotated[
        int | None,
        Key(
            "kv_heads",
            rule=Limit(low=1, high=100_000, whole=True),
            example="8",
            also="num_key_value_heads key_value_heads n_kv_heads num_query_groups",
        ),
        "Heads of keys and values; as many as `heads` when left out.",
    ] = None
    width: Annotated[
        int | None,
        Key(
            "width",
            rule=Limit(low=1, high=10_000_000, whole=True),
            example="14336",
            also="intermediate_size ffn ffn_dim n_inner mlp ffn_hidden_size",
        ),
        "Inner width of the MLP; four times `hidden` when left out.",
    ] = None
    vocabulary: Annotated[
        int | None,
        Key(
            "vocabulary",
            rule=Limit(low=1, high=100_000_000, whole=True),
            example="128256",
            also="vocab vocab_size tokens",
        ),
        "Tokens of the vocabulary.",
    ] = None
    sequence: Annotated[
        int | None,
        Key(
            "sequence",
            rule=Limit(low=1, high=100_000_000, whole=True),
            example="8192",
            also="seq seq_len sequence_length context_length max_seq_len block_size",
        ),
        "Tokens of a sample; the maximum of `config` when left out.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCandidate:
    """A split that a run tries for a few steps; None keeps a part as in the run."""

    data: Annotated[
        int | None,
        Key(
            "data",
            rule=Limit(low=1, high=1_000_000, whole=True),
            example="8",
            also="dp data_parallel ddp replicas fsdp",
        ),
        "Replicas, each with its own samples; the remaining ranks when left out.",
    ] = None
    shard: Annotated[
        Shard | None,
        Key("shard", example="parameters", also="zero zero_stage sharding sharding_strategy"),
        "State that replicas shard: none (DDP), gradients (ZeRO 2), or parameters too (ZeRO 3, FSDP).",
    ] = None
    tensor: Annotated[
        int | None,
        Key(
            "tensor",
            rule=Limit(low=1, high=1_024, whole=True),
            example="2",
            also="tp tensor_parallel model_parallel mp",
        ),
        "Number of parts of each layer.",
    ] = None
    pipeline: Annotated[
        int | None,
        Key("pipeline", rule=Limit(low=1, high=10_000, whole=True), example="2", also="pp pipeline_parallel stages"),
        "Number of pipeline stages.",
    ] = None
    micro_batch: Annotated[
        int | None,
        Key(
            "micro_batch",
            rule=Limit(low=1, high=1_000_000, whole=True),
            example="2",
            also="micro_batch_size mbs per_device_batch_size local_batch",
        ),
        "Samples of a micro-batch on each replica.",
    ] = None
    recompute: Annotated[
        Recomputed | None,
        Key(
            "recompute",
            example="selective",
            also="activation_checkpointing gradient_checkpointing checkpoint_activations remat",
        ),
        "Activations that backward computes again to save memory.",
    ] = None
    estimate_s: Annotated[
        float | None,
        Key("estimate", DURATION, Limit(low=1e-6, high=1e6), example="0.5s", also="estimated expected step_time"),
        "Estimated time of a step, which `status` shows beside the measured one.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """The split of a step over the ranks of a run; None leaves a part open."""

    choose: Annotated[
        Choose | None,
        Key("choose", example="auto", also="mode strategy search auto", alone=True),
        "`auto` chooses the keys left out by the estimates for `model`; without it they have their defaults.",
    ] = None
    data: Annotated[int | None, SameKey(SplitCandidate, "data")] = None
    shard: Annotated[Shard | None, SameKey(SplitCandidate, "shard")] = None
    tensor: Annotated[int | None, SameKey(SplitCandidate, "tensor")] = None
    pipeline: Annotated[int | None, SameKey(SplitCandidate, "pipeline")] = None
    micro_batch: Annotated[int | None, SameKey(SplitCandidate, "micro_batch")] = None
    recompute: Annotated[Recomputed | None, SameKey(SplitCandidate, "recompute")] = None
    batch: Annotated[
        int | None,
        Key(
            "batch",
            rule=Limit(low=1, high=1_000_000_000, whole=True),
            example="512",
            also="global_batch batch_size global_batch_size train_batch_size",
        ),
        "Samples of a step over all ranks; one for each replica and micro-batch when left out.",
    ] = None
    probe: Annotated[
        int | None,
        Key(
            "probe",
            rule=Limit(low=2, high=CANDIDATES_MOST, whole=True),
            example="3",
            also="trial trials autotune tune measure benchmark",
        ),
        "With `choose: auto`, how many of the best splits run for a few steps first; the fastest is kept.",
    ] = None
    candidates: Annotated[
        Mapping[str, SplitCandidate],
        Key(
            "candidates",
            Named(CANDIDATE_NAME, CANDIDATES_MOST),
            example="{whole: {shard: none}, sharded: {shard: gradients}}",
            also="candidate splits strategies options",
        ),
        "Splits that run for a few steps first, by name; keys left out are those of `parallel`.",
    ] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        enforce(broken(self))
        enforce(tuple(self._problems()))

    def _problems(self) -> Iterable[tuple[str, str]]:
        if len(self.candidates) > CANDIDATES_MOST:
            yield "candidates", f"{len(self.candidates)} splits; give at most {CANDIDATES_MOST}"
        for name in self.candidates:
            problem = CANDIDATE_NAME.problem(name)
            if problem is not None:
                yield "candidates", problem
