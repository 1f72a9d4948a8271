"""An example of what each key of each kind changes, and where that is seen: in a pod, an object, a plan or a message.

A new key needs an ``Effect`` in ``EFFECTS``, one for each attribute that it sets. What is seen must be what comes of a
spec and not the spec itself, so an object that only keeps it does not count.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fairlead.cli.federated import hourly_microusd
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.engines.endpoint_port import Handover, Version
from fairlead.cluster.kubernetes.engines.port import Submission
from fairlead.cluster.kubernetes.engines.table import driver_of
from fairlead.cluster.kubernetes.manifests.autoscalers import render_autoscaler
from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.cluster.kubernetes.manifests.teams import TeamSettings, render_object_counts, render_team
from fairlead.cluster.kubernetes.manifests.workspaces import render_claim
from fairlead.cluster.local import pod_spec
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.code.keeping import CodeStore
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages.requests import read_request
from fairlead.cluster.prometheus import PrometheusReader
from fairlead.cluster.selection import RunSelection
from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import LosePod
from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.control.data import locate
from fairlead.control.data_forecast import DataForecast, forecast_data
from fairlead.control.datasets import preload
from fairlead.control.fleets.controller import open_member
from fairlead.control.fleets.journal import FleetJournal
from fairlead.control.loop import run_pass
from fairlead.control.model_config import read_config
from fairlead.control.outcomes import summary
from fairlead.control.pipelines import drift, journal, submission, triggers
from fairlead.control.simulation import World, simulate
from fairlead.control.sites import release_spec
from fairlead.errors import InvalidSpec
from fairlead.policy.data.caching import ReadDemand
from fairlead.policy.decide import decide
from fairlead.policy.fleet.placement import decide_fleet
from fairlead.policy.kinds import idleness, workspace_idle
from fairlead.policy.kinds.federated_rounds import resolved as resolved_rounds
from fairlead.policy.kinds.federation import client_run
from fairlead.policy.kinds.federation import judge as judge_federation
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.replica import judge as judge_replica
from fairlead.policy.kinds.step_runs import child_spec
from fairlead.policy.placement.node_eligibility import CAPACITY_TYPE_LABEL
from fairlead.policy.queue.run_limits import limited
from fairlead.policy.serving.latency_scaling import service_of, shares
from fairlead.policy.serving.replica_count import wanted_replicas
from fairlead.policy.serving.routes import places_here, routes
from fairlead.policy.strategy.probing import describe_probing
from fairlead.policy.strategy.resolution import ranked, resolve
from fairlead.runtime.data.manifest import DataManifest, Entry, save
from fairlead.specs.data import DataSource
from fairlead.specs.dataset import Dataset
from fairlead.specs.federation import Federation
from fairlead.specs.fleet import Fleet
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.serialization import to_json
from fairlead.specs.overlay import overlay
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.pool import Pool
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.serving import PrometheusQuery, Serving
from fairlead.specs.sharing import Sharing
from fairlead.specs.simulation import Simulation
from fairlead.specs.sweep import Sweep, values_of
from fairlead.specs.team import Team
from fairlead.specs.training import Training
from fairlead.specs.workload import renamed
from fairlead.state.access_keys import AccessKey
from fairlead.state.fleets import ClusterSeen, Copy, FleetRun, FleetSnapshot, FleetStage, HeldNode, Room
from fairlead.state.plan import Change
from fairlead.state.pool_demand import PoolDemand
from fairlead.state.reasons import Code, Reason
from fairlead.state.scheduling_policy import DEFAULT, POLICIES, SchedulingPolicy
from fairlead.state.snapshot import (
    AnyWorkload,
    Gpu,
    Grant,
    Intent,
    Node,
    Phase,
    Pod,
    PodPhase,
    Snapshot,
    Spending,
    Workload,
)
from fairlead.state.split_probing import Probed, Probing, subject
from fairlead.traces.arrivals import Arrival
from tests.builders import GIB, node, status, training
from tests.kubernetes.builders import SETTINGS, UID, a_creation, a_workload
from tests.policy.sites import World as Sites
from tests.policy.test_serving import World as Endpoint
from tests.policy.test_sweep import World as Searching
from tests.policy.test_text_scaling import demand, told


@dataclass(frozen=True)
class Effect:
    """One change of one key.

    Attributes:
        before, after: What the key is, as in a file; None for left out.
        seen: What comes of the spec, which must be another thing afterwards.
        beside: Other keys of the document, by their paths.
        along: Those that have to come with ``after``, which is refused without them.
    """

    key: str
    before: Any
    after: Any
    seen: Callable[[Any], object]
    beside: Mapping[str, Any] = field(default_factory=dict)
    along: Mapping[str, Any] = field(default_factory=dict)


NOW = 1_000_000_000.0

# What is seen of runs -------------------------------------------------------------------------------------------------


def local_pod(spec: Training) -> object:
    """What the shim of a pod on this machine is told."""
    around = pod_spec.PodEnvironment(
        environ={}, own_environ={}, master_port=4000, library=Path("/lib"), cgroup=None, has_gpus=False
    )
    pod = Pod(
        uid=f"{UID}-0-0", workload_uid=UID, attempt=0, index=0, node="here", grant=Grant(cpu_milli=1000),
        phase=PodPhase.CREATED, created_at=1.0,
    )  # fmt: skip
    return pod_spec.render(Home(Path("/state")), a_workload(spec), pod, around)


def kubernetes_pod(spec: Training) -> object:
    return render_pod(a_workload(spec), a_creation(), SETTINGS)


def autoscaled(serving: Serving) -> object:
    """What the cluster's own autoscaler is given, and how many replicas there are to be."""
    given = None if serving.scale.by is None else render_autoscaler(a_workload(serving))  # type: ignore[arg-type]
    return given, wanted_replicas(serving, None, None, 4, 0.0)


def by_engine(spec: Serving) -> object:
    """What the engine of an endpoint is given."""
    assert spec.engine is not None
    target = Version(name="r1", spec=spec)
    return driver_of(spec.engine).render(Handover(workload=a_workload(spec), target=target))  # type: ignore[arg-type]


def for_engine(spec: Training) -> object:
    """What the engine of a run is given."""
    assert spec.engine is not None
    start = Submission(workload=a_workload(spec), attempt=0, settings=SETTINGS)
    return driver_of(spec.engine).render(start)


def kept_code(spec: Training) -> object:
    """What is kept of the files of a run on this machine."""
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / "work"
        work.mkdir()
        (work / "train.py").write_text("print(1)\n")
        home = Home.open(Path(place) / "state")
        home.run(UID).mkdir(parents=True)
        store = CodeStore(home)
        store.keep(UID, replace(spec, workdir=str(work)), 1.0)
        return [kept["why"] for kept in store.stored_states(UID)]


def asked_packages(spec: Training) -> object:
    """What uv is asked to make for a run."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("a.txt", "b.txt"):
            (Path(place) / name).write_text(f"of-{name}\n")
        programs = Path(place) / "bin"
        programs.mkdir()
        for name, script in (
            ("uv", f"for last; do :; done; echo {programs}/python$last"),
            ("python3", """echo '["/usr/bin/python3", "3.11.2"]'"""),
            ("python3.12", """echo '["/usr/bin/python3.12", "3.12.9"]'"""),
        ):
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        at = replace(spec, workdir=place)
        request = read_request(at, Home(Path(place) / "state"), {"PATH": f"{programs}:/usr/bin:/bin"})
        return request["files"], request["python"]


WORKS = SimulatedProgram(duration_s=30.0)


def left_idle(spec: Training) -> object:
    """What follows for a run that used a fifth of what it holds for twenty minutes."""
    samples = [idleness.UsageSample(at=60.0 * minute, span_s=60.0, busy=0.2) for minute in range(1, 21)]
    run = Workload(
        uid=UID, spec=spec, intent=Intent.RUN, status=status(Phase.RUNNING, since=0.0), version=1, created_at=0.0,
        idle=idleness.idleness(samples, spec.idle, 1200.0),
    )  # fmt: skip
    return idleness.act(run, (), (node(),), 1200.0) or idleness.reason(run, (node(),))


@dataclass(frozen=True)
class Played:
    """Runs on a simulated cluster under the loop, a second at a time.

    Attributes:
        before, beside: Runs that are submitted first; a moment later; then comes the run that is looked at.
        loses_pods: Every pod is lost two seconds after its start.
    """

    program: SimulatedProgram = WORKS
    nodes: tuple[Node, ...] = (node(gpus=4),)
    before: tuple[Training, ...] = ()
    beside: tuple[Training, ...] = ()
    teams: tuple[Team, ...] = ()
    rules: SchedulingPolicy = DEFAULT
    seconds: int = 60
    loses_pods: bool = False

    def __call__(self, *specs: Training) -> object:
        cluster = SimulatedCluster(self.nodes, lambda spec, attempt: self.program, teams=self.teams, rules=self.rules)
        began = cluster.clock.now()
        coming: dict[int, Sequence[Training]] = {0: self.before, 2: (*specs, *self.beside)}
        pods = set()
        for second in range(self.seconds):
            for spec in coming.get(second, ()):
                cluster.submit(spec)
            while run_pass(cluster, cluster.clock.now()):
                pass
            for pod in cluster.snapshot().pods:
                pods.add((pod.uid, pod.node, pod.grant))
                if self.loses_pods and pod.phase is PodPhase.RUNNING:
                    cluster.inject(LosePod(pod_uid=pod.uid))
            cluster.advance(1.0)
        told = [(e.at - began, e.run, e.type, e.reason.code, e.reason.message) for e in cluster.events()]
        waiting = [(run.spec.name, run.status.phase, run.status.reason.message) for run in cluster.workloads()]
        uids = {run.uid: run.spec.name for run in cluster.workloads()}
        return told, sorted((uids[uid[:-4]], where, str(grant)) for uid, where, grant in pods), waiting


def in_team(*others: Training, before: Sequence[Training] = (), nodes: tuple[Node, ...] = (node(gpus=4),)) -> Any:
    """What two teams' runs come to under the rules of a Team."""
    play = Played(nodes=nodes, before=tuple(before))
    return lambda team: replace(play, teams=(team,))(*others)


def of_team(team: str, name: str, **resources: Any) -> Training:
    return training(name, team=team, resources=Resources(**{"cpu_milli": 100, **resources}))


def of_project(**resources: Any) -> Training:
    return replace(of_team("a", "r", **resources), labels={"project": "step"})


def gpus(number: int) -> GpuRequest:
    return GpuRequest(milli=1000 * number)


def team_objects(team: Team) -> object:
    return [*render_team(team, TeamSettings()), render_object_counts(team)]


def spent(spec: Training, *teams: Team) -> object:
    """What is decided of a run that has cost nine dollars, as has its team, and of another one that waits."""
    grant = Grant(cpu_milli=100, gpu_uuids=("own-gpu-0",), gpu_milli=1000)
    pod = Pod(
        uid="run-0-0", workload_uid="run", attempt=0, index=0, node="own", phase=PodPhase.RUNNING, grant=grant,
        created_at=NOW - 60, started_at=NOW - 60,
    )  # fmt: skip
    state = status(Phase.RUNNING, since=NOW - 60, started_at=NOW - 60)
    runs = (a_workload(spec, uid="run", status=state), a_workload(replace(spec, name="next"), uid="next"))
    by_project = {(spec.team, spec.labels.get("project", "")): 9_000_000}
    spending = Spending(by_team={spec.team: 9_000_000}, by_project=by_project, by_run={"run": 9_000_000})
    nodes = (node("own", gpus=4, price_per_hour=4.0),)
    return decide(Snapshot(nodes=nodes, workloads=runs, pods=(pod,), teams=teams, spending=spending), NOW)


SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 1024}


def with_config(seen: Callable[[Training, Any], object]) -> Callable[[Training], object]:
    """What is found of a run beside whose file two descriptions of models lie."""

    def look(spec: Training) -> object:
        with tempfile.TemporaryDirectory() as place:
            for name, size in (("a.json", 32_000), ("b.json", 64_000)):
                (Path(place) / name).write_text(json.dumps({**SIZES, "vocab_size": size}))
            return seen(spec, read_config(spec, Path(place)))

    return look


def the_splits(spec: Training, config: Any) -> object:
    """The table of splits that a plan has."""
    return ranked(spec, config, 4.0)


def the_split(spec: Training, config: Any) -> object:
    """The split that a run gets, as its pods are told, and the sentence of the plan."""
    found = resolve(spec, config)
    return found.note, local_pod(replace(spec, parallel=found.parallel))


OF_64 = {"parallel.batch": 64}


def the_candidates(spec: Training) -> object:
    """The splits that a run tries, as `status` shows them once one was tried."""
    tried = Probing(of=subject(spec), tried=(Probed(name="step", step_s=1.5),))
    return describe_probing(spec, tried)


def shared_devices(way: Sharing) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(uuid=f"{way}-{n}", model="A100", memory_bytes=40 * 10**9, milli=500, divisible=False, shared_by=way)
        for n in range(2)
    )


def one_gpu(name: str, **changes: Any) -> Training:
    return training(name, resources=Resources(gpu=gpus(1)), **changes)


FAILS = SimulatedProgram(duration_s=1.0, exit_code=1)
ONE_FREE = Played(nodes=(node(gpus=1),), before=(one_gpu("first"),), seconds=90)
SHORTEST = replace(ONE_FREE, rules=POLICIES["shortest"], beside=(one_gpu("rival", expected_duration_s=600.0),))
ON_SPOT = Played(
    nodes=(node("own", price_per_hour=3.0), node("spot", labels={CAPACITY_TYPE_LABEL: "spot"}, price_per_hour=1.0)),
    seconds=5,
)
SHARED = (node(), replace(node("b"), gpus=shared_devices(Sharing.MPS) + shared_devices(Sharing.TIME_SLICING)))
# Of runs that report a pace, which drivers and replicas do not.
COLOCATE = "resources.colocate"


def sharing(kind: str) -> Played:
    """A run of a kind tells how fast such runs are alone, and the one that is looked at may join it."""
    return Played(
        program=SimulatedProgram(duration_s=1000.0, step_s=5.0),
        nodes=(node(gpus=1),),
        before=(training(f"{kind}-1", resources=Resources(gpu=GpuRequest(), colocate=True)),),
        rules=POLICIES["least-work"],
        seconds=400,
    )


PRICED = Played(nodes=(node(price_per_hour=3.0),), seconds=3)
MODEL = {
    "model.layers": 12,
    "model.hidden": 768,
    "model.heads": 12,
    "model.vocabulary": 50_257,
    "model.sequence": 1024,
    "resources.gpu": "A100:8",
}
TRAINING = {"name": "t", "run": "python train.py"}

HANGING = Played(program=SimulatedProgram(duration_s=300.0, step_s=1.0, hangs_after_s=5.0))
EFFECTS: dict[str, list[Effect]] = {}


def busy_with_data(spec: Training) -> object:
    """How busy its GPUs are once its data is cached."""
    (source,) = spec.data.values()
    return DataForecast(
        name="a", version="0" * 16, num_objects=1, num_bytes=10**9, missing_bytes=0, later_bytes=0,
        is_copied_first=False, run_rate=source.rate,
    ).busy  # fmt: skip


EFFECTS["Training"] = [
    Effect("name", "t", "u", kubernetes_pod),
    Effect("team", None, "vision", kubernetes_pod),
    Effect("labels", None, {"experiment": "a"}, kubernetes_pod),
    Effect("image", None, "python:3.12", kubernetes_pod),
    Effect("workdir", "/a", "/b", local_pod),
    Effect("setup", None, "pip install torch", local_pod),
    Effect("run", "python train.py", "python other.py", local_pod),
    Effect("env", None, {"SEED": "1"}, local_pod),
    Effect("secrets", None, ["hf"], local_pod),
    Effect("secrets", ["KEY=hf/a"], ["KEY=hf/b"], kubernetes_pod),
    Effect("environment.file", "a.txt", "b.txt", asked_packages),
    Effect("environment.packages", ["numpy"], ["torch"], asked_packages),
    Effect("environment.python", None, "3.12", asked_packages, {"environment.packages": ["numpy"]}),
    Effect("nodes", 1, 2, Played(seconds=5)),
    Effect("nodes", 1, "1..2", Played(nodes=(node("a"), node("b")), seconds=40)),
    Effect("ranks_per_node", 1, 4, local_pod),
    Effect("resources.gpu", None, "A100:2", Played(seconds=5)),
    Effect("resources.cpu", 1, 2, Played(seconds=5)),
    Effect("resources.memory", "1Gi", "2Gi", Played(seconds=5)),
    Effect("resources.cpu", 1, "auto", Played(seconds=5)),
    Effect("resources.memory", "1Gi", "auto", Played(seconds=5)),
    Effect("resources.shm", None, "2Gi", kubernetes_pod),
    Effect("resources.sharing", ["mps"], ["time-slicing"], Played(nodes=SHARED, seconds=5), {"resources.gpu": 0.5}),
    Effect(COLOCATE, None, True, sharing("t"), {"resources.gpu": 1}),
    Effect("capacity.spot", None, True, kubernetes_pod),
    Effect("capacity.spot", True, "auto", ON_SPOT, {"expected_duration": "8h"}, {"deadline": "30h"}),
    Effect("capacity.max_price", 5, 1, PRICED),
    *(
        Effect(f"data.*.{key}", before, after, seen, {"data.*.from": place})
        for key, before, after, place, seen in (
            ("mode", None, "stream", "s3://bucket/a", local_pod),
            ("at", None, "/data/other", "pvc://claim", kubernetes_pod),
            ("version", None, "0123456789abcdef", "s3://bucket/a", local_pod),
            ("include", None, "*.tar", "s3://bucket/a", local_pod),
            ("write", None, True, "pvc://claim", kubernetes_pod),
            ("credentials", None, "bucket-reader", "s3://bucket/a", local_pod),
            ("profile", None, "research", "s3://bucket/a", local_pod),
            ("dataset", None, "imagenet@1", "s3://bucket/a", local_pod),
        )
    ),
    Effect("data.*.rate", None, "100MB", busy_with_data, {"data.*.from": "s3://bucket/a"}),
    Effect("data.*.from", "s3://bucket/a", "s3://bucket/b", local_pod),
    Effect("data.*.from", "pvc://claim/a", "pvc://claim/b", kubernetes_pod),
    Effect("checkpoint.to", None, "s3://bucket/runs", local_pod),
    Effect("checkpoint.from", None, "s3://bucket/runs/base", local_pod),
    Effect("checkpoint.every", None, "10m", local_pod),
    Effect("checkpoint.every", None, "200 steps", local_pod),
    Effect("checkpoint.every", None, "auto", local_pod),
    Effect("checkpoint.keep", None, 7, local_pod),
    Effect("checkpoint.trust", None, True, local_pod),
    Effect("checkpoint.memory_every", None, "20 steps", local_pod),
    Effect("checkpoint.memory_every", None, "30s", local_pod),
    Effect("retry.program", 0, 1, Played(program=FAILS, seconds=10)),
    Effect("retry.infrastructure", 0, 1, Played(loses_pods=True, seconds=10)),
    Effect("retry.backoff", "1s", "9s", Played(program=FAILS, seconds=30), {"retry.program": 3}),
    Effect("retry.max_backoff", "2s", "8s", Played(program=FAILS), {"retry.program": 4, "retry.backoff": "2s"}),
    Effect("logs.max", None, "256Mi", local_pod),
    Effect("metrics.pattern", r"loss (?P<loss>\S+)", r"train loss (?P<loss>\S+)", local_pod),
    Effect("priority", 0, 5, replace(ONE_FREE, beside=(one_gpu("rival", priority=3),)), {"resources.gpu": 1}),
    Effect("max_duration", None, "10s", Played()),
    Effect("max_cost", 100, 9, spent, {"resources.gpu": 1}),
    Effect("expected_duration", "10s", "10h", SHORTEST, {"resources.gpu": 1}),
    Effect("deadline", "30h", "8h", ON_SPOT, {"capacity.spot": "auto", "expected_duration": "8h"}),
    Effect("stall_timeout", None, "10s", HANGING),
    Effect("idle.then", None, "suspend", left_idle),
    Effect("idle.below", None, "10%", left_idle),
    Effect("idle.for", None, "30m", left_idle),
    Effect("grace", "30s", "5s", local_pod),
    Effect("framework", None, "jax", local_pod),
    Effect("framework", "jax", "tensorflow", kubernetes_pod),
    Effect("framework", None, "lightning", kubernetes_pod),
    Effect("launch", None, "exec", local_pod),
    Effect("snapshot", True, False, kept_code),
    Effect("elastic", None, "in_place", local_pod, {"nodes": 2}),
    Effect("elastic", None, "in_place", kubernetes_pod, {"nodes": 2}),
    Effect("terminate_on_nan", True, False, local_pod),
    Effect("terminate_on_nan", True, False, kubernetes_pod),
    Effect("engine", "jobset", "volcano", for_engine),
    Effect("queue", "a", "b", for_engine, {"engine": "kueue"}),
    Effect("network.profile", "none", "efa", Played(seconds=5)),
    Effect("network.rdma", "rdma/hca", "rdma/other", Played(nodes=(node(extended={"rdma/hca": 1}),), seconds=5)),
    Effect("network.attach", None, ["rail-0"], kubernetes_pod),
    Effect("preflight.network", None, "60s", local_pod, {"nodes": 2}),
    Effect("preflight.loss", None, "3 steps", local_pod),
    Effect("preflight.gpu", None, "60s", kubernetes_pod, {"resources.gpu": 1}),
    Effect("kubernetes", None, {"spec": {"nodeSelector": {"disk": "fast"}}}, kubernetes_pod),
    Effect("model.config", "a.json", "b.json", with_config(the_splits), {"resources.gpu": "A100:8"}),
    Effect("model.layers", 12, 24, with_config(the_splits), MODEL),
    Effect("model.hidden", 768, 1536, with_config(the_splits), MODEL),
    Effect("model.heads", 12, 8, with_config(the_splits), MODEL),
    Effect("model.kv_heads", None, 4, with_config(the_splits), MODEL),
    Effect("model.width", None, 2048, with_config(the_splits), MODEL),
    Effect("model.vocabulary", 50_257, 32_000, with_config(the_splits), MODEL),
    Effect("model.sequence", 1024, 2048, with_config(the_splits), MODEL),
    Effect("parallel.choose", None, "auto", with_config(the_split), {**MODEL, "parallel.batch": 64}),
    Effect("parallel.data", 8, 4, with_config(the_split), {**MODEL, "parallel.choose": "auto"}),
    Effect("parallel.shard", None, "parameters", with_config(the_split), MODEL),
    Effect("parallel.tensor", None, 2, with_config(the_split), MODEL),
    Effect("parallel.pipeline", None, 2, with_config(the_split), MODEL),
    Effect("parallel.micro_batch", None, 2, with_config(the_split), {**MODEL, "parallel.batch": 64}),
    Effect("parallel.recompute", None, "full", with_config(the_split), MODEL),
    Effect("parallel.batch", None, 64, with_config(the_split), MODEL),
    Effect("parallel.probe", None, 3, with_config(the_split), {**MODEL, **OF_64, "parallel.choose": "auto"}),
    Effect("parallel.candidates.*.data", 8, 4, local_pod, {**OF_64, "parallel.candidates.*.tensor": 2}),
    Effect("parallel.candidates.*.shard", None, "parameters", local_pod, OF_64),
    Effect("parallel.candidates.*.tensor", None, 2, local_pod, OF_64),
    Effect("parallel.candidates.*.pipeline", None, 2, kubernetes_pod, OF_64),
    Effect("parallel.candidates.*.micro_batch", None, 2, local_pod, OF_64),
    Effect("parallel.candidates.*.recompute", None, "full", local_pod, OF_64),
    Effect("parallel.candidates.*.estimate", "1s", "2s", the_candidates, OF_64),
]  # fmt: skip

# Workspaces -----------------------------------------------------------------------------------------------------------


def left_alone(spec: Any) -> object:
    """What follows for a workspace in which nothing happens in the first two hours."""
    run = Workload(
        uid=UID, spec=spec, intent=Intent.RUN, status=status(Phase.RUNNING, since=NOW, warning=QUIET, warned_at=NOW),
        version=1, created_at=NOW,
    )  # fmt: skip
    return workspace_idle.act(run, (), NOW + 7200.0), workspace_idle.reason(run, (), NOW + 7200.0)


def selected(spec: Any) -> object:
    """Which of two selections by label it belongs to."""
    return RunSelection(labels=(("experiment", "a"),)).matches(a_workload(spec))


def claim_of_home(spec: Any) -> object:
    """The claim that an operator makes for a workspace."""
    return render_claim(spec)


QUIET = Reason(code=Code.IDLE, message="nothing ran in it")
EFFECTS["Workspace"] = [
    *(
        each
        for each in EFFECTS["Training"]
        if each.key in ("name", "team", "setup", "env", "secrets", "resources.gpu", "resources.cpu", "resources.memory")
        and each.after != "auto" and each.seen is not kubernetes_pod
    ),
    *(each for each in EFFECTS["Training"] if each.key.startswith("environment.")),
    Effect("resources.sharing", ["mps"], ["time-slicing"], Played(nodes=SHARED, seconds=5), {"resources.gpu": 0.5}),
    *(
        each
        for each in EFFECTS["Training"]
        if each.key.startswith("data.")
    ),
    *(
        each
        for each in EFFECTS["Training"]
        if each.key in ("logs.max", "priority", "max_duration", "max_cost", "grace", "checkpoint.from",
                        "checkpoint.trust", "image", "kubernetes")
    ),
    Effect("name", "t", "u", local_pod),
    Effect("team", None, "vision", local_pod),
    Effect("labels", None, {"experiment": "a"}, selected),
    Effect("ide", None, "ssh", local_pod),
    Effect("home.path", "/a", "/b", local_pod),
    Effect("home.size", None, "20Gi", claim_of_home),
    Effect("home.class", None, "fast", claim_of_home),
    Effect("workdir", "/a", "/b", local_pod),
    Effect("idle.after", None, "3h", left_alone),
    Effect("suspend_at.at", "0 0 1 1 *", "* * * * *", left_alone),
    Effect("suspend_at.timezone", None, "Asia/Tokyo", left_alone, {"suspend_at.at": "0 2 * * *", "idle.after": "9h"}),
]  # fmt: skip

# Teams ----------------------------------------------------------------------------------------------------------------

BORROWED = [of_team("others", f"o{n}", gpu=gpus(1), cpu_milli=1000, memory_bytes=8 * GIB) for n in range(4)]
EFFECTS["Team"] = [
    Effect("name", "a", "b", team_objects),
    Effect("members", None, ["ann"], team_objects),
    Effect("groups", None, ["ml-research"], team_objects),
    Effect("max_objects", None, 2000, team_objects),
    Effect("quota.gpu", 4, 1, in_team(of_team("a", "r", gpu=gpus(2)))),
    Effect("quota.cpu", 4, 1, in_team(of_team("a", "r", cpu_milli=2000))),
    Effect("quota.memory", "8Gi", "1Gi", in_team(of_team("a", "r", memory_bytes=2 * GIB))),
    Effect("guaranteed.gpu", None, 1, in_team(of_team("a", "r", gpu=gpus(1)), before=BORROWED)),
    Effect("guaranteed.cpu", None, 1, in_team(of_team("a", "r", cpu_milli=1000), before=BORROWED)),
    Effect("guaranteed.memory", None, "8Gi", in_team(of_team("a", "r", memory_bytes=8 * GIB), before=BORROWED)),
    Effect("budget.monthly", 100, 9, lambda team: spent(of_team("a", "r", gpu=gpus(1)), team)),
    Effect(
        "budget.when_spent", "wait", "stop", lambda team: spent(of_team("a", "r", gpu=gpus(1)), team),
        {"budget.monthly": 9},
    ),
    Effect("project_budgets.*.monthly", 100, 9, lambda team: spent(of_project(gpu=gpus(1)), team)),
    Effect(
        "project_budgets.*.when_spent", "wait", "stop", lambda team: spent(of_project(gpu=gpus(1)), team),
        {"project_budgets.*.monthly": 9},
    ),
    Effect(
        "weight", 1, 9,
        in_team(
            of_team("b", "b-next", gpu=gpus(1)), of_team("a", "a-next", gpu=gpus(1)),
            before=[of_team("a", "a1", gpu=gpus(2)), of_team("b", "b1", gpu=gpus(1))],
        ),
    ),
    Effect("max_duration.default", None, "30s", lambda team: limited(of_team("a", "r"), team)),
    Effect("max_duration.max", None, "30s", lambda team: limited(of_team("a", "r"), team)),
    Effect(
        "max_priority", 0, 9,
        in_team(
            of_team("b", "b-next", gpu=gpus(1)), replace(of_team("a", "a-next", gpu=gpus(1)), priority=9),
            before=[of_team("a", "a1", gpu=gpus(2)), of_team("b", "b1", gpu=gpus(1))],
        ),
    ),
]  # fmt: skip

# Pools and simulations ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """What ``fairlead simulate`` finds for a few runs on a pool, or on pools under what a Simulation assumes."""

    runs: tuple[Training, ...] = (training("r", resources=Resources(gpu=gpus(2), cpu_milli=1000)),)
    simulations: tuple[Simulation, ...] = ()
    pools: tuple[Pool, ...] = ()
    duration_s: float = 4000.0
    apart_s: float = 10.0
    reads: ReadDemand | None = None

    def __call__(self, spec: Pool | Simulation) -> object:
        pools = (*((spec,) if isinstance(spec, Pool) else ()), *self.pools)
        simulations = (*self.simulations, *((spec,) if isinstance(spec, Simulation) else ()))
        arrivals = [
            Arrival(at_s=self.apart_s * n, duration_s=self.duration_s, spec=training, reads=self.reads)
            for n, training in enumerate(self.runs)
        ]
        try:
            outcome = simulate(arrivals, pools, World(simulations=simulations, seed=3))
        except InvalidSpec as error:
            return error.problems
        plain = dataclasses.asdict(replace(outcome, pools=()))
        return plain, summary(outcome).cost, [each.cost for each in summary(outcome).pools.values()]


def assumes(**said: Any) -> Simulation:
    (found,) = parse(json.dumps({"kind": "Simulation", "name": "other", **said}))
    assert isinstance(found, Simulation)
    return found


def a_pool(**said: Any) -> Pool:
    hardware = {"cpu": 8, "memory": "64Gi", "gpu": {"model": "A100", "count": 4, "memory": "80GB"}}
    (found,) = parse(json.dumps({"kind": "Pool", "name": "p", "hardware": hardware, **said}))
    assert isinstance(found, Pool)
    return found


def asking(**resources: Any) -> Training:
    return training("r", resources=Resources(**{"cpu_milli": 1000, **resources}))


def ahead(needed: Sequence[int], *times: float) -> Callable[[Pool], object]:
    """How many nodes a pool is to have at times, after such a past."""

    def look(pool: Pool) -> object:
        demand = PoolDemand(pool=pool, needed=tuple(needed))
        snapshot = Snapshot(nodes=(), workloads=(), pods=(), pools=(demand,))
        return [decide(snapshot, at).standby for at in times]

    return look


FORESEEN = ahead([1, 1, 1, 1, 1, 4] * 20, NOW)
PEAKED = ahead((), *(12_000 * 86_400.0 + hour * 3600.0 + 1.0 for hour in range(24)))
SPOT = a_pool(name="spare", capacity_type="spot", nodes=2)
RECLAIMED = assumes(reclaims={"every": "20m"})
ON_FAST_DISKS = overlay({"spec": {"nodeSelector": {"disk": "fast"}}})
PARTED = Replayed(runs=(asking(gpu=GpuRequest(milli=100), sharing=(Sharing.MIG,)),))
IN_SHARES = Replayed(
    runs=tuple(
        replace(asking(gpu=GpuRequest(milli=400), sharing=(Sharing.TIME_SLICING,)), name=name) for name in ("r", "s")
    )
)


def on_a_choice(**said: object) -> dict[str, object]:
    """Beside whole GPUs, as nobody chooses where there is one layout."""
    layout = {f"partitions.layouts.*.{name}": value for name, value in said.items()}
    return {"hardware.gpu.memory": "80GB", "partitions.layouts": {"all-disabled": {}}, **layout}


POOL = {"name": "p", "hardware.cpu": 8, "hardware.memory": "64Gi", "hardware.gpu.model": "A100"}
EFFECTS["Pool"] = [
    Effect("name", "p", "q", Replayed()),
    Effect("nodes", 1, 2, Replayed(runs=(asking(gpu=gpus(1)), replace(asking(gpu=gpus(1)), name="s")))),
    Effect("hardware.gpu.model", "A100", "H100", Replayed(runs=(asking(gpu=GpuRequest(milli=1000, model="A100")),))),
    Effect("hardware.gpu.count", 1, 4, Replayed()),
    Effect(
        "hardware.gpu.memory", "80GB", "16GB",
        Replayed(runs=(asking(gpu=GpuRequest(milli=1000, min_memory_bytes=40 * 10**9)),)),
    ),
    Effect(
        "hardware.gpu.sharing", "whole", "mps",
        Replayed(runs=tuple(replace(asking(gpu=GpuRequest(milli=500)), name=name) for name in ("r", "s"))),
    ),
    Effect(
        "hardware.gpu.instances", None, {"3g.40gb": "2"},
        Replayed(runs=(asking(gpu=GpuRequest(milli=400), sharing=(Sharing.MIG,)),)),
    ),
    Effect("hardware.cpu", 8, 4, Replayed(runs=(asking(cpu_milli=6000),))),
    Effect("hardware.memory", "64Gi", "4Gi", Replayed(runs=(asking(memory_bytes=8 * GIB),))),
    Effect(
        "capacity_type", "on-demand", "spot",
        Replayed(runs=(asking(gpu=gpus(1)),), simulations=(RECLAIMED,), pools=(SPOT,)),
    ),
    Effect("price_per_hour", 2, 3, Replayed(runs=(asking(gpu=gpus(1)),))),
    Effect("labels", None, {"disk": "fast"}, Replayed(runs=(replace(asking(), kubernetes=ON_FAST_DISKS),))),
    Effect("taints", None, ["dedicated=ml:NoSchedule"], Replayed(runs=(asking(),))),
    Effect("prewarm.confidence", "50%", "99%", FORESEEN, {"nodes": 9}),
    Effect("prewarm.max_nodes", 9, 1, FORESEEN, {"nodes": 9, "prewarm.confidence": "99%"}),
    Effect("peaks.*.at", "0 0 * * *", "0 5 * * *", PEAKED, {"nodes": 9, "peaks.*.nodes": 2}),
    Effect("peaks.*.nodes", 2, 3, PEAKED, {"nodes": 9, "peaks.*.at": "0 0 * * *"}),
    Effect("peaks.*.for", "2h", "5h", PEAKED, {"nodes": 9, "peaks.*.at": "0 0 * * *", "peaks.*.nodes": 2}),
    Effect("partitions.layouts.*.instances", {"1g.10gb": "7"}, {"3g.40gb": "2"}, PARTED, on_a_choice()),
    Effect("partitions.layouts.*.replicas", 2, 3, IN_SHARES, on_a_choice()),
    Effect(
        "partitions.layouts.*.sharing", "time-slicing", "mps", IN_SHARES,
        on_a_choice(replicas=2),
    ),
    Effect(
        "partitions.reconfigure", "1m", "9m", PARTED,
        on_a_choice(instances={"1g.10gb": "7"}),
    ),
    Effect(
        "peaks.*.timezone", "UTC", "Asia/Tokyo",
        PEAKED, {"nodes": 9, "peaks.*.at": "0 0 * * *", "peaks.*.nodes": 2},
    ),
]  # fmt: skip

TWO_POOLS = (
    a_pool(name="a", price_per_hour=1, nodes=2),
    a_pool(name="b", price_per_hour=9, nodes=2, capacity_type="spot"),
)
THREE = tuple(training(f"r{n}", resources=Resources(gpu=gpus(2), cpu_milli=1000)) for n in range(6))
PAIRED = tuple(training(f"r{n}", resources=Resources(gpu=GpuRequest(milli=250), cpu_milli=1000)) for n in range(4))
ON_BOTH = Replayed(runs=THREE, pools=TWO_POOLS, duration_s=20_000.0)
READING = replace(ON_BOTH, reads=ReadDemand(version="v", size_gb=100.0, gb_s=0.2))
ON_DEMAND_NODES = Replayed(runs=THREE, pools=TWO_POOLS, apart_s=8000.0, duration_s=900.0)


def beside(number: int) -> Replayed:
    """So many runs on one device."""
    return Replayed(
        runs=PAIRED[:number], pools=(a_pool(name="a", hardware={"cpu": 8, "memory": "64Gi", "gpu": {"model": "A100"}}),)
    )


UNRELIABLE = Replayed(
    runs=(training("wide", nodes=10, resources=Resources(gpu=gpus(4), cpu_milli=1000)),),
    pools=(a_pool(name="a", nodes=10),),
    duration_s=20_000.0,
)
LEMONS = {
    "failures.mtbf": "1000d", "failures.repair": "1m", "failures.taken_out": "1h", "failures.lemons.mtbf": "1h",
    "failures.lemons.share": "30%",
}  # fmt: skip
AGEING = {"failures.mtbf": "1000d", "failures.lemons.mtbf": "20d", "failures.lemons.share": "0%"}

EFFECTS["Simulation"] = [
    Effect("name", "s", "u", ON_BOTH, {"pools": ["unknown"]}),
    Effect("pools", ["a"], ["b"], ON_BOTH, {"failures.mtbf": "3h"}),
    Effect("failures.mtbf", "10h", "2h", ON_BOTH),
    Effect("failures.repair", "10m", "3h", ON_BOTH, {"failures.mtbf": "2h"}),
    Effect("failures.known", "100%", "0%", ON_BOTH, {"failures.mtbf": "2h"}),
    Effect("failures.taken_out", "1h", "5h", UNRELIABLE, LEMONS),
    Effect("failures.lemons.mtbf", "1h", "20h", UNRELIABLE, LEMONS),
    Effect("failures.lemons.share", "0%", "30%", UNRELIABLE, LEMONS),
    Effect("failures.lemons.yearly", "0%", "100%", replace(UNRELIABLE, duration_s=2e7), AGEING),
    Effect("failures.lemons.cured", "0%", "100%", UNRELIABLE, LEMONS),
    Effect("reclaims.every", "10h", "30m", ON_BOTH),
    Effect("reclaims.notice", "1s", "5m", ON_BOTH, {"reclaims.every": "30m", "programs.save": "60s"}),
    Effect("reclaims.away", "10m", "5h", ON_BOTH, {"reclaims.every": "30m"}),
    Effect("provisioning.min_nodes", 0, 1, ON_DEMAND_NODES),
    Effect("provisioning.delay", "1m", "9m", ON_DEMAND_NODES),
    Effect("provisioning.delay_p90", None, "9m", ON_DEMAND_NODES),
    Effect("provisioning.idle", "1m", "9m", ON_DEMAND_NODES),
    Effect("programs.start_up", "0s", "2m", ON_BOTH),
    Effect("programs.checkpoint_every", "10m", "30m", ON_BOTH, {"programs.checkpoint": "15s"}),
    Effect("programs.checkpoint", "0s", "15s", ON_BOTH),
    Effect("programs.save", "0s", "60s", ON_BOTH, {"reclaims.every": "30m"}),
    Effect("programs.step", None, "30s", replace(ON_BOTH, runs=(*THREE, replace(THREE[0], name="late", priority=9)))),
    Effect("store.rate", "1GB", "100MB", READING),
    Effect("store.cache", "0", "1TB", READING, {"store.rate": "100MB"}),
    Effect("interference.two", 1, 2, beside(2)),
    Effect("interference.three", 1, 2, beside(3)),
    Effect("interference.four", 1, 2, beside(4)),
    Effect("interference.neighbour", 1, 2, Replayed(runs=THREE[:2], pools=(a_pool(name="a"),))),
]

# Pipelines ------------------------------------------------------------------------------------------------------------


def as_run(seen: Callable[[Training], object]) -> Callable[[Pipeline], object]:
    """What comes of the run that a pipeline is, but for the file that holds the pipeline."""

    def look(pipeline: Pipeline) -> object:
        with tempfile.TemporaryDirectory() as place:
            return seen(replace(submission.as_training(pipeline, Home.open(Path(place))), run="driver"))

    return look


@dataclass(frozen=True)
class Driven:
    """What a pipeline's driver does in a directory with two files, or does again after one of them has changed.

    Attributes:
        times: How often it comes; `a.txt` is another before the second time.
    """

    times: int = 1

    def __call__(self, pipeline: Pipeline) -> object:
        with tempfile.TemporaryDirectory() as place:
            work, told = Path(place) / "work", []
            work.mkdir()
            (work / "b.txt").write_text("b")
            (Path(place) / "spec.json").write_text(to_json(pipeline))
            for number in range(self.times):
                (work / "a.txt").write_text(f"a{number}")
                files = Path(place) / f"run-{number}"
                files.mkdir()
                given = {"FAIRLEAD_RUN_DIR": str(files), "FAIRLEAD_POD_DIR": str(files), "FAIRLEAD_RUN_UID": "r"}
                driver = [sys.executable, "-m", "fairlead.control.pipelines.driver"]
                done = subprocess.run(
                    [*driver, str(Path(place) / "spec.json"), str(Path(place) / "store")],
                    cwd=work, env={**os.environ, **given}, capture_output=True, text=True, timeout=120, check=False,
                )  # fmt: skip
                # Neither times nor places, which differ each time.
                printed = sorted(line for line in done.stdout.splitlines() if not line.startswith("fairlead: "))
                steps = journal.read(files / journal.NAME, pipeline).steps
                tasks = sorted((task.name, task.phase, task.failures) for each in steps.values() for task in each)
                told.append((done.returncode, printed, tasks))
            return told


def triggered(pipeline: Pipeline, hours: Sequence[int] = ()) -> object:
    """For what an applied pipeline is submitted: data changes at once, then times come, and one while a run goes on."""
    began, told = 1_800_000_000.0, []
    with tempfile.TemporaryDirectory() as place:
        work = Path(place) / "work"
        work.mkdir()
        for name in ("a.csv", "b.csv"):
            (work / name).write_text("one")
        cluster = LocalCluster.open(Path(place) / "home")
        placed = replace(pipeline, workdir=str(work))
        spec = submission.as_training(placed, cluster.home)
        triggers.keep(cluster.home, triggers.AppliedPipeline(pipeline=placed, spec=spec, environ={}, at=began))
        looking = triggers.Triggers(cluster.home, cluster)

        def look(after_s: float, *, finish: bool) -> None:
            with patch.object(triggers, "LOOK_S", 0.0):
                looking.look(began + after_s)
            told.append((after_s, [run.spec.labels["trigger"] for run in cluster.workloads()]))
            for run in cluster.workloads() if finish else ():
                over = replace(run.status, phase=Phase.SUCCEEDED, finished_at=began)
                change = Change(workload_uid=run.uid, version=run.version, status=over)
                assert run.status.phase.is_final or cluster.store.apply(change, began)

        look(1.0, finish=True)
        (work / "a.csv").write_text("another")
        for after_s in (2.0, 3.0):
            time.sleep(0.11)  # which is longer than the shortest time between looks at data
            look(after_s, finish=True)
        look(61.0, finish=False)
        look(121.0, finish=True)
        look(125.0, finish=True)
        for hour in hours:
            look(122.0 + 3600 * hour, finish=True)
        cluster.close()
    return told


def drifted(pipeline: Pipeline) -> object:
    """Look for drift in two files of which the losses of one grow more than those of the other."""
    assert pipeline.on is not None
    assert pipeline.on.drift is not None
    with tempfile.TemporaryDirectory() as place:
        for name, later in (("a.csv", 3), ("b.csv", 2)):
            rows = [(0 if row < 400 else row % later % 2, row % 7) for row in range(800)]
            (Path(place) / name).write_text("error,loss\n" + "".join(f"{one},{other}\n" for one, other in rows))
        return replace(drift.look(drift.request_of(pipeline.on.drift, Path(place))), begin=0)


BY_COST: dict[str, object] = {"on.drift.data": "a.csv", "on.drift.column": "error", "on.drift.cost": 5}
BY_REFERENCE = {"on.drift.data": "a.csv", "on.drift.reference": "b.csv"}
BY_DETECTOR = {"on.drift.data": "a.csv", "on.drift.column": "error", "on.drift.detector": "adwin"}


def but(given: Mapping[str, object], key: str) -> dict[str, object]:
    return {name: value for name, value in given.items() if name != key}


NIGHTLY = {"schedule.cron": "0 3 * * *"}
FIRST = {
    "steps.p.run": "echo 5 > $FAIRLEAD_OUTPUT_ROWS; echo '[1, 2]' > $FAIRLEAD_OUTPUT_SHARDS",
    "steps.p.outputs": ["rows", "shards"],
}
NEEDS_FIRST = {**FIRST, "steps.*.needs": ["p"]}
CODE = {"steps.*.code": ["b.txt"]}
MEETING = "for i in $(seq 100); do [ -e flag ] && exit 0; sleep 0.1; done; exit 1"
OF_THE_RUN = (
    "name", "team", "labels", "image", "workdir", "setup", "env", "secrets", "checkpoint.to", "kubernetes", "priority",
    "grace",
)  # fmt: skip
EFFECTS["Pipeline"] = [
    *(
        replace(each, seen=as_run(each.seen))
        for each in EFFECTS["Training"]
        if each.key in OF_THE_RUN
        or each.key.startswith("environment.")
        or (each.key.startswith("resources.") and each.key != COLOCATE)
    ),
    Effect("parallel", 2, 1, Driven(), {"steps.*.run": MEETING, "steps.z.run": "touch flag"}),
    Effect("schedule.cron", "0 3 * * *", "0 2 * * *", partial(triggered, hours=(24,))),
    Effect("schedule.timezone", None, "Asia/Tokyo", partial(triggered, hours=(24,)), NIGHTLY),
    Effect("schedule.catch_up", None, "none", partial(triggered, hours=(24,)), NIGHTLY),
    Effect("schedule.overlap", None, "wait", triggered, {"schedule.cron": "* * * * *"}),
    Effect("on.data", ["a.csv"], ["b.csv"], triggered, {"on.every": "100ms"}),
    *(
        Effect(f"on.drift.{key}", one, other, drifted, but(given, f"on.drift.{key}"))
        for key, one, other, given in (
            ("data", "a.csv", "b.csv", BY_COST),
            ("column", "error", "loss", BY_COST),
            ("cost", 5, 5000, BY_COST),
            ("window", None, 600, BY_COST),
            ("detector", "adwin", "page-hinkley", BY_DETECTOR),
            ("reference", "a.csv", "b.csv", BY_REFERENCE),
            ("significance", None, 0.2, BY_REFERENCE),
        )
    ),
    Effect("on.every", "100ms", "1h", triggered, {"on.data": ["a.csv"]}),
    Effect("steps.*.run", "echo one", "echo two", Driven()),
    Effect("steps.*.needs", None, ["p"], Driven(), {**FIRST, "steps.*.run": "env | grep -c FAIRLEAD_INPUT; true"}),
    Effect("steps.*.when", "p.rows > 1", "p.rows > 9", Driven(), NEEDS_FIRST),
    Effect("steps.*.each", ["x"], ["x", "y"], Driven()),
    Effect("steps.*.each_of", None, "p.shards", Driven(), NEEDS_FIRST),
    Effect("steps.*.env", None, {"X": "1"}, Driven(), {"steps.*.run": 'echo "x=$X"'}),
    Effect("steps.*.inputs", None, ["a.txt"], Driven(times=2), CODE),
    Effect("steps.*.outputs", None, ["model"], Driven()),
    Effect("steps.*.code", ["b.txt"], ["a.txt"], Driven(times=2)),
    Effect("steps.*.cache.max_age", None, "1ms", Driven(times=2), CODE),
    Effect("steps.*.cache.off", False, True, Driven(times=2), CODE),
    Effect("steps.*.retry", 0, 1, Driven(), {"steps.*.run": "exit 1"}),
    Effect("steps.*.timeout", "500ms", None, Driven(), {"steps.*.run": "sleep 1.5"}),
    Effect(
        "steps.*.gate", "rows > 1", "rows > 9", Driven(),
        {"steps.*.run": "echo 5 > $FAIRLEAD_OUTPUT_ROWS", "steps.*.outputs": ["rows"]},
    ),
]  # fmt: skip

# Sweeps ---------------------------------------------------------------------------------------------------------------


def as_trial(seen: Callable[[Training], object]) -> Callable[[Sweep], object]:
    """What comes of the first trial of a sweep."""

    def look(sweep: Sweep) -> object:
        searching = Searching(sweep)
        searching.pass_once()
        trial = searching.trials["0"].spec
        assert isinstance(trial, Training)
        return seen(trial)

    return look


def searched(fails: Callable[[int], bool] = lambda _: False) -> Callable[[Sweep], object]:
    """Which trials a sweep has, how far each comes, and what is told of it."""

    def look(sweep: Sweep) -> object:
        searching = Searching(sweep, fails=fails)
        phase = searching.run()
        steps = {name: each.progress.step if each.progress else 0 for name, each in searching.trials.items()}
        values = {name: values_of(each.spec) for name, each in searching.trials.items()}
        return phase, searching.most, steps, values, searching.events, searching.sweep.status.reason.message

    return look


def begun(sweep: Sweep) -> object:
    """The trials that Fairlead submits by itself at first, and why no others."""
    searching = Searching(sweep)
    searching.pass_once()
    return sorted(searching.trials), searching.sweep.status.reason.message


EFFECTS["Sweep"] = [
    *(
        replace(each, seen=as_trial(each.seen))
        for each in EFFECTS["Training"]
        if each.key in ("name", "team", "labels")
    ),
    *(
        replace(
            each,
            key=f"trial.{each.key}",
            seen=as_trial(each.seen),
            beside={f"trial.{key}": said for key, said in each.beside.items()},
            along={f"trial.{key}": said for key, said in each.along.items()},
        )
        for each in EFFECTS["Training"]
        if each.key not in ("name", "team")
    ),
    Effect("parameters", {"x": "0.0..1.0", "y": "1..8"}, {"x": "0.0..0.5", "y": "1..8"}, searched()),
    Effect("objective.metric", "loss", "accuracy", searched()),
    Effect("objective.goal", "minimize", "maximize", searched()),
    Effect(
        "objectives", ["loss", "cost"], ["loss", "cost:maximize"], searched(), {"objective.metric": None, "trials": 40}
    ),
    Effect("trials", 6, 5, searched()),
    Effect("engine", None, "katib", begun, {"parallel": 2, "trials": 6}),
    Effect("parallel", 2, 3, searched()),
    Effect("parallel", 2, "free", searched()),
    Effect("sampler", None, "random", searched(), {"trials": 30}),
    Effect("prune.rule", "asha", "median", searched()),
    Effect("prune.after", 1, 9, searched(), {"prune.rule": "asha"}),
    Effect("prune.factor", 2, 5, searched(), {"prune.rule": "asha"}),
    Effect("prune.steps", 9, 27, searched(), {"prune.rule": "hyperband", "trials": 20}),
    Effect("stop.target", None, 5.0, searched()),
    Effect("stop.duration", None, "10s", searched()),
    Effect("max_failed", 0, 3, searched(fails=lambda number: number % 3 == 1)),
    Effect("seed", 0, 1, searched()),
]

# Endpoints ------------------------------------------------------------------------------------------------------------


def as_replica(seen: Callable[[Training], object]) -> Callable[[Serving], object]:
    """What comes of the first replica of an endpoint."""

    def look(serving: Serving) -> object:
        endpoint = Endpoint(serving)
        endpoint.pass_once()
        (replica, *_) = endpoint.replicas.values()
        return seen(renamed(replica.spec, serving.name))

    return look


@dataclass(frozen=True)
class Asked:
    """What becomes of an endpoint for which more is asked after a minute, and nothing after two.

    Attributes:
        changes: It is given another command after ten seconds.
        broken: Which never serves.
    """

    changes: bool = False
    broken: bool = False

    def __call__(self, serving: Serving) -> object:
        endpoint = Endpoint(
            serving,
            start_s=lambda replica: None if self.broken and replica.run == "other" else 2.0,
            in_flight=lambda at: (2 if at < 60 else 14) if at < 120 else 0,
            service_s=0.15,
        )
        endpoint.run(10)
        if self.changes:
            endpoint.change(replace(serving, run="other"))
        counts = []
        for _ in range(60):
            endpoint.run(5)
            counts.append((len(endpoint.names), len(endpoint.ready)))
        return counts, endpoint.most, endpoint.events, endpoint.told


def by_tokens(serving: Serving) -> object:
    """How many replicas of a text server are needed for four requests a second."""
    service = service_of(serving, demand(4.0, told(4.0, 100)), 2, locked=False, start_s=None, now=1200.0)
    assert service is not None
    return service.shares, shares({"a": service}, 6)


def routed(serving: Serving) -> object:
    """What the gateway is told of an endpoint."""
    endpoint = Endpoint(serving)
    endpoint.run(5)
    keys = [AccessKey(team=team, name="k", sha256=team * 64, created_at=0.0) for team in ("a", "b")]
    return routes(endpoint.snapshot(), places_here(endpoint.snapshot()), {}, keys)


def measured(serving: Serving) -> object:
    """The question that is asked for an endpoint with two replicas, and how many it has after an answer of 35."""
    asked: list[tuple[str, str]] = []
    answered = threading.Event()

    def ask(query: PrometheusQuery) -> float:
        asked.append((query.url, query.query))
        answered.set()
        return 35.0

    endpoint = Endpoint(serving)
    endpoint.run(5)
    PrometheusReader(ask).look(endpoint.snapshot(), 0.0)
    assert answered.wait(30)
    endpoint.measure = lambda _: 35.0
    endpoint.run(100)
    return asked, len(endpoint.ready)


def tiered(serving: Serving) -> object:
    """The kinds of capacity that its replicas may use."""
    endpoint = Endpoint(serving)
    endpoint.run(5)
    return [each.spec.capacity for each in endpoint.replicas.values()]


@dataclass(frozen=True)
class Tried:
    """What becomes of another revision of an endpoint, which the gateway compares with the old one.

    Attributes:
        pairs: By which time so many have been compared.
        worse: Of them, those in which only the new one failed, was slow and had a bad metric.
    """

    pairs: int = 0
    worse: int = 0

    def __call__(self, serving: Serving) -> object:
        endpoint = Endpoint(serving, in_flight=lambda _: 1)
        endpoint.run(5)
        endpoint.change(replace(serving, run="other"))
        endpoint.run(5)
        told = routes(endpoint.snapshot(), places_here(endpoint.snapshot()), {})
        shares = endpoint.shares
        endpoint.pairs, endpoint.worse = self.pairs, self.worse
        endpoint.run(90)
        return told, shares, endpoint.events


def probed(spec: Training) -> object:
    """What a replica that does not answer is said to wait for."""
    uid = "replica"
    one = Pod(
        uid=f"{uid}-0-0", workload_uid=uid, attempt=0, index=0, node="here", grant=Grant(), phase=PodPhase.RUNNING,
        created_at=NOW, started_at=NOW,
    )  # fmt: skip
    run = Workload(uid=uid, spec=spec, intent=Intent.RUN, status=status(Phase.STARTING), version=1, created_at=NOW)
    change = judge_replica(run, (one,), Snapshot(nodes=(node("here"),), workloads=(run,), pods=(one,)), NOW)
    return change and change.status


def at_sites(serving: Serving) -> object:
    """What the sites of an endpoint get within some minutes, in which the third does not answer."""
    sites = Sites(serving, lambda name, _: name != "third")
    sites.run(400.0)
    specs = [release_spec(sites.serving, site) for site in sites.rollout.sites]
    return specs, sites.rollout, sites.serving.status.reason, sites.events


def at_a_site(seen: Callable[[Training], object]) -> Callable[[Serving], object]:
    """What comes of the first replica of an endpoint at its first site."""

    def look(serving: Serving) -> object:
        sites = Sites(serving, lambda *_: True)
        sites.run(20.0)
        spec = release_spec(sites.serving, sites.rollout.sites[0])
        assert spec is not None
        return as_replica(seen)(replace(spec, labels={}))

    return look


OF_REPLICAS = (
    "team", "labels", "run", "image", "workdir", "setup", "environment", "env", "secrets", "data", "resources",
    "capacity", "logs", "priority", "grace", "snapshot", "kubernetes",
)  # fmt: skip
SCORED: Mapping[str, Any] = {"canary.metric.header": "X-Score"}
BY_LATENCY: Mapping[str, Any] = {"replicas": "1..8", "scale.concurrency": 1}
BY_CLOCK: Mapping[str, Any] = {
    "replicas": "1..8", "scale.schedule.*.cron": "* * * * *", "scale.schedule.*.duration": "1m",
    "scale.schedule.*.replicas": 2,
}  # fmt: skip
ASKS = "scale.prometheus"
BY_QUERY: Mapping[str, Any] = {
    "replicas": "1..8", f"{ASKS}.url": "http://a:9090", f"{ASKS}.query": "queue", f"{ASKS}.target": 10,
}  # fmt: skip
OUTSIDE = "scale.external_metric"
BY_HPA: Mapping[str, Any] = {"replicas": "1..8", "scale.by": "hpa"}
BY_METRIC: Mapping[str, Any] = {**BY_HPA, f"{OUTSIDE}.name": "waiting", f"{OUTSIDE}.target": 10}
LAX: Mapping[str, Any] = {"canary.errors": "50%"}
PREDICTS: Mapping[str, Any] = {"run": None, "predictor": "predict:Classifier"}
AT_A_SITE: Mapping[str, Any] = {"sites.*.context": "a"}
AT_SITES: Mapping[str, Any] = {f"sites.{name}.context": name for name in ("step", "second", "third")}
PUBLISHED: Mapping[str, Any] = {"model": "https://models.example.com/detector-1.json"}
KEYS = [f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{letter * 43}" for letter in "AB"]
EFFECTS["Serving"] = [
    *(
        replace(each, seen=as_replica(each.seen))
        for each in EFFECTS["Training"]
        if {name.split(".")[0] for name in (each.key, *each.beside, *each.along)} <= set(OF_REPLICAS)
        and (not each.key.startswith("data.") or each.seen is local_pod)
        and each.after != "auto"
        and each.key != COLOCATE
    ),
    Effect("name", "a", "b", routed),
    *(
        replace(
            effect,
            key=f"sites.*.{effect.key}",
            seen=at_a_site(effect.seen),
            beside={**{f"sites.*.{key}": value for key, value in effect.beside.items()}, **AT_A_SITE},
            along={f"sites.*.{key}": value for key, value in effect.along.items()},
        )
        for effect in EFFECTS["Training"]
        if effect.key.startswith("resources.") and effect.key != COLOCATE and effect.after != "auto"
    ),
    Effect("sites.*.context", "a", "b", at_sites),
    Effect("sites.*.namespace", None, "vision", at_sites, AT_A_SITE),
    Effect("sites.*.home", "/a", "/b", at_sites),
    Effect("waves.steps", None, ["2"], at_sites, AT_SITES),
    Effect("waves.hold", None, "1h", at_sites, AT_SITES),
    Effect("waves.deadline", None, "1m", at_sites, AT_SITES),
    Effect("waves.min", None, "100%", at_sites, {**AT_SITES, "waves.deadline": "1m"}),
    Effect("waves.pause", None, True, at_sites, AT_SITES),
    Effect("signed_by", KEYS[0], KEYS[1], as_replica(local_pod), PUBLISHED),
    Effect("model", None, "model.bin", as_replica(local_pod)),
    Effect("predictor", "predict:Classifier", "predict:Other", as_replica(local_pod), PREDICTS),
    Effect("probe", None, "/health", as_replica(probed)),
    Effect("replicas", 1, 2, Asked()),
    Effect("replicas", 1, "1..3", Asked()),
    Effect("scale.concurrency", 4, 2, Asked(), {"replicas": "1..8"}),
    Effect("scale.latency", "200ms", "2s", Asked(), BY_LATENCY),
    Effect("scale.time_to_first_token", "1s", "120ms", by_tokens, {"replicas": "1..8"}),
    Effect("scale.time_per_token", None, "25ms", by_tokens, {"replicas": "1..8", "scale.time_to_first_token": "1s"}),
    Effect("scale.shed", True, False, Asked(), {**BY_LATENCY, "scale.latency": "2s"}),
    Effect("scale.queue", 2, 6, Asked(), {"replicas": "1..8", "max_concurrency": 2}),
    Effect("scale.schedule.*.cron", "0 0 1 1 *", "* * * * *", Asked(), BY_CLOCK),
    Effect("scale.schedule.*.duration", "1m", "2m", Asked(), {**BY_CLOCK, "scale.schedule.*.cron": "*/3 * * * *"}),
    Effect("scale.schedule.*.replicas", 2, 3, Asked(), BY_CLOCK),
    Effect("scale.by", None, "keda", autoscaled, BY_QUERY),
    Effect("scale.cpu", "70%", "50%", autoscaled, BY_HPA),
    Effect("scale.replicas", 2, 3, autoscaled, {**BY_HPA, "scale.cpu": "70%"}),
    Effect(f"{OUTSIDE}.name", "waiting", "other", autoscaled, BY_METRIC),
    Effect(f"{OUTSIDE}.target", 10, 20, autoscaled, BY_METRIC),
    Effect(f"{OUTSIDE}.labels", None, {"a": "b"}, autoscaled, BY_METRIC),
    Effect(f"{OUTSIDE}.aggregation", "sum", "mean", autoscaled, BY_METRIC),
    Effect(f"{ASKS}.url", "http://a:9090", "http://b:9090", measured, BY_QUERY),
    Effect(f"{ASKS}.query", "queue", "other", measured, BY_QUERY),
    Effect(f"{ASKS}.target", 10, 20, measured, BY_QUERY),
    Effect(f"{ASKS}.aggregation", "sum", "mean", measured, BY_QUERY),
    Effect("scale.window", "60s", "10s", Asked(), {"replicas": "1..8"}),
    Effect("scale.idle", "30s", "90s", Asked(), {"replicas": "0..8", "scale.window": "10s"}),
    Effect("engine", "kserve", "knative", by_engine, {"image": "python:3.12"}),
    Effect("batching.max_batch_size", 8, 16, as_replica(local_pod), PREDICTS),
    Effect("batching.max_latency", "5ms", "10ms", as_replica(local_pod), PREDICTS),
    Effect("rollout.max_surge", 1, 0, Asked(changes=True)),
    Effect("canary.steps", ["5%"], ["10%"], Tried()),
    Effect("canary.errors", "1%", "40%", Tried(pairs=100, worse=1), {"canary.within": "1h"}),
    Effect("canary.latency", None, "250ms", Tried(), {"canary.within": "1h"}),
    Effect("canary.slow", "1%", "40%", Tried(pairs=100), {"canary.latency": "1s", "canary.errors": "50%"}),
    Effect("canary.metric.header", "X-Score", "X-Other", Tried(), {"canary.metric.below": 0.5}),
    Effect("canary.metric.below", 0.5, 0.4, Tried(), SCORED),
    Effect("canary.metric.above", 0.5, 0.4, Tried(), SCORED),
    Effect("canary.metric.margin", "5%", "40%", Tried(pairs=100), {**SCORED, **LAX, "canary.metric.below": 0.5}),
    Effect("canary.confidence", "95%", "99%", Tried(pairs=16, worse=10), {"canary.within": "1h"}),
    Effect("canary.within", "1m", "1h", Tried()),
    Effect("canary.shadow", None, True, Tried(), {"idempotent": True}),
    Effect("access.teams", ["a"], ["a", "b"], routed),
    Effect("access.requests_per_minute", 10, 20, routed, {"access.teams": ["a"]}),
    Effect("access.tokens_per_minute", None, 20, routed, {"access.teams": ["a"]}),
    Effect("access.origins", None, ["https://app.example.com"], routed, {"access.teams": ["a"]}),
    Effect("capacity.base", 0, 2, tiered, {"replicas": 3, "capacity.overflow": "spot"}),
    Effect("capacity.overflow", None, "spot", tiered, {"replicas": 3}),
    Effect("timeout", "30s", "60s", routed),
    Effect("ready_within", "30s", "90s", Asked(changes=True, broken=True)),
    Effect("max_concurrency", None, 4, routed),
    Effect("max_queue", 10, 20, routed),
    Effect("idempotent", False, True, routed),
    Effect("routing", None, "prefix", routed),
]

# Steps that are runs of their own -------------------------------------------------------------------------------------


def as_step(seen: Callable[[Any], object]) -> Callable[[Pipeline], object]:
    """What comes of the run or the sweep that a step is."""
    return lambda pipeline: seen(child_spec(pipeline, pipeline.steps["step"], {}))


def of_step(each: Effect, kind: str, whole: Mapping[str, Any]) -> Effect:
    """The same effect of a key of a step."""

    def placed(said: Mapping[str, Any]) -> dict[str, Any]:
        return {f"steps.*.{kind}.{key}": value for key, value in said.items()}

    return replace(
        each,
        key=f"steps.*.{kind}.{each.key}",
        seen=as_step(each.seen),
        beside={"steps.*.run": None, **placed({**whole, **each.beside})},
        along=placed(each.along),
    )


SWEEP = {
    "parameters": {"x": "0.0..1.0", "y": "1..8"},
    "objective.metric": "loss",
    "trials": 12,
    "parallel": 3,
    "trial.run": "python train.py",
}


def short_for(effect: Effect) -> Effect:
    """Return the example of a key of a step's run for the same key of its command."""

    def of_command(keys: Mapping[str, Any]) -> dict[str, Any]:
        return {path.replace(".training.", "."): value for path, value in keys.items()}

    (key,) = of_command({effect.key: None})
    # Without any resources beside it, the step would be a command.
    own = {} if key.endswith((".cpu", ".colocate")) else {"steps.*.resources.cpu": 1}
    return replace(effect, key=key, beside={**own, **of_command(effect.beside)}, along=of_command(effect.along))


OF_THE_PIPELINE = ("name", "team")
EFFECTS["Pipeline"] += [
    of_step(each, "training", {"run": TRAINING["run"]})
    for each in EFFECTS["Training"]
    if each.key not in (*OF_THE_PIPELINE, COLOCATE)
]
EFFECTS["Pipeline"] += [
    of_step(each, "sweep", SWEEP)
    for each in EFFECTS["Sweep"]
    if each.key not in (*OF_THE_PIPELINE, f"trial.{COLOCATE}")
]
# The runs of a step are named by it.
ALLOWED = Effect(COLOCATE, None, True, sharing("step"), {"resources.gpu": 1})
OF_TRIAL = replace(ALLOWED, key=f"trial.{COLOCATE}", seen=as_trial(ALLOWED.seen), beside={"trial.resources.gpu": 1})
EFFECTS["Pipeline"] += [of_step(ALLOWED, "training", {"run": TRAINING["run"]}), of_step(OF_TRIAL, "sweep", SWEEP)]
# A command with resources is short for a run.
EFFECTS["Pipeline"] += [
    short_for(of_step(each, "training", {"run": TRAINING["run"]}))
    for each in (*EFFECTS["Training"], ALLOWED)
    if each.key.startswith("resources.") and (each.key != COLOCATE or each is ALLOWED)
]

# Fleets ---------------------------------------------------------------------------------------------------------------


def rented_for(fleet: Fleet) -> object:
    """What becomes of a run with GPUs and of one without, which have waited for an hour for one's own full node."""
    full = node("n", gpus=8)
    held = HeldNode(node="n", until=NOW + 36_000.0, gpus=8.0, cpus=4.0)
    seen = {name: ClusterSeen() for name in fleet.clusters}
    copy = Copy(uid="u", phase=Phase.PENDING, message="waits")
    seen["own"] = ClusterSeen(room=Room(nodes=(full,), held=(held,)), copies={"a": copy, "b": copy})
    runs = tuple(
        FleetRun(
            uid=uid, number=number, spec=training(uid, resources=resources, expected_duration_s=3600.0),
            submitted_at=NOW - 3600.0, stage=FleetStage.PLACED, cluster="own", reason="waits",
        )
        for number, (uid, resources) in enumerate([("a", Resources(gpu=gpus(2))), ("b", Resources(cpu_milli=2000))])
    )  # fmt: skip
    return decide_fleet(FleetSnapshot(runs=runs, seen=seen), fleet, NOW)


def opened(fleet: Fleet) -> object:
    """The cluster that is opened for a member."""
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": "own"}} for name in ("a", "b")]
    config = {
        "apiVersion": "v1", "kind": "Config", "contexts": contexts, "users": [{"name": "u", "user": {"token": "t"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        (Path(directory) / "config").write_text(json.dumps(config))
        patched.setenv("KUBECONFIG", f"{directory}/config")
        client = open_member(fleet.clusters["step"])
        assert isinstance(client, UserClient)
        client.close()
        return client.client.access.context, client.namespace


def journal_of(fleet: Fleet) -> object:
    """The place of a fleet's journal."""
    with tempfile.TemporaryDirectory() as directory:
        journal = FleetJournal.create(Home.open(Path(directory)), fleet)
        journal.close()
        return journal.directory.name


GPUS_RENTED: Mapping[str, Any] = {"clusters.own": {}, "clusters.*.gpu_price": 2}
CORES_RENTED: Mapping[str, Any] = {"clusters.own": {}, "clusters.*.cpu_price": 1}
EFFECTS["Fleet"] = [
    Effect("name", "f", "g", journal_of),
    Effect("clusters.*.context", "a", "b", opened),
    Effect("clusters.*.namespace", None, "other", opened),
    Effect("clusters.*.gpu_price", 1, 2, rented_for, GPUS_RENTED),
    Effect("clusters.*.cpu_price", 1, 2, rented_for, CORES_RENTED),
    Effect("clusters.*.max_gpus", None, 1, rented_for, GPUS_RENTED),
    Effect("clusters.*.max_cpus", None, 1, rented_for, CORES_RENTED),
    Effect("wait", "1m", "30d", rented_for, GPUS_RENTED),
]

# Federations ----------------------------------------------------------------------------------------------------------


def as_server(seen: Callable[[Training], object]) -> Callable[[Federation], object]:
    """What comes of the run of a federation's server."""
    return lambda federation: seen(federation.described_server())


def as_site(seen: Callable[[Training], object]) -> Callable[[Federation], object]:
    """What comes of the run of a site's client."""
    return lambda federation: seen(federation.described_site("step"))


def federated(federation: Federation, hour: int = 12) -> object:
    """What is submitted of a federation, and what follows once all of it runs."""
    parent = Workload(
        uid=UID, spec=federation, intent=Intent.RUN, status=status(Phase.PENDING, since=0.0), version=1, created_at=0.0
    )
    first = judge_federation(parent, Family(children={}), hour * 3600.0)
    assert first is not None
    assert first.status is not None
    children: dict[str, AnyWorkload] = {
        order.name: Workload(
            uid=order.name, spec=order.spec, intent=Intent.RUN, status=status(Phase.RUNNING, since=0.0), version=1,
            created_at=0.0,
        )
        for order in first.submit
    }  # fmt: skip
    after = judge_federation(replace(parent, status=first.status), Family(children=children), hour * 3600.0)
    return first.submit, after


def client_elsewhere(federation: Federation) -> object:
    """Where the client of a site in another cluster runs, and as what."""
    site = federation.sites["step"]
    parent = Workload(
        uid=UID, spec=federation, intent=Intent.RUN, status=status(Phase.RUNNING, since=0.0), version=1, created_at=0.0
    )
    return site.context, site.namespace, client_run(parent, "step", ("localhost:9000", "a certificate"))


# Datasets -------------------------------------------------------------------------------------------------------------


def what_teams_read(dataset: Dataset) -> object:
    """What two teams get under its name, in its newest version."""
    source = DataSource(origin="d")
    visible = {team: [dataset] if team in (dataset.team, *dataset.share) else [] for team in ("default", "vision")}
    return [locate("", source, team, Path("/absent"), visible.__getitem__) for team in visible]


def preloaded(dataset: Dataset) -> object:
    """The bytes that are in the cache once it is applied."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "files").mkdir()
        Path(directory, "files", "a.bin").write_bytes(b"a" * 100)
        stored = replace(dataset, origin=f"{directory}/files")
        return preload(stored, Path(directory, "data"), Path(directory)) if stored.preload else 0


def dollars(dataset: Dataset) -> object:
    """What leaves its store costs, of a run that reads it and has it nowhere yet."""
    with tempfile.TemporaryDirectory() as directory:
        manifest = DataManifest([Entry("a.bin", 10**9, "1")])
        save(manifest, Path(directory, "manifests", f"{manifest.version}.json"))
        source = replace(dataset.source(), version=manifest.version)
        (forecast,) = forecast_data({"train": source}, Path(directory), Path(directory), [dataset], measures=False)
        return str(forecast)


EFFECTS["Dataset"] = [
    Effect("name", "d", "e", what_teams_read),
    Effect("from", "s3://bucket/a", "s3://bucket/b", what_teams_read),
    Effect("team", None, "vision", what_teams_read),
    Effect("versions.*.from", "s3://bucket/b", "s3://bucket/c", what_teams_read),
    Effect("versions.*.version", None, "0123456789abcdef", what_teams_read),
    Effect("include", None, "*.tar", what_teams_read),
    Effect("credentials", None, "bucket-reader", what_teams_read),
    Effect("profile", None, "research", what_teams_read),
    Effect("egress_price", None, 0.09, dollars),
    Effect("share", None, ["vision"], what_teams_read),
    Effect("preload", None, True, preloaded),
]


def planned_rounds(federation: Federation) -> object:
    """What simulated rounds tell, and what follows from what is chosen by them."""
    chosen, notes = resolved_rounds(federation)
    return notes, federated(chosen)


def federation_price(federation: Federation) -> object:
    """What all runs of it cost in an hour."""
    return hourly_microusd(federation, lambda _: None)


EXPECTED = {f"sites.{name}.expect.train": seconds for name, seconds in (("step", "10s"), ("b", "20s"), ("c", "300s"))}
PLANNED = {**EXPECTED, "sample": "auto", "deadline": "auto", "min_sites": 1}
AT_A_CLUSTER = {"sites.*.context": "a", "sites.*.image": "a:1", "address": "localhost:9000"}
THREE_SITES = {f"sites.{name}.data": f"/{name}" for name in ("second", "third")}
PRIVACY = {"privacy.epsilon": 8, "privacy.delta": 1e-5, "privacy.clip": 1}
OF_ITS_RUNS = ("resources", "retry", "env", "secrets", "labels", "workdir", "team")
EFFECTS["Federation"] = [
    *(
        replace(effect, seen=as_server(effect.seen))
        for effect in EFFECTS["Training"]
        if effect.key.partition(".")[0] in OF_ITS_RUNS and effect.key != COLOCATE
    ),
    *(
        replace(
            effect,
            key=f"sites.*.{effect.key}",
            seen=as_site(effect.seen),
            beside={
                f"sites.*.{key}" if key.startswith("resources.") else key: value for key, value in effect.beside.items()
            },
        )
        for effect in EFFECTS["Training"]
        if effect.key.startswith("resources.") and effect.key != COLOCATE
    ),
    Effect("resources.colocate", None, True, federated, {"resources.gpu": 1}),
    Effect("sites.*.resources.colocate", None, True, federated, {"sites.*.resources.gpu": 1}),
    Effect("name", "f", "g", federated),
    Effect("app", "app", "other", federated),
    Effect("server", "python a.py", "python b.py", federated, {"app": None, "client": "python c.py"}),
    Effect("client", "python a.py", "python b.py", federated, {"app": None, "server": "python c.py"}),
    Effect("rounds", None, 5, federated),
    Effect("min_sites", None, 1, federated, {"sites.other.data": "/other"}),
    Effect("deadline", None, "1m", federated),
    Effect("sample", None, 1, federated, {"sites.other.data": "/other"}),
    Effect("aggregate.strategy", "fedavg", "fedmedian", federated),
    Effect("aggregate.mu", 0.1, 0.2, federated, {"aggregate.strategy": "fedprox"}),
    Effect("aggregate.learning_rate", None, 0.1, federated, {"aggregate.strategy": "fedadam"}),
    Effect("aggregate.momentum", None, 0.5, federated, {"aggregate.strategy": "fedadam"}),
    Effect("aggregate.beta_2", None, 0.5, federated, {"aggregate.strategy": "fedadam"}),
    Effect("aggregate.tau", None, 0.1, federated, {"aggregate.strategy": "fedadam"}),
    Effect("aggregate.trim", None, 0.1, federated, {"aggregate.strategy": "fedtrimmedavg"}),
    Effect("aggregate.malicious", None, 0, federated, {"aggregate.strategy": "krum", **THREE_SITES}),
    Effect("aggregate.selected", None, 2, federated, {"aggregate.strategy": "multikrum", **THREE_SITES}),
    Effect("privacy.epsilon", 8, 4, federated, PRIVACY),
    Effect("privacy.delta", 1e-5, 1e-6, federated, PRIVACY),
    Effect("privacy.clip", 1, 2, federated, PRIVACY),
    Effect("privacy.noise", None, 20, federated, PRIVACY),
    Effect("sample", "auto", 1, planned_rounds, EXPECTED),
    Effect("deadline", "auto", "1m", planned_rounds, EXPECTED),
    Effect("model_size", None, "100Mi", planned_rounds, {**PLANNED, "sites.*.expect.link": "1Mi"}),
    Effect("sites.*.expect.train", "10s", "200s", planned_rounds, PLANNED),
    Effect("sites.*.expect.spread", None, 1, planned_rounds, PLANNED),
    Effect("sites.*.expect.link", None, "1Mi", planned_rounds, {**PLANNED, "model_size": "100Mi"}),
    Effect("sites.*.expect.available", None, "50%", planned_rounds, PLANNED),
    Effect("sites.*.expect.examples", None, 1000, planned_rounds, PLANNED),
    Effect("sites.*.expect.price", None, 2, federation_price, EXPECTED),
    Effect("sites.*.data", "/a", "/b", federated),
    Effect("sites.*.context", "a", "b", client_elsewhere, AT_A_CLUSTER),
    Effect("sites.*.namespace", None, "vision", client_elsewhere, AT_A_CLUSTER),
    Effect("sites.*.home", "/a", "/b", client_elsewhere),
    Effect("sites.*.image", "a:1", "b:1", client_elsewhere, AT_A_CLUSTER),
    Effect("sites.*.kubernetes", None, {"spec": {"nodeSelector": {"disk": "fast"}}}, client_elsewhere, AT_A_CLUSTER),
    Effect("address", "localhost:9000", "localhost:9001", federated, {"sites.*.home": "/a"}),
    Effect("sites.*.window", None, "22:00-06:00", federated),
]

BASES: dict[str, Mapping[str, Any]] = {
    "Training": TRAINING,
    "Workspace": {"name": "t"},
    "Pipeline": {"name": "t", "steps.*.run": "echo hi"},
    "Sweep": {"name": "t", **SWEEP},
    "Serving": {"name": "t", "run": "python serve.py"},
    "Team": {"name": "a"},
    "Pool": POOL,
    "Simulation": {"name": "s"},
    "Fleet": {"name": "f", "clusters.*.context": "a"},
    "Federation": {"name": "f", "app": "app", "sites.*.data": "/data"},
    "Dataset": {"name": "d", "from": "s3://bucket/a"},
}
"""Keys without which no document of the kind is whole, or says anything."""
