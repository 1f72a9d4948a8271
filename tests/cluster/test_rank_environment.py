"""The variables of a run's processes: those of torchrun only where there is anybody to meet, the same everywhere."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests import pod_environment as contract
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.pod_spec import PodEnvironment, render
from fairlead.policy.kinds.defaults import complete
from fairlead.runtime.ranks import rank_environment
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.overlay import SET_BY_FAIRLEAD
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Launch, Training
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Grant, Intent, Pod, PodPhase, Progress, Workload
from tests.builders import status, training

OF_TORCHRUN = {
    "RANK", "LOCAL_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_NAME", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
}  # fmt: skip
STALE = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "elsewhere", "FAIRLEAD_ELASTIC": "1", "LOCAL_DIR": "kept"}
# They tell its place in a split and where another run's checkpoints are.
STALE |= {"FAIRLEAD_PARALLEL": '{"tensor": 8}', "FAIRLEAD_CHECKPOINT_FROM": "/of/another"}


def run_of(spec: Training) -> Workload:
    return Workload(uid="uid", spec=spec, intent=Intent.RUN, status=status(), version=1, created_at=1_000_000.0)


def on_this_machine(spec: Training) -> dict[str, str]:
    pod = Pod(
        uid="uid-0-0", workload_uid="uid", attempt=0, index=0, node="n", grant=Grant(cpu_milli=1000),
        phase=PodPhase.CREATED, created_at=0.0,
    )  # fmt: skip
    around = PodEnvironment(
        environ=STALE, own_environ={}, master_port=29400, library=Path("/library"), cgroup=None, has_gpus=False
    )
    content = render(Home(Path("/home")), run_of(spec), pod, around)
    env: dict[str, str] = content["env"] | content["ranks"][0]["env"]
    return env


def on_kubernetes(spec: Training) -> dict[str, str]:
    create = CreatePod(attempt=0, index=0, node="n", grant=Grant(cpu_milli=1000))
    given = contract.instructions(run_of(spec), create, checkpoint_to="/checkpoints", parts=None)
    env: dict[str, str] = json.loads(given["FAIRLEAD_INSTRUCTIONS"])["env"]
    return env | rank_environment(0, 0, env)


CLUSTERS = pytest.mark.parametrize("environment", [on_this_machine, on_kubernetes])


@CLUSTERS
@pytest.mark.parametrize("launch", [Launch.AUTO, Launch.EXEC])
def test_a_lone_rank_starts_as_it_would_by_itself(environment: Any, launch: Launch) -> None:
    env = environment(training(launch=launch))
    assert not OF_TORCHRUN & set(env)
    assert env["FAIRLEAD_RUN"] == "train"
    assert "FAIRLEAD_AGREE_PORT" not in env


@CLUSTERS
@pytest.mark.parametrize(
    "changes",
    [{"launch": Launch.TORCHRUN}, {"ranks_per_node": 2}, {"nodes": 2}, {"most_nodes": 4}],
    ids=["asked for", "two ranks", "two nodes", "elastic"],
)
def test_whoever_may_meet_others_finds_what_torchrun_sets(environment: Any, changes: dict[str, Any]) -> None:
    env = environment(training(**changes))
    assert OF_TORCHRUN - set(env) == set()
    assert env["RANK"] == "0"
    assert int(env["FAIRLEAD_AGREE_PORT"]) == int(env["MASTER_PORT"]) + 1


@pytest.mark.parametrize("changes", [{}, {"ranks_per_node": 2}, {"most_nodes": 4, "ranks_per_node": 2}])
def test_both_clusters_set_the_same_variables(changes: dict[str, Any]) -> None:
    spec = training(**changes)
    here = {name for name in on_this_machine(spec) if SET_BY_FAIRLEAD.fullmatch(name)}
    assert here == {name for name in on_kubernetes(spec) if SET_BY_FAIRLEAD.fullmatch(name)}
    assert here == set(on_kubernetes(spec))


def test_a_run_submitted_by_a_rank_of_another_has_no_part_in_that_one() -> None:
    env = on_this_machine(training())
    assert {name: env[name] for name in STALE if name in env} == {"LOCAL_DIR": "kept"}


@pytest.mark.parametrize("name", ["FAIRLEAD_CHECKPOINT_FROM", "FAIRLEAD_PARALLEL"])
def test_what_a_key_of_the_spec_says_cannot_be_set_beside_it(name: str) -> None:
    with pytest.raises(BrokenRules, match="set by Fairlead itself"):
        training(env={name: "/elsewhere"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "a lone rank starts by itself, without RANK and MASTER_ADDR; `launch: torchrun` sets them"),
        ({"launch": Launch.TORCHRUN}, "with RANK, MASTER_ADDR and what else torchrun sets (as asked for)"),
        ({"ranks_per_node": 2}, "with RANK, MASTER_ADDR and what else torchrun sets (2 ranks)"),
        ({"most_nodes": 4}, "with RANK, MASTER_ADDR and what else torchrun sets (an elastic gang)"),
    ],
)
def test_the_plan_says_which_it_is(changes: dict[str, Any], said: str) -> None:
    notes = complete(training(**changes), ()).notes
    assert [note for note in notes if note.startswith("launch:")] == [f"launch: {said}"]
    assert not re.search(r"\s\s", said)


@CLUSTERS
def test_torchrun_in_the_command_of_several_nodes_finds_the_others(environment: Any) -> None:
    gpus = Resources(gpu=GpuRequest(milli=4000))
    env = environment(training(run="torchrun train.py", nodes=2, resources=gpus, ranks_per_node=1))
    assert {name: value for name, value in env.items() if name.startswith("PET_")} == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": env["MASTER_ADDR"],
        "PET_MASTER_PORT": env["MASTER_PORT"],
        "PET_NPROC_PER_NODE": "4",
    }
    several = environment(training(run="python train.py", nodes=2, ranks_per_node=2))
    assert not [name for name in several if name.startswith("PET_")], "a rank that starts torchrun starts it for itself"
    own = environment(training(run="torchrun train.py", nodes=2, env={"PET_NNODES": "1"}))
    assert own.get("PET_NNODES") != "2"


@pytest.mark.parametrize(("attempt", "saved", "told"), [(0, 7, None), (1, None, None), (1, 0, None), (1, 7, "7")])
def test_a_later_attempt_is_told_the_step_of_the_newest_checkpoint(
    attempt: int, saved: int | None, told: str | None
) -> None:
    run = replace(run_of(training()), progress=Progress(updated_at=0.0, checkpoint_step=saved))
    create = CreatePod(attempt=attempt, index=0, node="n", grant=Grant(cpu_milli=1000))
    given = contract.instructions(run, create, checkpoint_to="/checkpoints", parts=None)
    assert json.loads(given["FAIRLEAD_INSTRUCTIONS"])["env"].get("FAIRLEAD_CHECKPOINT_STEP") == told
