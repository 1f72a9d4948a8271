"""The shape of a model, and the split of a training step over GPUs."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.specs.constraints import PATH, Constraints, Limit, Text, broken, enforce

MODEL_RULES: Constraints = {
    "config": PATH,
    "layers": Limit(low=1, high=10_000, whole=True),
    "hidden": Limit(low=1, high=1_000_000, whole=True),
    "heads": Limit(low=1, high=100_000, whole=True),
    "kv_heads": Limit(low=1, high=100_000, whole=True),
    "width": Limit(low=1, high=10_000_000, whole=True),
    "vocabulary": Limit(low=1, high=100_000_000, whole=True),
    "sequence": Limit(low=1, high=100_000_000, whole=True),
}

CANDIDATES_MOST = 16
CANDIDATE_NAME = Text(
    max_length=63, pattern="[a-z0-9]([-a-z0-9]*[a-z0-9])?", what="a name of lower-case letters, digits and dashes"
)

CANDIDATE_RULES: Constraints = {
    "data": Limit(low=1, high=1_000_000, whole=True),
    "tensor": Limit(low=1, high=1_024, whole=True),
    "pipeline": Limit(low=1, high=10_000, whole=True),
    "micro_batch": Limit(low=1, high=1_000_000, whole=True),
    "estimate_s": Limit(low=1e-6, high=1e6),
}

PARALLEL_RULES: Constraints = {
    **{name: rule for name, rule in CANDIDATE_RULES.items() if name != "estimate_s"},
    "batch": Limit(low=1, high=1_000_000_000, whole=True),
    "probe": Limit(low=2, high=CANDIDATES_MOST, whole=True),
}


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
    """The dimensions of a transformer that determine its memory and time.

    Attributes:
        config: Path of a ``config.json`` of Hugging Face, which supplies the fields that are None.
        layers: Number of blocks.
        hidden: Width of the residual stream.
        heads: Number of attention heads.
        kv_heads: Number of heads of keys and values; None for as many as ``heads``.
        width: Inner width of the MLP; None for four times ``hidden``.
        vocabulary: Number of tokens.
        sequence: Tokens per sample; None for the maximum in ``config``.
    """

    config: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    width: int | None = None
    vocabulary: int | None = None
    sequence: int | None = None

    def __post_init__(self) -> None:
        enforce(broken(self, MODEL_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCandidate:
    """A split that a run tries for a few steps; None keeps a part as in the run.

    Attributes:
        estimate_s: Estimated seconds per step; None if unknown.
    """

    data: int | None = None
    shard: Shard | None = None
    tensor: int | None = None
    pipeline: int | None = None
    micro_batch: int | None = None
    recompute: Recomputed | None = None
    estimate_s: float | None = None

    def __post_init__(self) -> None:
        enforce(broken(self, CANDIDATE_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """The split of a step over the ranks of a run; None leaves a part open.

    Attributes:
        choose: ``AUTO`` fills in open parts by estimates; None by the simplest split.
        data: Number of replicas.
        shard: State that replicas shard.
        tensor: Number of parts of each layer.
        pipeline: Number of stages.
        micro_batch: Samples per micro-batch.
        recompute: Activations that the backward pass recomputes.
        batch: Samples per step over all ranks.
        probe: Number of best splits by estimate that become ``candidates``; None uses the best without measuring.
        candidates: Splits that the run's first attempts try, by name; the fastest is kept.
    """

    choose: Choose | None = None
    data: int | None = None
    shard: Shard | None = None
    tensor: int | None = None
    pipeline: int | None = None
    micro_batch: int | None = None
    recompute: Recomputed | None = None
    batch: int | None = None
    probe: int | None = None
    candidates: Mapping[str, SplitCandidate] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        enforce(broken(self, PARALLEL_RULES))
        enforce(tuple(self._problems()))

    def _problems(self) -> Iterable[tuple[str, str]]:
        if len(self.candidates) > CANDIDATES_MOST:
            yield "candidates", f"{len(self.candidates)} splits; give at most {CANDIDATES_MOST}"
        for name in self.candidates:
            problem = CANDIDATE_NAME.problem(name)
            if problem is not None:
                yield "candidates", problem
