"""The test of a gang's nodes before its program starts. See decision 268."""

from collections.abc import Iterable
from typing import Annotated

from fairlead.frozen import dataclass
from fairlead.specs.constraints import Limit, enforce
from fairlead.specs.field_types import DURATION, NUMBER_OF_STEPS
from fairlead.specs.key import Key, broken

LEAST_S, MOST_S = 1.0, 3600.0
MOST_STEPS = 100
EMPTY = "it tests nothing; give `gpu: 60s`, `network: 60s`, `loss: 3 steps`, or several"
NO_GPUS = (
    "`preflight.gpu` multiplies matrices on GPUs, and no other test stands for it; ask for them by `resources.gpu`"
)
ONE_NODE = "`preflight.network` measures between nodes; give `nodes: 2` or more, or leave it out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The test of the nodes of a gang, before its program first starts there."""

    gpu_s: Annotated[
        float | None,
        Key(
            "gpu",
            DURATION,
            Limit(low=LEAST_S, high=MOST_S),
            example="60s",
            also="gpus burn gpu_burn gpu_test gpu_s",
        ),
        "Time for which all GPUs multiply matrices, of which each product is checked; needs torch.",
    ] = None
    network_s: Annotated[
        float | None,
        Key(
            "network",
            DURATION,
            Limit(low=LEAST_S, high=MOST_S),
            example="60s",
            also="links nccl bandwidth network_test network_s",
        ),
        "Longest time for measuring between pairs of nodes; from four nodes on a slow one is named.",
    ] = None

    loss_steps: Annotated[
        int | None,
        Key(
            "loss",
            NUMBER_OF_STEPS,
            Limit(low=1, high=MOST_STEPS, whole=True),
            example="3 steps",
            also="first_steps steps numerics loss_steps",
        ),
        "Steps of one and the same training in each pod; a device whose loss differs from most is named. Needs torch.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def longest_s(self) -> float:
        """Return the seconds that the tests in time take at most, without that in which pods wait for one another."""
        return (self.gpu_s or 0.0) + (self.network_s or 0.0)

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.gpu_s is None and self.network_s is None and self.loss_steps is None:
            yield "gpu_s", EMPTY
