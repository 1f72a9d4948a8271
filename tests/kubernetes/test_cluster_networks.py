"""The cluster's own networks are no storage: teams' pods reach neither the API server nor others' pods at port 443."""

from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.client import cluster_networks as networks
from fairlead.cluster.kubernetes.client.cluster_networks import cluster_networks
from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.network_policies import METADATA, NetworkSettings, render_team_policies


class Server:
    def __init__(self, **missing: int) -> None:
        self.missing = missing

    def items(self, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        if path.rpartition("/")[2] in self.missing:
            raise ApiError(path, self.missing[path.rpartition("/")[2]], "Reason", "said")
        if path == networks.NODES:
            blocks: tuple[list[str], ...] = (["10.244.3.0/24", "fd00::/64"], ["10.244.0.0/24"], [])
            return [{"spec": {"podCIDRs": each}} for each in blocks] + [{}]
        if path == networks.SERVICES:
            return [{"spec": {"cidrs": ["10.96.0.0/12", "fd01::/112"]}}]
        assert query == {"labelSelector": "kubernetes.io/service-name=kubernetes"}
        return [{"endpoints": [{"addresses": ["192.168.7.1"]}, {"addresses": ["192.168.7.2", "10.97.0.1"]}]}]


def test_the_networks_of_pods_services_and_api_servers_are_found() -> None:
    assert cluster_networks(Server()) == (  # type: ignore[arg-type]
        "10.96.0.0/12", "10.244.0.0/16", "192.168.7.1/32", "192.168.7.2/32",
    )  # fmt: skip


@pytest.mark.parametrize("status", [403, 404])
def test_what_may_not_be_read_or_is_not_there_is_left_out(status: int) -> None:
    seen = cluster_networks(Server(nodes=status, servicecidrs=status))  # type: ignore[arg-type]
    assert seen == ("10.97.0.1/32", "192.168.7.1/32", "192.168.7.2/32")
    with pytest.raises(ApiError):
        cluster_networks(Server(nodes=500))  # type: ignore[arg-type]


def test_an_operator_is_given_them_and_withholds_them_from_teams() -> None:
    objects = render_install(InstallSettings(image="i", cluster_networks=("10.96.0.0/12", "10.244.0.0/16")))
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-4:] == ["--cluster-network", "10.96.0.0/12", "--cluster-network", "10.244.0.0/16"]
    withheld = (METADATA, "10.96.0.0/12", "10.244.0.0/16")
    _, runs = render_team_policies("team", NetworkSettings(withheld_cidrs=withheld))
    (block,) = runs["spec"]["egress"][1]["to"]
    assert block == {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(withheld)}}
