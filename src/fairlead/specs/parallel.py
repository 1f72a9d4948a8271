"""A model by its shape, and how a step of its training is split over GPUs."""

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
    """The one who chooses what a split leaves open."""

    AUTO = "auto"


class Shard(StrEnum):
    """The things that data parallel ranks divide among them rather than copy (ZeRO stages 0, 2 and 3)."""

    NONE = "none"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"


class Recomputed(StrEnum):
    """The activations that backward computes again rather than keeping them."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A transformer, as far as its memory and time go by it.

    Attributes:
        config: A ``config.json`` of Hugging Face, which says what is None here.
        layers: Blocks.
        hidden: Width of the residual stream.
        heads: Attention heads.
        kv_heads: Heads of keys and values; None for as many as ``heads``.
        width: Inner width of the MLP; None for four times ``hidden``.
        vocabulary: Tokens.
        sequence: Tokens of a sample; None for the most that ``config`` says.
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
    """A split that a run tries for a few steps; None leaves a part as the run has it.

    Attributes:
        estimate_s: Seconds that a step of it was estimated to take; None where nothing is known.
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
        choose: ``AUTO`` fills in what is None by the estimates; None by the plainest split.
        data: Replicas.
        shard: What they divide among them.
        tensor: Parts of each layer.
        pipeline: Stages.
        micro_batch: Samples that go through at once.
        recompute: What backward computes again.
        batch: Samples of a step over all ranks.
        probe: How many of the best splits by estimate become ``candidates``; None has the best one taken unmeasured.
        candidates: Splits that the run's first starts try, by name; the fastest of them is kept.
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
