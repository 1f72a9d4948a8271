"""The pod of a gang's member, whole and in golden files, and what it promises whatever is asked for."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.manifests import pod_environment as contract
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, overhead, render_pod
from fairlead.cluster.kubernetes.manifests.run_keys import render_key
from fairlead.cluster.kubernetes.manifests.services import render_service
from fairlead.cluster.kubernetes.names import owner, run_labels
from fairlead.policy.placement.networks import PROFILES, FabricShare
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.engines import Engine
from fairlead.specs.network import Network
from fairlead.specs.overlay import INTERFACES, overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Capacity, Checkpoint, Framework
from fairlead.state.snapshot import Grant, Taint
from tests.kubernetes.builders import GIB, SETTINGS, UID, a_creation, a_training, a_workload
from tests.kubernetes.goldens import check_golden

OVERLAY = overlay(
    {
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"}, "labels": {"cost-centre": "7"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
            "priorityClassName": "research-high",
            "imagePullSecrets": [{"name": "registry"}],
            "serviceAccountName": "trainer",
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "imagenet", "readOnly": True}},
                {
                    "name": "scratch",
                    "ephemeral": {
                        "volumeClaimTemplate": {
                            "spec": {
                                "accessModes": ["ReadWriteOnce"],
                                "storageClassName": "local",
                                "resources": {"requests": {"storage": "1Ti"}},
                            }
                        }
                    },
                },
            ],
            "containers": [
                {
                    "name": "ranks",
                    "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data", "readOnly": True},
                        {"name": "scratch", "mountPath": "/scratch"},
                    ],
                    "resources": {"limits": {"rdma/hca": 1}},
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                }
            ],
            "initContainers": [
                {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always", "args": ["--listen", "127.0.0.1"]}
            ],
        },
    }
)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], PodSettings, DeviceResource | None]] = {
    "plain": ({}, {}, SETTINGS, None),
    "gang_of_gpus_on_spot": (
        {
            "nodes": 4,
            "image": "pytorch/pytorch:2.7",
            "setup": "pip install -r requirements.txt",
            "env": {"PRICE": "$(HOME) costs $5", "NCCL_DEBUG": "WARN"},
            "resources": Resources(gpu=GpuRequest(milli=8000, model="A100"), shm_bytes=64 * GIB),
            "capacity": Capacity(spot=True),
            "checkpoint": Checkpoint(to="s3://bucket/runs", every_s=600.0),
            "grace_s": 110.5,
        },
        {"attempt": 2, "index": 3, "grant": Grant(cpu_milli=96_000, memory_bytes=1024 * GIB, gpu_milli=8000)},
        replace(SETTINGS, workdir=("fairlead-workdir-0123456789abcdef-0", "fairlead-workdir-0123456789abcdef-1")),
        DeviceResource(name="nvidia.com/gpu", count=8),
    ),
    "share_of_a_gpu": (
        {"resources": Resources(gpu=GpuRequest(milli=250))},
        {"grant": Grant(cpu_milli=1000, memory_bytes=8 * GIB, gpu_milli=250)},
        SETTINGS,
        DeviceResource(name="nvidia.com/mig-2g.20gb", count=1),
    ),
    "overlay": (
        {"nodes": 2, "kubernetes": OVERLAY},
        {"index": 1},
        SETTINGS,
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_pod_is_that_of_the_golden_file(case: str) -> None:
    spec, creation, settings, device = CASES[case]
    workload = a_workload(a_training(**spec))
    pod = render_pod(workload, a_creation(**creation), settings, device=device)
    check_golden(f"pod_{case}.yaml", [render_service(workload), pod])


def meets_restricted(pod: dict[str, Any]) -> bool:
    """Pod Security's "restricted" level, as its specification has it."""
    spec = pod["spec"]
    of_pod = spec["securityContext"]
    containers = [*spec["containers"], *spec.get("initContainers", ())]
    return (
        of_pod["runAsNonRoot"] is True
        and of_pod.get("runAsUser") != 0
        and of_pod["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")
        and not any(spec.get(each) for each in ("hostNetwork", "hostPID", "hostIPC"))
        and all(
            each["securityContext"]["allowPrivilegeEscalation"] is False
            and each["securityContext"]["capabilities"]["drop"] == ["ALL"]
            and set(each["securityContext"]["capabilities"].get("add", ())) <= {"NET_BIND_SERVICE"}
            and each["securityContext"].get("runAsUser") != 0
            and each["securityContext"].get("runAsNonRoot", True) is True
            for each in containers
        )
        and all("hostPath" not in volume and "nfs" not in volume for volume in spec["volumes"])
    )


@pytest.mark.parametrize("case", ["plain", "gang_of_gpus_on_spot", "share_of_a_gpu"])
def test_every_pod_meets_pod_security_restricted_unless_an_overlay_says_otherwise(case: str) -> None:
    spec, creation, settings, device = CASES[case]
    assert meets_restricted(render_pod(a_workload(a_training(**spec)), a_creation(**creation), settings, device=device))


def test_a_container_beside_the_ranks_is_contained_like_them() -> None:
    pod = render_pod(a_workload(a_training(kubernetes=OVERLAY)), a_creation(), SETTINGS)
    (proxy,) = (each for each in pod["spec"]["initContainers"] if each["name"] == "proxy")
    assert proxy["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["fairlead-reporter", "proxy"]


def test_an_affinity_of_the_overlay_cannot_lead_away_from_the_chosen_node() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    wish = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}}
    spec = a_training(kubernetes=overlay({"spec": {"affinity": wish}}))
    affinity = render_pod(a_workload(spec), a_creation(node="n7"), SETTINGS)["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert len(terms) == 2
    for term in terms:
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]


def test_only_taints_of_the_chosen_node_are_tolerated_and_its_gpu_taints_by_every_run() -> None:
    gpu, gone = Taint(key="nvidia.com/gpu", effect="NoExecute"), Taint(key="dedicated", value="ml")
    spot = Taint(key="cloud.google.com/gke-spot", value="true")

    def tolerated(taints: list[Taint], **spec: Any) -> list[tuple[str, str]]:
        pod = render_pod(a_workload(a_training(**spec)), a_creation(), SETTINGS, taints=taints)
        return [(each["key"], each["effect"]) for each in pod["spec"].get("tolerations", ())]

    assert tolerated([]) == tolerated([gone]) == []
    assert tolerated([gpu, spot, gone]) == [("nvidia.com/gpu", "NoExecute")]
    assert tolerated([spot, gone], capacity=Capacity(spot=True)) == [("cloud.google.com/gke-spot", "NoSchedule")]


def test_requests_and_limits_are_the_same_in_every_container() -> None:
    pod = render_pod(a_workload(), a_creation(), SETTINGS)
    for container in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]:
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {"cpu", "memory"} <= set(container["resources"]["limits"])


def test_the_grace_of_the_pod_leaves_the_shim_time_to_record_the_end() -> None:
    pod = render_pod(a_workload(a_training(grace_s=45.2)), a_creation(), SETTINGS)
    assert pod["spec"]["terminationGracePeriodSeconds"] == 46 + 10


def test_only_the_first_pod_reports_and_its_overhead_is_told() -> None:
    workload = a_workload(a_training(nodes=2))
    assert overhead(a_creation(index=0)) == (50, 32 * 1024**2)
    assert overhead(a_creation(index=1)) == (0, 0)
    assert "initContainers" not in render_pod(workload, a_creation(index=1), SETTINGS)["spec"]


def test_the_longest_names_still_fit_into_a_dns_label() -> None:
    workload = a_workload(a_training(name="n" * 50, nodes=10_000))
    pod = render_pod(workload, a_creation(attempt=999_999, index=9_999), SETTINGS)
    assert len(pod["metadata"]["name"]) <= 63
    assert len(render_service(workload)["metadata"]["name"]) <= 63


def expanded(value: str, defined: dict[str, str]) -> str:
    """A variable's value as kubelet gives it to the program, by the rules of its documentation."""
    out, at = "", 0
    while at < len(value):
        if value[at] == "$" and value[at + 1 : at + 2] == "$":
            out, at = out + "$", at + 2
        elif value[at] == "$" and value[at + 1 : at + 2] == "(" and ")" in value[at:]:
            name = value[at + 2 : value.index(")", at)]
            out, at = out + defined.get(name, f"$({name})"), value.index(")", at) + 1
        else:
            out, at = out + value[at], at + 1
    return out


@given(st.text("$()HOME ab", max_size=30))
def test_commands_and_variables_reach_the_program_as_they_were_written(text: str) -> None:
    workload = a_workload(a_training(run=f"echo {text}", env={"SAID": text}))
    (ranks,) = render_pod(workload, a_creation(), SETTINGS)["spec"]["containers"]
    given = {each["name"]: expanded(each["value"], {"HOME": "wrong"}) for each in ranks["env"] if "value" in each}
    assert given["FAIRLEAD_COMMAND"] == f"echo {text}"
    assert given["SAID"] == text


def test_no_command_or_path_of_a_spec_becomes_part_of_what_kubernetes_runs() -> None:
    hostile = "$(reboot); `reboot` && ../../etc/passwd\n---\nkind: ClusterRole"
    spec = a_training(run=hostile, setup=hostile, workdir="/srv/../../etc", env={"A": hostile})
    pod = render_pod(a_workload(spec), a_creation(), SETTINGS)
    for container in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]:
        assert "reboot" not in json.dumps([container["command"], container.get("args"), container["volumeMounts"]])
    assert pod["metadata"]["namespace"] == "research"


def test_instructions_name_the_ranks_of_the_pod() -> None:
    workload = a_workload(a_training(nodes=3, ranks_per_node=2))
    given = contract.instructions(workload, a_creation(index=2), checkpoint_to=None, parts=None)
    told = json.loads(given["FAIRLEAD_INSTRUCTIONS"])
    assert told["ranks"] == [4, 5]
    assert told["threads"] == 2
    assert told["env"] == contract.environment(workload, a_creation(index=2), checkpoint_to=None)


def test_every_attempt_meets_at_the_first_pod_of_its_own() -> None:
    workload = a_workload(a_training(nodes=2))
    env = contract.environment(workload, a_creation(attempt=3, index=1), checkpoint_to=None)
    assert env["MASTER_ADDR"] == "train-llama-3-0.ft-train-llama-111111.research.svc"
    assert "FAIRLEAD_CHECKPOINT_TO" not in env


def test_a_pod_alone_meets_itself_as_nothing_gives_it_a_name() -> None:
    workload = a_workload(a_training(ranks_per_node=2, framework=Framework.TENSORFLOW))
    env = contract.environment(workload, a_creation(), checkpoint_to=None)
    assert (env["MASTER_ADDR"], env["FAIRLEAD_HOSTS"]) == ("127.0.0.1", "127.0.0.1")
    for spec in (a_training(nodes=2), a_training(nodes=1, most_nodes=4)):
        assert ".svc" in contract.environment(a_workload(spec), a_creation(), checkpoint_to=None)["MASTER_ADDR"]


@pytest.mark.parametrize(
    ("to", "default", "place"),
    [
        (None, None, None),
        (None, "s3://team/", f"s3://team/train-llama-{UID}"),
        ("/data/ckpt", "s3://team", f"/data/ckpt/train-llama-{UID}"),
        ("gs://b/c", None, f"gs://b/c/train-llama-{UID}"),
    ],
)
def test_checkpoints_have_a_place_of_the_run_s_own_or_none(
    to: str | None, default: str | None, place: str | None
) -> None:
    workload = a_workload(a_training(checkpoint=Checkpoint(to=to)))
    assert contract.checkpoint_place(workload, default) == place


def test_labels_of_the_run_are_on_its_pods_beside_fairleads_own() -> None:
    workload = a_workload(replace(a_training(), labels={"experiment": "a"}))
    labels = render_pod(workload, a_creation(), SETTINGS)["metadata"]["labels"]
    assert labels == {
        "experiment": "a",
        "app.kubernetes.io/name": "fairlead-run",
        "app.kubernetes.io/instance": workload.spec.name,
        "app.kubernetes.io/component": "ranks",
        "app.kubernetes.io/part-of": "fairlead",
        "app.kubernetes.io/managed-by": "fairlead",
        "fairlead.dev/run": workload.spec.name,
        "fairlead.dev/run-uid": UID,
        "fairlead.dev/attempt": "0",
        "fairlead.dev/index": "0",
    }


def test_a_user_may_replace_recommended_labels_but_none_of_fairleads_own() -> None:
    labels = {"app.kubernetes.io/part-of": "search", "app.kubernetes.io/name": "ranker"}
    workload = a_workload(replace(a_training(), labels=labels))
    found = render_pod(workload, a_creation(), SETTINGS)["metadata"]["labels"]
    assert found == {**run_labels(workload), **labels, "fairlead.dev/attempt": "0", "fairlead.dev/index": "0"}
    assert run_labels(workload)["app.kubernetes.io/part-of"] == "fairlead"


def test_pods_of_engines_leave_recommended_labels_to_their_engines() -> None:
    workload = a_workload(replace(a_training(), engine=Engine.JOBSET))
    assert run_labels(workload).keys() == {"app.kubernetes.io/managed-by", "fairlead.dev/run", "fairlead.dev/run-uid"}


def test_the_key_of_a_run_is_in_no_pod_and_ranks_get_only_its_file() -> None:
    a_key = "k" * 64
    workload = a_workload(a_training(nodes=2))
    text = json.dumps(render_pod(workload, a_creation(), SETTINGS))
    secret = render_key(workload, 0, a_key)
    assert a_key not in text
    assert secret["immutable"] is True
    assert secret["metadata"]["ownerReferences"] == [owner(workload)]
    env = {each["name"]: each for each in render_pod(workload, a_creation(), SETTINGS)["spec"]["containers"][0]["env"]}
    assert env["FAIRLEAD_KEY"]["valueFrom"]["secretKeyRef"] == {"name": secret["metadata"]["name"], "key": "key"}
    alone = json.dumps(render_pod(a_workload(a_training(nodes=1)), a_creation(), SETTINGS))
    assert "FAIRLEAD_KEY" not in alone


def test_a_container_beside_the_ranks_keeps_no_capability_but_those_that_it_names() -> None:
    security = {"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": []}}
    beside = {"name": "proxy", "image": "proxy:1", "securityContext": security}
    pod = render_pod(
        a_workload(a_training(kubernetes=overlay({"spec": {"initContainers": [beside]}}))),
        a_creation(index=1),
        SETTINGS,
    )
    (proxy,) = pod["spec"]["initContainers"]
    assert proxy["securityContext"]["capabilities"] == {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}


def test_a_pod_with_a_fabric_requests_its_adapters_and_gets_its_variables_unless_the_spec_sets_them() -> None:
    profile = next(profile for profile in PROFILES if profile.name == "CoreWeave InfiniBand")
    connection = FabricShare(profile=profile, resource="rdma/ib", count=1)
    run = a_workload(
        a_training(nodes=2, env={"NCCL_SOCKET_IFNAME": "ens3"}, network=Network(attach=("rail-0", "rail-1")))
    )
    pod = render_pod(run, a_creation(), SETTINGS, connection=connection)
    (ranks,) = pod["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in ranks["env"]}
    assert [ranks["resources"][part]["rdma/ib"] for part in ("requests", "limits")] == ["1", "1"]
    assert (variables["NCCL_IB_HCA"], variables["NCCL_SOCKET_IFNAME"]) == ("ibp", "ens3")
    annotations = pod["metadata"]["annotations"]
    assert annotations["k8s.v1.cni.cncf.io/networks"] == "rail-0,rail-1"
    assert annotations["fairlead.dev/fabric"] == "CoreWeave InfiniBand"


@pytest.mark.parametrize(
    ("value", "is_refused"),
    [
        ("rail-0, rail-1", False),
        ("kube-system/host", True),
        ('[{"name": "rail-0", "ips": ["10.1.0.7/24"]}]', False),
        ('[{"name": "host", "namespace": "kube-system"}]', True),
        ('[{"name": "host", "namesp\\u0061ce": "kube-system"}]', True),
    ],
)
def test_an_overlay_attaches_a_pod_to_networks_of_its_own_namespace_alone(value: str, is_refused: bool) -> None:
    for annotation in INTERFACES:
        laid = {"metadata": {"annotations": {annotation: value}}}
        if is_refused:
            with pytest.raises(BrokenRules, match="their own namespace alone"):
                overlay(laid)
        else:
            overlay(laid)


def test_a_pod_of_several_gets_the_domains_of_its_node_for_tests_of_the_network() -> None:
    def variables(nodes: int, domains: dict[str, str]) -> dict[str, str]:
        pod = render_pod(a_workload(a_training(nodes=nodes)), a_creation(), SETTINGS, domains=domains)
        return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}

    assert json.loads(variables(2, {"rack": "r1"})["FAIRLEAD_DOMAINS"]) == {"rack": "r1"}
    assert "FAIRLEAD_DOMAINS" not in variables(1, {"rack": "r1"})
    assert "FAIRLEAD_DOMAINS" not in variables(2, {})
