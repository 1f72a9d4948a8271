"""The drivers of pools, from labels of GPU feature discovery in both of their forms."""

from typing import Any

import pytest

from fairlead.cluster.kubernetes.client.cluster_inventory import Inventory, look_around
from fairlead.cluster.kubernetes.devices import driver_of

NEW, OLD = "nvidia.com/cuda.driver-version", "nvidia.com/cuda.driver"


def a_node(name: str, labels: dict[str, str], *, gpus: int = 8, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": "1", "labels": labels}
    return {"metadata": metadata, "status": {"allocatable": {"cpu": "8", **({resource: str(gpus)} if gpus else {})}}}


@pytest.mark.parametrize(
    ("labels", "version"),
    [
        ({f"{NEW}.full": "535.54.03", f"{OLD}.major": "450"}, (535, 54, 3)),
        ({f"{NEW}.major": "580", f"{NEW}.minor": "95", f"{NEW}.revision": "05"}, (580, 95, 5)),
        ({f"{OLD}.major": "455", f"{OLD}.minor": "06", f"{OLD}.rev": ""}, (455, 6)),
        ({f"{NEW}.full": "none", f"{OLD}.major": "535", f"{OLD}.minor": "54", f"{OLD}.rev": "03"}, (535, 54, 3)),
        ({f"{OLD}.major": "535"}, None),
        ({f"{NEW}.full": "1" * 60}, None),
        ({}, None),
    ],
)
def test_both_forms_of_labels_are_read_and_nothing_else(
    labels: dict[str, str], version: tuple[int, ...] | None
) -> None:
    assert driver_of(labels) == version


def test_doctor_says_which_driver_each_pool_has_and_which_cuda_it_runs() -> None:
    pool = {"karpenter.sh/nodepool": "a100"}
    nodes = [
        a_node("ip-1", {**pool, f"{NEW}.full": "535.54.03"}),
        a_node("ip-2", {**pool, f"{NEW}.full": "535.54.03"}),
        a_node("h100-0", {f"{OLD}.major": "580", f"{OLD}.minor": "95", f"{OLD}.rev": "05"}),
        a_node("t4-0", {}),
        a_node("cpu-0", {}, gpus=0),
        a_node("amd-0", {}, resource="amd.com/gpu"),
    ]
    findings = look_around(Inventory(apis=frozenset(), nodes=nodes, controllers=(), storage_classes=()))
    (drivers,) = (finding for finding in findings if finding.what == "drivers")
    assert drivers.ok
    assert drivers.says == (
        "a100: 535.54.03 (CUDA 12 and older) on ip-1, ip-2; h100: 580.95.05 (CUDA 13 and older) on h100-0; "
        f"t4: unknown, without label {NEW}.full on t4-0"
    )


def test_a_cluster_without_nvidias_gpus_says_nothing_of_drivers() -> None:
    nodes = [a_node("amd-0", {}, resource="amd.com/gpu")]
    findings = look_around(Inventory(apis=frozenset(), nodes=nodes, controllers=(), storage_classes=()))
    assert "drivers" not in {finding.what for finding in findings}
