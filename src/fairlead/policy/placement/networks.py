"""Finds the fast network that the nodes of a gang share, and what a pod requests to use it.

A node shows its fabric by the extended resources of a device plugin. ``PROFILES`` says for each fabric which resource
that is, how many of them a pod takes, and which variables the collective library needs, each with its source. See
decision 244.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from fairlead.frozen import dataclass
from fairlead.specs.gang import GangSpec
from fairlead.specs.network import FabricChoice, Network
from fairlead.state.snapshot import Node
from fairlead.text.quantities import plural

EFA_RESOURCE, RDMA_DOMAIN = "vpc.amazonaws.com/efa", "rdma/"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricProfile:
    """One kind of fabric, as a cloud or an operator offers it.

    Attributes:
        resource: The extended resource of nodes, or the beginning of its name if it ends in a slash.
        label: The beginning of a label of nodes that have it; None for any node with the resource.
        is_divided: Whether each device is one pod's alone, so that a pod takes as many as its part of the GPUs; else
            one unit gives a pod all adapters.
        variables: Variables of the ranks; those of the spec take precedence.
        source: The document that says so.
    """

    name: str
    fabric: FabricChoice
    resource: str
    label: str | None = None
    is_divided: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    source: str


PROFILES = (
    FabricProfile(
        name="EFA",
        fabric=FabricChoice.EFA,
        resource=EFA_RESOURCE,
        is_divided=True,
        variables={"FI_PROVIDER": "efa"},
        source="Amazon EKS User Guide, Run machine learning training on Amazon EKS with Elastic FabricChoice Adapter",
    ),
    FabricProfile(
        name="CoreWeave InfiniBand",
        fabric=FabricChoice.RDMA,
        resource=RDMA_DOMAIN,
        label="ib.coreweave.cloud/",
        variables={"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "ibp"},
        source="CoreWeave Docs, Use GPUDirect RDMA with InfiniBand",
    ),
    FabricProfile(
        name="Azure InfiniBand",
        fabric=FabricChoice.RDMA,
        resource=RDMA_DOMAIN,
        label="kubernetes.azure.com/",
        variables={"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_PCI_RELAXED_ORDERING": "1"},
        source="Azure HPC documentation, Set up Message Passing Interface and NCCL for HPC",
    ),
    FabricProfile(
        name="RDMA",
        fabric=FabricChoice.RDMA,
        resource=RDMA_DOMAIN,
        source="k8s-rdma-shared-dev-plugin, README: one rdma/ resource gives a pod the devices of its selector",
    ),
)
"""The fabrics that pods of teams may use, the more particular before the general."""
_PLAIN = FabricProfile(
    name="RDMA", fabric=FabricChoice.RDMA, resource="", is_divided=True, source="SR-IOV network device plugin, README"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedFabric:
    """A fabric whose pods need what pods of teams may not have.

    Attributes:
        labels: Values of the label by which its nodes are known.
        needs: What its pods need.
    """

    name: str
    label: str
    values: tuple[str, ...]
    needs: str


UNSUPPORTED = (
    UnsupportedFabric(
        name="GPUDirect-TCPX",
        label="cloud.google.com/gke-accelerator",
        values=("nvidia-h100-80gb",),
        needs="a privileged container beside the ranks, and directories of the node",
    ),
    UnsupportedFabric(
        name="GPUDirect-TCPXO",
        label="cloud.google.com/gke-accelerator",
        values=("nvidia-h100-mega-80gb",),
        needs="a container with NET_ADMIN beside the ranks, and directories of the node",
    ),
    UnsupportedFabric(
        name="GPUDirect RDMA of GKE",
        label="cloud.google.com/gke-accelerator",
        values=("nvidia-h200-141gb", "nvidia-b200", "nvidia-gb200"),
        needs="directories of the node, and interfaces that an administrator has to define",
    ),
)
"""Fabrics that Fairlead recognizes and does not use (Google Kubernetes Engine, Maximize GPU network bandwidth)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricShare:
    """The fabric of one pod.

    Attributes:
        resource: The extended resource that it requests.
        count: How many of it.
    """

    profile: FabricProfile
    resource: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Endowment:
    """The offer of a node beside cores, memory and GPUs, for one member of a gang.

    Attributes:
        extended: Its extended resources that are no GPUs, with their numbers.
        num_gpus: GPUs of the node, or parts of GPUs that pods request.
        num_granted: Those of them that the member has.
    """

    labels: Mapping[str, str]
    extended: Mapping[str, int]
    num_gpus: int = 0
    num_granted: int = 0


def connect(network: Network, members: Sequence[Endowment], index: int) -> FabricShare | None:
    """Return the fabric of a member of a gang; None for the cluster's own network.

    Under ``auto`` a gang uses a fabric if it has several pods with GPUs, all of whose nodes have it, and if every pod
    with GPUs of a node could get its part: a library that finds the fabric in some pods alone waits for ever.

    Args:
        members: The nodes of all members, by index.
    """
    if network.fabric is FabricChoice.NONE:
        return None
    if not network.is_required and (len(members) < 2 or not all(member.num_granted for member in members)):
        return None
    connections = [_connection(network, member) for member in members]
    if network.is_required:
        return connections[index]
    kinds = {None if connection is None else connection.profile.fabric for connection in connections}
    return connections[index] if len(kinds) == 1 else None


def why_unconnected(network: Network, labels: Mapping[str, str], extended: Mapping[str, int]) -> str | None:
    """Return why a node has not the required fabric; None if it has, or none is required. Continues "node a is"."""
    if not network.is_required or _offer(network, labels, extended) is not None:
        return None
    resource = network.rdma or (EFA_RESOURCE if network.fabric is FabricChoice.EFA else f"a resource {RDMA_DOMAIN}...")
    return f"without {resource}, which `network: {network.fabric}` needs"


def describe_network(spec: GangSpec, nodes: Iterable[Node]) -> str | None:
    """Return a sentence on the fabrics that a gang finds on these nodes; None if there is nothing to say."""
    network = spec.network
    if network.fabric is FabricChoice.NONE or spec.nodes < 2:
        return None
    offers: dict[str, list[str]] = {}
    unused: dict[str, str] = {}
    for node in nodes:
        offer = _offer(network, node.labels, node.extended)
        if offer is not None:
            offers.setdefault(f"{offer[0].name} by {offer[1]}", []).append(node.name)
        elif (unsupported := unsupported_fabric(node.labels)) is not None:
            unused[unsupported.name] = unsupported.needs
    texts = [f"{name} on {plural(len(names), 'node')}" for name, names in sorted(offers.items())]
    texts += [f"{name} is not used, as it needs {needs}" for name, needs in sorted(unused.items())]
    return f"network: {'; '.join(texts)}" if texts else None


def unsupported_fabric(labels: Mapping[str, str]) -> UnsupportedFabric | None:
    """Return the fabric of a node that is recognized and not used; None without one."""
    return next((fabric for fabric in UNSUPPORTED if labels.get(fabric.label) in fabric.values), None)


def _offer(
    network: Network, labels: Mapping[str, str], extended: Mapping[str, int]
) -> tuple[FabricProfile, str, int] | None:
    """Return the profile of a node's fabric, the resource, and how many the node has; None without it."""
    if network.rdma is not None and not network.rdma.startswith(RDMA_DOMAIN):
        count = extended.get(network.rdma, 0)
        return (_PLAIN, network.rdma, count) if count > 0 else None
    for profile in PROFILES:
        if network.is_required and profile.fabric is not network.fabric:
            continue
        if profile.label is not None and not any(label.startswith(profile.label) for label in labels):
            continue
        for resource, count in sorted(extended.items()):
            is_meant = resource == network.rdma if network.rdma else resource.startswith(profile.resource)
            if is_meant and count > 0:
                return profile, resource, count
    return None


def _connection(network: Network, member: Endowment) -> FabricShare | None:
    offer = _offer(network, member.labels, member.extended)
    if offer is None:
        return None
    profile, resource, offered = offer
    has_all = member.num_gpus in (0, member.num_granted)
    if profile.is_divided:
        count = offered if has_all else offered * member.num_granted // member.num_gpus
    else:
        count = int(has_all or offered >= member.num_gpus)
    count = max(count, int(network.is_required))
    return FabricShare(profile=profile, resource=resource, count=count) if count else None
