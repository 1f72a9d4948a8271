"""Which fast network a gang uses follows from what its nodes offer, and a run that needs one waits for it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.placement.networks import EFA_RESOURCE, PROFILES, Endowment, connect, describe_network
from fairlead.policy.placement.node_eligibility import Eligibility
from fairlead.policy.placement.placement import why_never
from fairlead.specs.network import FabricChoice, Network
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from tests.builders import node

AUTO, EFA, RDMA, NONE = (
    Network(profile=fabric) for fabric in (FabricChoice.AUTO, FabricChoice.EFA, FabricChoice.RDMA, FabricChoice.NONE)
)
ONE_GPU = Resources(cpu_milli=1000, memory_bytes=1 << 30, gpu=GpuRequest(milli=1000))


def offers(
    granted: int = 8, gpus: int = 8, *, labels: Mapping[str, str] | None = None, efa: int = 0, rdma: int = 0
) -> Endowment:
    """A node with adapters of EFA and of RDMA, and a member with some of its GPUs."""
    extended = {EFA_RESOURCE: efa, "rdma/hca": rdma}
    return Endowment(labels=labels or {}, extended=extended, num_gpus=gpus, num_granted=granted)


def training(network: Network, nodes: int = 2) -> Training:
    return Training(name="t", run="python train.py", nodes=nodes, resources=ONE_GPU, network=network)


def test_a_gang_on_whole_nodes_gets_all_their_adapters() -> None:
    connection = connect(AUTO, [offers(efa=32), offers(efa=32)], 1)
    assert connection is not None
    assert (connection.resource, connection.count) == (EFA_RESOURCE, 32)
    assert connection.profile.variables == {"FI_PROVIDER": "efa"}


def test_a_pod_with_part_of_the_gpus_gets_that_part_of_the_adapters() -> None:
    connection = connect(AUTO, [offers(granted=2, efa=32), offers(granted=2, efa=32)], 0)
    assert connection is not None
    assert connection.count == 8


def test_pods_share_adapters_of_which_one_unit_gives_all_only_where_each_pod_with_gpus_could_have_one() -> None:
    several, one = [offers(granted=2, rdma=63)] * 2, [offers(granted=2, rdma=1)] * 2
    connection = connect(AUTO, several, 0)
    assert connection is not None
    assert connection.count == 1
    assert connect(AUTO, one, 0) is None
    assert connect(AUTO, [offers(rdma=1)] * 2, 0) is not None


def test_a_gang_with_one_node_without_the_fabric_uses_it_on_none() -> None:
    members = [offers(efa=32), offers(), offers(efa=32)]
    assert [connect(AUTO, members, index) for index in range(3)] == [None] * 3


def test_a_gang_between_two_fabrics_uses_neither() -> None:
    members = [offers(efa=32), offers(rdma=63)]
    assert [connect(AUTO, members, index) for index in range(2)] == [None] * 2


@pytest.mark.parametrize("members", [[offers(efa=32)], [offers(granted=0, efa=32)] * 2], ids=["one pod", "no GPUs"])
def test_a_run_that_has_no_use_for_a_fabric_gets_none_unless_it_says_so(members: list[Endowment]) -> None:
    assert connect(AUTO, members, 0) is None
    assert connect(EFA, members, 0) is not None
    assert connect(NONE, [offers(efa=32)] * 2, 0) is None


def test_the_variables_are_those_of_the_cloud_whose_labels_the_node_has() -> None:
    labels = {"ib.coreweave.cloud/leafgroup": "7"}
    connection = connect(AUTO, [offers(labels=labels, rdma=1)] * 2, 0)
    assert connection is not None
    assert connection.profile.variables == {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "ibp"}


def test_a_resource_of_a_name_of_its_own_is_divided_as_devices_are() -> None:
    network = Network(rdma="openshift.io/mlx5")
    members = [Endowment(labels={}, extended={"openshift.io/mlx5": 8}, num_gpus=8, num_granted=4)] * 2
    connection = connect(network, members, 0)
    assert connection is not None
    assert (connection.resource, connection.count) == ("openshift.io/mlx5", 4)


def test_each_profile_names_its_source() -> None:
    assert all(profile.source for profile in PROFILES)


@given(
    st.lists(
        st.builds(
            offers, granted=st.integers(0, 8), gpus=st.integers(8, 8), efa=st.integers(0, 40), rdma=st.integers(0, 70)
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([AUTO, EFA, RDMA, NONE]),
)
def test_under_auto_a_fabric_is_used_by_all_members_or_by_none_and_never_beyond_what_a_node_offers(
    members: list[Endowment], network: Network
) -> None:
    connections = [connect(network, members, index) for index in range(len(members))]
    if network is AUTO:
        assert len({connection and connection.profile.fabric for connection in connections}) == 1
    for member, connection in zip(members, connections, strict=True):
        if connection is not None:
            assert 1 <= connection.count <= member.extended[connection.resource]


@given(st.lists(st.integers(1, 8), min_size=2, max_size=8), st.integers(1, 64), st.integers(1, 64))
def test_pods_that_share_a_node_never_take_more_adapters_than_it_has(shares: list[int], efa: int, rdma: int) -> None:
    while sum(shares) > 8:
        shares.pop()
    for adapters in (Counter(efa=efa), Counter(rdma=rdma)):
        gangs = [[offers(granted=share, efa=adapters["efa"], rdma=adapters["rdma"])] * 2 for share in shares]
        connections = [connect(AUTO, gang, 0) for gang in gangs]
        assert sum(connection.count for connection in connections if connection) <= adapters.total()


def test_a_run_that_needs_efa_is_refused_where_no_node_has_it_and_says_what_to_do() -> None:
    spec = training(EFA)
    plain = (node("a", gpus=2), node("b", gpus=2))
    reason = why_never(spec, plain)
    assert reason is not None
    assert f"a is without {EFA_RESOURCE}, which `network: efa` needs" in reason.message
    assert "device plugin" in str(reason.remedy)
    able = tuple(replace(machine, extended={EFA_RESOURCE: 4}) for machine in plain)
    assert why_never(spec, able) is None
    assert why_never(training(AUTO), plain) is None


def test_only_nodes_with_the_fabric_are_open_to_a_run_that_needs_it() -> None:
    nodes = (node("a", extended={"rdma/hca": 1}), node("b"), node("c", extended={"rdma/hca": 0}))
    assert set(Eligibility(nodes).barred(training(RDMA))) == {"b", "c"}
    assert Eligibility(nodes).barred(training(AUTO)) == {}


def test_plan_says_which_fabric_is_there_and_which_is_not_used() -> None:
    nodes = (
        node("a", extended={EFA_RESOURCE: 32}),
        node("b", extended={EFA_RESOURCE: 32}),
        node("c", labels={"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}),
    )
    sentence = describe_network(training(AUTO), nodes)
    assert sentence is not None
    assert "EFA by vpc.amazonaws.com/efa on 2 nodes" in sentence
    assert "GPUDirect-TCPXO is not used, as it needs a container with NET_ADMIN" in sentence
    assert describe_network(training(AUTO, nodes=1), nodes) is None
    assert describe_network(training(NONE), nodes) is None
