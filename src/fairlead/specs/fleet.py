"""The spec of a fleet: clusters for one queue of runs, owned ones first, rented ones when waiting costs more."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, Limit, Text, enforce, quote
from fairlead.specs.field_types import DOLLARS, DURATION, Named
from fairlead.specs.key import Key, broken
from fairlead.specs.workload import Kind

CLUSTERS_MOST = 16
PRICE = Limit(low=0.000001, high=1_000_000, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A cluster of a fleet."""

    context: Annotated[
        str | None,
        Key("context", rule=Text(max_length=253), example="gpu-cloud", also="cluster kubeconfig ctx"),
        "Context of the kubeconfig; this machine when left out.",
    ] = None
    namespace: Annotated[
        str | None,
        Key("namespace", rule=NAME, example="research", also="team ns"),
        "Namespace of the runs there; the context's own when left out.",
    ] = None
    gpu_price: Annotated[
        float,
        Key("gpu_price", DOLLARS, PRICE, example="2.50", also="price price_per_hour cost"),
        "Dollars for an hour of a GPU; 0 where GPUs are your own.",
    ] = 0.0
    cpu_price: Annotated[
        float,
        Key("cpu_price", DOLLARS, PRICE, example="0.04", also="core_price"),
        "Dollars for an hour of a core, for runs without GPUs.",
    ] = 0.0
    most_gpus: Annotated[
        int | None,
        Key("max_gpus", rule=Limit(low=0, high=1_000_000, whole=True), example="64", also="gpus limit gpu_limit quota"),
        "GPUs that runs of the fleet may hold there at one time.",
    ] = None
    most_cpus: Annotated[
        int | None,
        Key("max_cpus", rule=Limit(low=0, high=10_000_000, whole=True), example="256", also="cpus cores cpu_limit"),
        "Cores that runs without GPUs may hold there at one time.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def is_rented(self) -> bool:
        """Return whether it has a price."""
        return self.gpu_price > 0 or self.cpu_price > 0

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.context is None and self.namespace is not None:
            yield "namespace", "this machine has none; give `context`, or leave `namespace` out"
        for name, key in (("most_gpus", "max_gpus"), ("most_cpus", "max_cpus")):
            if getattr(self, name) is not None and not self.is_rented:
                yield name, f"without a price runs wait there for their turn; give `gpu_price`, or leave `{key}` out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Clusters among which runs are divided."""

    kind: ClassVar[str] = Kind.FLEET

    name: Annotated[
        str,
        Key("name", rule=NAME, example="research", metadata="name"),
        "Lower-case letters, digits and dashes, at most 50.",
    ]
    clusters: Annotated[
        Mapping[str, Member],
        Key(
            "clusters",
            Named(NAME, CLUSTERS_MOST),
            example="{home: {}, cloud: {context: gpu-cloud, gpu_price: 2.50}}",
            also="contexts members",
        ),
        "The clusters that share the runs, by name; those without a price are used first.",
    ] = field(hash=False)
    wait_s: Annotated[
        float,
        Key("wait", DURATION, Limit(low=1, high=30 * 86400.0), example="30m", also="max_wait average_wait patience"),
        "Mean time that runs may wait before GPUs are rented.",
    ] = 1800.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if not self.clusters:
            yield "clusters", "there is none; give at least one, such as `{home: {}}` for this machine"
        if len(self.clusters) > CLUSTERS_MOST:
            yield "clusters", f"{len(self.clusters)} clusters; give at most {CLUSTERS_MOST}"
        places: dict[tuple[str | None, str | None], str] = {}
        for name, member in self.clusters.items():
            if (problem := NAME.problem(name)) is not None:
                yield "clusters", problem
            other = places.setdefault((member.context, member.namespace), name)
            if other != name:
                yield "clusters", f"{quote(name)} and {quote(other)} are the same cluster; remove one of them"
