"""Models the network topology of nodes, and the cost of the traffic of a gang that is spread over them.

Levels go from wide to narrow: zone, block, rack, NVLink island, node. Labels place a node in them: those of Kubernetes,
of the GPU operator, of NVIDIA's topograph, and of the providers that have blocks; a cluster sets its own with
``topology.fairlead.dev/<level>``. A node without a label for a level that others have shares a domain of that level
only with the nodes with which it shares a narrower domain. Levels without any label are ignored.

A ring all-reduce among n ranks sends 2 (n - 1) / n times the data over each link of the ring, and is as slow as the
slowest (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009, section 3). So the cost of a gang is that of the
narrowest domain that holds it entirely, and only then of how often its ring leaves the domains within.

``LEVELS`` has the speeds that are assumed unless a cluster sets its own; none was measured here. Only their order
affects placement: a level within which links are no faster than between its domains makes no difference, and is left
out. A cluster sets its own with labels ``bandwidth.fairlead.dev/<level>``, whole gigabytes per second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.state.snapshot import Node
from fairlead.text.quantities import plural

OWN_DOMAIN = "topology.fairlead.dev/"
OWN_SPEED = "bandwidth.fairlead.dev/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyLevel:
    """Domains of one width.

    Attributes:
        keys: Labels whose value is the domain of a node; the first one present counts.
        bytes_per_s: The speed of a link, in one direction, between two devices that share such a domain and no narrower
            one.
    """

    name: str
    keys: tuple[str, ...] = ()
    bytes_per_s: float


# Between devices that share no domain at all: 25 Gbit/s.
FARTHEST_BYTES_PER_S = 3.125e9

LEVELS = (
    TopologyLevel(
        name="zone",
        keys=("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
        bytes_per_s=12.5e9,  # 100 Gbit/s: the rest of the adapter of each device on the way through the core
    ),
    TopologyLevel(
        name="block",
        keys=(
            "topology.kubernetes.io/block",
            "cloud.google.com/gce-topology-block",
            "topology.k8s.aws/network-node-layer-2",
            "oci.oraclecloud.com/rdma.network_block_id",
            "ib.coreweave.cloud/superpod",
            "fabric.topograph.run/tier-1",
            "network.topology.nvidia.com/spine",
        ),
        bytes_per_s=25e9,  # half of the next: uplinks are shared by two
    ),
    TopologyLevel(
        name="rack",
        keys=(
            "topology.kubernetes.io/rack",
            "cloud.google.com/gce-topology-subblock",
            "topology.k8s.aws/network-node-layer-3",
            "oci.oraclecloud.com/rdma.local_block_id",
            "ib.coreweave.cloud/leafgroup",
            "node.coreweave.cloud/rack",
            "fabric.topograph.run/tier-0",
            "network.topology.nvidia.com/leaf",
        ),
        bytes_per_s=50e9,  # an adapter of 400 Gbit/s for each device
    ),
    TopologyLevel(
        name="island",
        keys=(
            "nvidia.com/gpu.clique",
            "accelerator.topograph.run/domain",
            "network.topology.nvidia.com/accelerator",
            "ds.coreweave.com/nvlink.domain",
        ),
        bytes_per_s=450e9,  # NVLink 4, one direction
    ),
)
_ZONE = replace(LEVELS[0], keys=(f"{OWN_DOMAIN}{LEVELS[0].name}", *LEVELS[0].keys))
NODE = TopologyLevel(name="node", bytes_per_s=450e9)

# A domain is named with its enclosing ones, because racks of two zones may have the same number.
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The relevant levels of some nodes, wide to narrow, and the domains of each node.

    Attributes:
        paths: The domain of every level, by node name.
    """

    levels: tuple[TopologyLevel, ...]
    paths: Mapping[str, Path]

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> "Fabric":
        """Return the fabric by the labels of nodes: a walk over all labels, then a look-up for each node and level."""
        spoken = set[str]().union(*(node.labels for node in nodes))
        speeds = _speeds(nodes) if any(key.startswith(OWN_SPEED) for key in spoken) else {}
        levels = list[TopologyLevel]()
        for level in (*LEVELS, NODE):
            keys = tuple(key for key in (f"{OWN_DOMAIN}{level.name}", *level.keys) if key in spoken)
            if keys or level is NODE:
                speed = speeds.get(level.name, level.bytes_per_s)
                if speed > (levels[-1].bytes_per_s if levels else FARTHEST_BYTES_PER_S):
                    levels.append(replace(level, keys=() if level is NODE else keys, bytes_per_s=speed))
        return cls(levels=tuple(levels), paths={node.name: _path(node, levels) for node in nodes})

    def shared(self, names: Sequence[str]) -> int:
        """Return how many levels, from the widest on, have one domain that holds all of these nodes."""
        held = list(zip(*(self.paths[name] for name in names), strict=True))
        return next((number for number, domains in enumerate(held) if len(set(domains)) > 1), len(held))

    def slowest_bytes_per_s(self, names: Sequence[str]) -> float:
        """Return the speed of the slowest link of a ring through these nodes."""
        shared = self.shared(names)
        return self.levels[shared - 1].bytes_per_s if shared else FARTHEST_BYTES_PER_S

    def crossings(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the number of domains of the nodes at each level: how often a ring leaves one, if more than one."""
        paths = {self.paths[name] for name in names}
        return tuple(len({path[: number + 1] for path in paths}) for number in range(len(self.levels)))


def describe_where(nodes: Sequence[Node], names: Sequence[str]) -> str | None:
    """Describe the narrowest domain of some nodes, such as "2 nodes in rack r1"; None without labels."""
    chosen = sorted(set(names))
    if len(chosen) < 2:
        return None
    members = [node for node in nodes if node.name in chosen]
    fabric, labels = Fabric.of(members), {node.name: node.labels for node in members}
    shared, crossings = fabric.shared(chosen), fabric.crossings(chosen)
    named = [(level, _domain(level, labels[chosen[0]])) for level in fabric.levels[:shared] if level.keys]
    over = fabric.levels[shared] if shared < len(fabric.levels) and fabric.levels[shared].keys else None
    among = plural(len(chosen), "node")
    if over is not None:
        among = f"{among} in {plural(crossings[shared], over.name)}"
    if not named:
        return among if over is not None else None
    level, domain = named[-1]
    return f"{among} {'in' if over is None else 'of'} {level.name} {domain}"


def domains_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the domain of a node at each level for which it has a label, wide to narrow, by the names of levels."""
    own = ((level, replace(level, keys=(f"{OWN_DOMAIN}{level.name}", *level.keys))) for level in LEVELS)
    named = ((level.name, _domain(whole, labels)) for level, whole in own)
    return {name: domain for name, domain in named if domain is not None}


def zone_of(node: Node) -> str | None:
    """Return the zone of a node by its labels; None without one."""
    return _domain(_ZONE, node.labels)


def _speeds(nodes: Sequence[Node]) -> dict[str, float]:
    """Return the speed of each level from labels; the minimum counts, and values that are not numbers are ignored."""
    speeds: dict[str, float] = {}
    for node in nodes:
        for key, text in node.labels.items():
            if key.startswith(OWN_SPEED) and text.isdecimal() and int(text):
                level, speed = key.removeprefix(OWN_SPEED), 1e9 * int(text)
                speeds[level] = min(speed, speeds.get(level, speed))
    return speeds


def _path(node: Node, levels: Sequence[TopologyLevel]) -> Path:
    path = [node.name]
    for level in reversed(levels):
        path.append(_domain(level, node.labels) or f"/{path[-1]}")
    return tuple(reversed(path[1:]))


def _domain(level: TopologyLevel, labels: Mapping[str, str]) -> str | None:
    return next((labels[key] for key in level.keys if labels.get(key)), None)
