"""The spec of a fleet: clusters for one queue of runs, owned ones first, rented ones when waiting costs more."""

from collections.abc import Iterable, Mapping
from dataclasses import field

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, Constraints, Limit, Text, broken, enforce, quote

CLUSTERS_MOST = 16
DOLLARS = Limit(low=0.000001, high=1_000_000, zero=True)

MEMBER_RULES: Constraints = {
    "context": Text(max_length=253),
    "namespace": NAME,
    "gpu_price": DOLLARS,
    "cpu_price": DOLLARS,
    "most_gpus": Limit(low=0, high=1_000_000, whole=True),
    "most_cpus": Limit(low=0, high=10_000_000, whole=True),
}
FLEET_RULES: Constraints = {"name": NAME, "wait_s": Limit(low=1, high=30 * 86400.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A cluster of a fleet.

    Attributes:
        context: Context of the kubeconfig; None for this machine.
        namespace: Namespace on Kubernetes; None for that of the context.
        gpu_price: Dollars per GPU-hour; 0 for owned GPUs.
        cpu_price: Dollars per core-hour, for runs without GPUs.
        most_gpus: Maximum GPUs that runs of the fleet hold there at a time; None for no limit.
        most_cpus: Maximum cores, likewise, for runs without GPUs.
    """

    context: str | None = None
    namespace: str | None = None
    gpu_price: float = 0.0
    cpu_price: float = 0.0
    most_gpus: int | None = None
    most_cpus: int | None = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def is_rented(self) -> bool:
        """Return whether it has a price."""
        return self.gpu_price > 0 or self.cpu_price > 0

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, MEMBER_RULES)
        if self.context is None and self.namespace is not None:
            yield "namespace", "this machine has none; give `context`, or leave `namespace` out"
        for name, key in (("most_gpus", "max_gpus"), ("most_cpus", "max_cpus")):
            if getattr(self, name) is not None and not self.is_rented:
                yield name, f"without a price runs wait there for their turn; give `gpu_price`, or leave `{key}` out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Clusters among which runs are divided.

    Attributes:
        clusters: Clusters by the names used in reasons and statuses.
        wait_s: Acceptable average wait before the start of a run, in seconds, above which nodes are rented.
    """

    name: str
    clusters: Mapping[str, Member] = field(hash=False)
    wait_s: float = 1800.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, FLEET_RULES)
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
