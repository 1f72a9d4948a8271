"""Aggregation of the updates of a federation: a strategy of Flower, and a budget of differential privacy."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

from fairlead.frozen import dataclass
from fairlead.specs.constraints import Limit, enforce
from fairlead.specs.field_types import FACTOR
from fairlead.specs.key import Key, broken

LEAST_NOISE, MOST_NOISE = 0.3, 1e5
"""Bounds of the noise multiplier; below the least, one round spends an epsilon of 20 and more."""
RATE = Limit(low=1e-9, high=1e3)
SITES_MOST = 100
"""The greatest number of sites of a federation."""


class Aggregator(StrEnum):
    """A strategy of ``flwr.serverapp.strategy``."""

    FEDAVG = "fedavg"
    FEDPROX = "fedprox"
    FEDAVGM = "fedavgm"
    FEDADAM = "fedadam"
    FEDYOGI = "fedyogi"
    FEDADAGRAD = "fedadagrad"
    FEDMEDIAN = "fedmedian"
    FEDTRIMMEDAVG = "fedtrimmedavg"
    KRUM = "krum"
    MULTIKRUM = "multikrum"
    BULYAN = "bulyan"


_ADAPTIVE = {"learning_rate": "eta", "tau": "tau"}
_MOMENTS = {**_ADAPTIVE, "momentum": "beta_1", "beta_2": "beta_2"}
_MALICIOUS = {"malicious": "num_malicious_nodes"}
_CLASSES: Mapping[Aggregator, tuple[str, Mapping[str, str]]] = {
    Aggregator.FEDAVG: ("FedAvg", {}),
    Aggregator.FEDPROX: ("FedProx", {"mu": "proximal_mu"}),
    Aggregator.FEDAVGM: ("FedAvgM", {"learning_rate": "server_learning_rate", "momentum": "server_momentum"}),
    Aggregator.FEDADAM: ("FedAdam", _MOMENTS),
    Aggregator.FEDYOGI: ("FedYogi", _MOMENTS),
    Aggregator.FEDADAGRAD: ("FedAdagrad", _ADAPTIVE),
    Aggregator.FEDMEDIAN: ("FedMedian", {}),
    Aggregator.FEDTRIMMEDAVG: ("FedTrimmedAvg", {"trim": "beta"}),
    Aggregator.KRUM: ("Krum", _MALICIOUS),
    Aggregator.MULTIKRUM: ("MultiKrum", {**_MALICIOUS, "selected": "num_nodes_to_select"}),
    Aggregator.BULYAN: ("Bulyan", _MALICIOUS),
}
"""The class of each strategy in Flower, and the argument that each of its keys is there."""
STRATEGY_CLASSES = frozenset(name for name, _ in _CLASSES.values())
PARAMETERS = ("mu", "learning_rate", "momentum", "beta_2", "tau", "trim", "malicious", "selected")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationStrategy:
    """A strategy of Flower and its parameters; Flower's defaults, or those of the app, for what is left out.

    FedAvg is of McMahan et al. (2017), FedProx of Li et al. (2020), FedAvgM of Hsu et al. (2019), FedAdam, FedYogi and
    FedAdagrad of Reddi et al. (2021), FedMedian and FedTrimmedAvg of Yin et al. (2018), Krum of Blanchard et al.
    (2017), Bulyan of El Mhamdi et al. (2018).
    """

    strategy: Annotated[
        Aggregator,
        Key("strategy", example="fedadam", also="name type class algorithm aggregator method rule", alone=True),
        "The strategy of Flower, in place of the app's own.",
    ]
    mu: Annotated[
        float | None,
        Key("mu", FACTOR, Limit(low=1e-9, high=1e6), example="0.1", also="proximal_mu proximal"),
        "Of fedprox: the weight of the proximal term, which the ClientApp finds as `proximal-mu` in its configuration.",
    ] = None
    learning_rate: Annotated[
        float | None,
        Key("learning_rate", FACTOR, RATE, example="0.03", also="eta lr rate server_learning_rate server_lr"),
        "Of fedavgm, fedadam, fedyogi and fedadagrad: the server's learning rate.",
    ] = None
    momentum: Annotated[
        float | None,
        Key("momentum", FACTOR, Limit(low=0.0, high=0.9999), example="0.9", also="beta_1 beta1 server_momentum"),
        "Of fedavgm, fedadam and fedyogi: the share of the former update that is kept.",
    ] = None
    beta_2: Annotated[
        float | None,
        Key("beta_2", FACTOR, Limit(low=0.0, high=0.9999), example="0.99", also="beta2 second_momentum"),
        "Of fedadam and fedyogi: the share of the former second moment that is kept.",
    ] = None
    tau: Annotated[
        float | None,
        Key("tau", FACTOR, Limit(low=1e-12, high=1e3), example="0.001", also="epsilon eps adaptivity"),
        "Of fedadam, fedyogi and fedadagrad: the term beside the root of the second moment.",
    ] = None
    trim: Annotated[
        float | None,
        Key("trim", FACTOR, Limit(low=0.0, high=0.499), example="0.2", also="beta cut proportiontocut"),
        "Of fedtrimmedavg: the share of the updates that is left out at either end.",
    ] = None
    malicious: Annotated[
        int | None,
        Key(
            "malicious",
            rule=Limit(low=0, high=SITES_MOST, whole=True),
            example="1",
            also="num_malicious_nodes num_malicious byzantine f",
        ),
        "Of krum, multikrum and bulyan: the number of sites that may send anything.",
    ] = None
    selected: Annotated[
        int | None,
        Key(
            "selected",
            rule=Limit(low=1, high=SITES_MOST, whole=True),
            example="3",
            also="num_nodes_to_select to_keep num_selected",
        ),
        "Of multikrum: the number of updates that are averaged.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def strategy_class(self) -> str:
        """Return the name of the class in ``flwr.serverapp.strategy``."""
        return _CLASSES[self.strategy][0]

    @property
    def arguments(self) -> Mapping[str, float]:
        """Return the arguments of that class that are given."""
        pairs = ((argument, getattr(self, name)) for name, argument in _CLASSES[self.strategy][1].items())
        return {argument: value for argument, value in pairs if value is not None}

    @property
    def least_updates(self) -> int:
        """Return the updates of a round without which the strategy cannot work, or promises nothing.

        Krum: more than 2 f + 2 (Blanchard et al., 2017, proposition 1); Bulyan: 4 f + 3 (El Mhamdi et al., 2018).
        """
        malicious = self.malicious or 0
        if self.strategy in (Aggregator.KRUM, Aggregator.MULTIKRUM):
            return max(2 * malicious + 3, self.selected or 0)
        return 4 * malicious + 3 if self.strategy is Aggregator.BULYAN else 1

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        own = _CLASSES[self.strategy][1]
        takes = f"it takes {' and '.join(f'`{name}`' for name in own)}" if own else "it takes none"
        for name in PARAMETERS:
            if getattr(self, name) is not None and name not in own:
                yield name, f"is no parameter of {self.strategy}; {takes}, so leave this out or choose another strategy"
        if self.strategy is Aggregator.FEDPROX and self.mu is None:
            yield "mu", "fedprox without it is fedavg; give the weight of its proximal term, such as 0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """A budget of differential privacy of the sites, for the models of all rounds together.

    Each update is clipped, and Gaussian noise is added to their sum (McMahan et al., arXiv:1710.06963).
    """

    epsilon: Annotated[
        float,
        Key("epsilon", FACTOR, Limit(low=0.01, high=1000.0), example="8", also="eps budget target_epsilon max_epsilon"),
        "Budget of all rounds; the federation ends before the round that would exceed it.",
    ]
    delta: Annotated[
        float,
        Key("delta", FACTOR, Limit(low=1e-15, high=0.1), example="1e-5", also="target_delta"),
        "Probability with which epsilon may be exceeded; well below one over the number of sites.",
    ]
    clip: Annotated[
        float,
        Key("clip", FACTOR, Limit(low=1e-9, high=1e9), example="0.5", also="clipping_norm max_grad_norm norm l2_norm"),
        "Greatest L2 norm of a site's update of the model; larger ones are scaled down to it.",
    ]
    noise: Annotated[
        float | None,
        Key("noise", FACTOR, Limit(low=LEAST_NOISE, high=MOST_NOISE), example="1.1", also="noise_multiplier sigma z"),
        "Standard deviation of the noise of the sum, over `clip`; the least with which `rounds` fit if left out.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))
