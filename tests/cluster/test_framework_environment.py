"""The variables by which the ranks of each framework meet, on this machine and on Kubernetes."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster import contract
from fairlead.cluster.kubernetes.manifests import pod_environment
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.pod_spec import PodEnvironment, render
from fairlead.policy.kinds.defaults import complete
from fairlead.runtime.errors import Misuse
from fairlead.runtime.frameworks.boosting import communicator_args, network_params
from fairlead.runtime.ranks import rank_environment
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import SET_BY_FRAMEWORK, Framework, Launch, Training
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Grant, Pod, PodPhase
from tests.builders import training
from tests.cluster.test_rank_environment import run_of

OF_LOOPBACK = {"JAX_COORDINATOR_BIND_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_TOKEN_PATH"}
ON_PODS = ["train-0-0.ft-train-uid.default.svc", "train-0-1.ft-train-uid.default.svc"]


def here(spec: Training, rank: int = 0, environ: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a rank on this machine."""
    index, local = divmod(rank, spec.ranks_on_each_node)
    pod = Pod(
        uid=f"uid-0-{index}", workload_uid="uid", attempt=0, index=index, node="n", grant=Grant(cpu_milli=1000),
        phase=PodPhase.CREATED, created_at=0.0,
    )  # fmt: skip
    around = PodEnvironment(
        environ=environ or {}, own_environ={}, master_port=29400, library=Path("/library"), cgroup=None, has_gpus=False
    )
    content = render(Home(Path("/home")), run_of(spec), pod, around)
    env: dict[str, str] = content["env"] | content["ranks"][local]["env"]
    return env


def in_pods(spec: Training, rank: int = 0) -> dict[str, str]:
    """The environment of a rank on Kubernetes."""
    index, local = divmod(rank, spec.ranks_on_each_node)
    create = CreatePod(attempt=0, index=index, node="n", grant=Grant(cpu_milli=1000))
    given = pod_environment.instructions(run_of(spec), create, checkpoint_to=None, parts=None)
    env: dict[str, str] = json.loads(given["FAIRLEAD_INSTRUCTIONS"])["env"]
    return env | rank_environment(rank, local, env)


def of(framework: Framework, **changes: Any) -> Training:
    return training(framework=framework, **changes)


@pytest.mark.parametrize("environment", [here, in_pods])
@pytest.mark.parametrize("framework", Framework)
def test_a_lone_rank_whose_framework_is_named_finds_its_rendezvous_too(environment: Any, framework: Framework) -> None:
    env = environment(of(framework))
    assert (env["FAIRLEAD_FRAMEWORK"], env["RANK"], env["WORLD_SIZE"]) == (framework, "0", "1")
    missing = {name for name in SET_BY_FRAMEWORK.get(framework, ()) if name not in env}
    assert missing <= OF_LOOPBACK


@pytest.mark.parametrize("framework", Framework)
def test_both_clusters_set_the_same_variables_for_a_framework(framework: Framework) -> None:
    spec = of(framework, nodes=2)
    of_machine = {"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "PYTHONPATH", "FAIRLEAD_CHECKPOINT_TO"}
    only_here = set(here(spec)) ^ set(in_pods(spec))
    # A rendezvous on this machine is for this machine alone.
    assert only_here - of_machine <= OF_LOOPBACK


def test_tensorflow_gets_every_address_and_its_own_number() -> None:
    spec = of(Framework.TENSORFLOW, nodes=2, ranks_per_node=2)
    assert json.loads(here(spec, 3)["TF_CONFIG"]) == {
        "cluster": {"worker": ["127.0.0.1:29402", "127.0.0.1:29403", "127.0.0.1:29404", "127.0.0.1:29405"]},
        "task": {"type": "worker", "index": 3},
    }
    workers = [f"{host}:{port}" for host in ON_PODS for port in (29502, 29503)]
    assert json.loads(in_pods(spec, 3)["TF_CONFIG"])["cluster"] == {"worker": workers}


def test_jax_gets_a_coordinator_and_its_number_as_a_process_of_open_mpi() -> None:
    spec = of(Framework.JAX, nodes=2, ranks_per_node=2)
    env = in_pods(spec, 3)
    assert env["JAX_COORDINATOR_ADDRESS"] == f"{ON_PODS[0]}:29502"
    assert (env["JAX_NUM_PROCESSES"], env["JAX_PROCESS_ID"]) == ("4", "3")
    names = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    assert [env[name] for name in names] == ["4", "3", "1"]
    assert "OMPI_MCA_orte_hnp_uri" in env
    assert here(spec)["JAX_COORDINATOR_BIND_ADDRESS"] == "127.0.0.1:29402"


@pytest.mark.parametrize(("ranks", "rank", "devices"), [(8, 3, "3"), (1, 0, "0,1,2,3,4,5,6,7"), (2, 1, "4,5,6,7")])
def test_the_gpus_of_a_pod_are_divided_among_its_processes_of_jax(ranks: int, rank: int, devices: str) -> None:
    gpus = Resources(gpu=GpuRequest(milli=8000))
    assert in_pods(of(Framework.JAX, ranks_per_node=ranks, resources=gpus), rank)["JAX_LOCAL_DEVICE_IDS"] == devices


@pytest.mark.parametrize(
    ("framework", "name", "value"),
    [(Framework.ACCELERATE, "ACCELERATE_USE_CPU", "true"), (Framework.DEEPSPEED, "DS_ACCELERATOR", "cpu")],
)
def test_a_run_without_gpus_tells_its_framework_so_unless_it_says_otherwise(
    framework: Framework, name: str, value: str
) -> None:
    assert in_pods(of(framework))[name] == value
    assert here(of(framework))[name] == value
    assert name not in in_pods(of(framework, resources=Resources(gpu=GpuRequest())))
    assert here(of(framework, env={name: "own"}))[name] == "own"


def test_xgboost_gets_arguments_that_meet_at_the_tracker_of_rank_0() -> None:
    args = communicator_args(in_pods(of(Framework.XGBOOST, nodes=2), 1))
    assert args.pop("dmlc_retry")
    assert args == {"dmlc_tracker_uri": ON_PODS[0], "dmlc_tracker_port": 29502, "dmlc_task_id": "000001"}
    with pytest.raises(Misuse, match="framework: xgboost"):
        communicator_args({})


def test_lightgbm_gets_addresses_for_names_and_the_port_of_this_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = dict(zip(ON_PODS, ("10.0.0.1", "10.0.0.2"), strict=True))
    monkeypatch.setattr(socket, "gethostbyname", addresses.__getitem__)
    params = network_params(in_pods(of(Framework.LIGHTGBM, nodes=2, ranks_per_node=2), 1))
    listed = "10.0.0.1:29502,10.0.0.1:29503,10.0.0.2:29502,10.0.0.2:29503"
    assert params == {"machines": listed, "num_machines": 4, "local_listen_port": 29503}
    with pytest.raises(Misuse, match="framework: lightgbm"):
        network_params({})


def test_a_node_of_ray_has_what_its_pod_has_and_here_a_token_of_the_run() -> None:
    resources = Resources(gpu=GpuRequest(milli=2000), cpu_milli=4500, memory_bytes=10 * 2**30)
    spec = of(Framework.RAY, nodes=2, resources=resources)
    pod, machine = in_pods(spec, 1), here(spec)
    assert json.loads(pod["FAIRLEAD_RAY_NODE"]) == {"num-gpus": 2, "num-cpus": 4, "object-store-memory": 3 * 2**30}
    assert (pod["RAY_ADDRESS"], pod["RAY_AUTH_MODE"]) == (f"{ON_PODS[0]}:29502", "disabled")
    assert (machine["RAY_ADDRESS"], machine["RAY_AUTH_MODE"]) == ("127.0.0.1:29402", "token")
    assert machine["RAY_AUTH_TOKEN_PATH"] == f"{machine['FAIRLEAD_RUN_DIR']}/ray-token"
    own = here(of(Framework.RAY, env={"RAY_AUTH_MODE": "disabled"}))
    assert (own["RAY_AUTH_MODE"], own.get("RAY_AUTH_TOKEN_PATH")) == ("disabled", None)


def test_ray_has_one_rank_in_each_pod_however_many_gpus_that_has() -> None:
    spec = of(Framework.RAY, resources=Resources(gpu=GpuRequest(milli=8000)))
    assert (spec.ranks_on_each_node, spec.may_fork) == (1, False)
    with pytest.raises(BrokenRules, match="2 with `framework: ray`, which has one node of Ray in each pod"):
        of(Framework.RAY, ranks_per_node=2)
    notes = complete(of(Framework.RAY, nodes=2), ()).notes
    assert "launch: on the first node alone, once each node is one of the Ray cluster at RAY_ADDRESS" in notes


def test_ports_are_kept_for_every_rank_where_each_listens() -> None:
    listening = [each for each in Framework if each is not Framework.RAY]
    needed = {each: contract.num_ports(run_of(of(each, nodes=2, ranks_per_node=3))) for each in listening}
    assert contract.num_ports(run_of(of(Framework.RAY, nodes=2))) == 4
    assert needed[Framework.TENSORFLOW] == needed[Framework.LIGHTGBM] == 8
    assert needed[Framework.MPI] == needed[Framework.JAX] == needed[Framework.XGBOOST] == 3
    assert needed[Framework.TORCH] == 2


def test_a_run_submitted_by_a_rank_of_a_framework_has_no_part_in_its_group() -> None:
    inherited = {"FAIRLEAD_FRAMEWORK": "tensorflow", "TF_CONFIG": "{}"}
    assert "TF_CONFIG" not in here(training(), environ=inherited)
    assert here(training(), environ={"TF_CONFIG": "{}"})["TF_CONFIG"] == "{}"


def test_a_variable_of_the_framework_cannot_be_given_another_value() -> None:
    with pytest.raises(BrokenRules, match="set by `framework: tensorflow`; leave one of the two out"):
        of(Framework.TENSORFLOW, env={"TF_CONFIG": "{}"})
    assert of(Framework.JAX, env={"TF_CONFIG": "{}"}).env == {"TF_CONFIG": "{}"}


def test_more_ranks_than_fit_into_a_variable_are_refused() -> None:
    with pytest.raises(BrokenRules, match="give at most 512 ranks"):
        of(Framework.TENSORFLOW, nodes=1, most_nodes=65, ranks_per_node=8)
    assert of(Framework.TENSORFLOW, nodes=64, ranks_per_node=8).world_size == 512
    longest = training(name="n" * 50, team="t" * 50, framework=Framework.TENSORFLOW, nodes=512)
    assert len(in_pods(longest)["TF_CONFIG"]) < 128 * 1024


def test_the_plan_says_by_whose_variables_ranks_meet() -> None:
    (said,) = (note for note in complete(of(Framework.JAX), ()).notes if note.startswith("launch:"))
    assert said == "launch: with the variables of jax beside RANK, MASTER_ADDR and what else torchrun sets"
    (said,) = (note for note in complete(of(Framework.TORCH), ()).notes if note.startswith("launch:"))
    assert said == "launch: with RANK, MASTER_ADDR and what else torchrun sets (as asked for)"


def test_ranks_of_xgboost_are_not_forked_as_the_tracker_becomes_one() -> None:
    assert not of(Framework.XGBOOST).may_fork
    assert of(Framework.JAX).may_fork
    assert not of(Framework.JAX, launch=Launch.EXEC).may_fork
