"""A pipeline of twelve steps in the containers of two real nodes, under kill -9 of all that carries it out.

Operators, API server, etcd, kubelets, containerds, whole nodes, the driver's pod, and the programs of driver and steps
are killed at random instants. What kwok cannot show: a driver that really decides, and programs that count themselves.
FAIRLEAD_CHAOS_ROUNDS=20 runs so many rounds.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from fairlead.policy.kinds.slow_starts import LIMIT_S
from fairlead.specs.overlay import RANKS
from tests.kubernetes.chaos.reckoning import items, owner_of
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_real_nodes import new_namespace
from tests.kubernetes.testcluster import images, leftovers, volumes
from tests.kubernetes.testcluster.processes import Server
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.rounds import rounds
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

NAMESPACE = "storms"
RUNS = tuple(f"r{number}" for number in range(8))
TRIALS = 2
FAULTS = (
    *("kill_operator",) * 3, *("kill_program",) * 3, *("kill_driver",) * 2, "delete_driver", "delete_pod",
    *("kill_apiserver", "kill_etcd", "kill_kubelet") * 2, "kill_containerd", "kill_node",
)  # fmt: skip
PATIENCE_S = LIMIT_S + 480.0  # a pod may be silent for as long as it may, and a busy machine takes its time
FOLLOWERS = ("scheduler", "controller-manager")


def program(name: str, made: str = "") -> str:
    """Write a program that says when it begins and ends, and waits in between."""
    return (
        f'echo "begin {name} $FAIRLEAD_RUN $FAIRLEAD_ATTEMPT" >> /team/$LOG; sleep 1; {made}\n'
        f'echo "end {name} $FAIRLEAD_RUN $FAIRLEAD_ATTEMPT" >> /team/$LOG'
    )


def needs_of(name: str) -> tuple[str, ...]:
    number = int(name[1:])
    return ("tune",) if number < 4 else (f"r{number - 4}", f"r{(number - 3) % 4}")


def returns(name: str) -> str:
    """The values of a run: its name with what its needs returned, by which all that was handed on can be told."""
    return f"{name}({''.join(returns(need) for need in needs_of(name) if need != 'tune')})"


def pipeline(name: str, log: str) -> dict[str, Any]:
    """Twelve steps: two commands at the ends and one between, a search of two trials, and two rows of four runs."""
    claim = {"name": "team", "persistentVolumeClaim": {"claimName": "team"}}
    mounted = {"name": RANKS, "volumeMounts": [{"name": "team", "mountPath": "/team"}]}
    small = {
        "resources": {"cpu": 0.1, "memory": "64Mi"},
        "retry": {"program": 0, "infrastructure": 1000, "backoff": "0.1s", "max_backoff": "0.5s"},
    }
    steps: dict[str, Any] = {
        "first": {"run": program("first", "echo 1 > $FAIRLEAD_OUTPUT_X"), "outputs": ["x"], "code": ["given"]},
        "tune": {
            "needs": ["first"],
            "outputs": ["parameters", "value"],
            "code": ["given"],
            "sweep": {
                "parameters": {"x": " | ".join(str(each) for each in range(1, TRIALS + 1))},
                "sampler": "grid",
                "objective": "loss",
                "trial": {"run": program("trial-{{x}}", "echo loss={{x}}"), "metrics": "name=value", **small},
            },
        },
    }
    for each in RUNS:
        needs = needs_of(each)
        said = "".join(f"$(cat $FAIRLEAD_INPUT_{need.upper()}_X)" for need in needs if need != "tune")
        steps[each] = {
            "needs": list(needs),
            "outputs": ["x"],
            "code": ["given"],
            "training": {"run": program(each, f'echo "{each}({said})" > $FAIRLEAD_OUTPUT_X'), **small},
        }
    rows = " ".join(f"$FAIRLEAD_INPUT_{each.upper()}_X" for each in RUNS[4:])
    join = program("join", f"cat {rows} > $FAIRLEAD_OUTPUT_X")
    steps["join"] = {"needs": list(RUNS[4:]), "run": join, "outputs": ["x"], "code": ["given"]}
    last = program("last", f"cp $FAIRLEAD_INPUT_JOIN_X /team/{name}.result")
    steps["last"] = {"needs": ["join"], "run": last, "code": ["given"]}
    return {
        "kind": "Pipeline",
        "name": name,
        "image": images.PYTHON,
        "workdir": ".",
        "env": {"LOG": log},
        "grace": "2s",
        "checkpoint": "/team/runs",
        "resources": {"cpu": 0.2, "memory": "128Mi"},
        "kubernetes": {"spec": {"volumes": [claim], "containers": [mounted]}},
        "steps": steps,
    }


class World:
    """A cluster of real nodes with two operators, and somebody at a desk; one round after the other uses it."""

    def __init__(self, cluster: RealCluster, desk: Desk) -> None:
        self.cluster, self.desk = cluster, desk
        self.client = Client(load_access((cluster.kubeconfig(),)))
        self.volume = cluster.home / "volumes" / NAMESPACE / "team"
        argv = [sys.executable, "-m", "tests.kubernetes.chaos.replica", str(desk.operator_config), NAMESPACE]
        self.operators = [Server(f"operator-{i}", argv, cluster.home / f"operator-{i}.log") for i in range(2)]

    def keep(self) -> None:
        """Start the operators that ended, as kubelet does."""
        for operator in self.operators:
            if operator.pid is None:
                operator.start()

    def processes(self) -> dict[int, str]:
        """The processes of containers, with the name of the run that each is of."""
        found = {}
        for cgroup in leftovers.cgroups(self.cluster.home.name):
            with contextlib.suppress(OSError):
                for pid in (cgroup / "cgroup.procs").read_text().split():
                    with contextlib.suppress(OSError):
                        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                        names = [each[13:].decode() for each in environ if each.startswith(b"FAIRLEAD_RUN=")]
                        found.update({int(pid): name for name in names})
        return found


@dataclass(slots=True)
class Round:
    """A round in progress, in the namespace of all rounds: one that failed may still be there.

    Attributes:
        hit: How often something of each run was killed, by its name.
        told: What was done, for the message of a failure.
    """

    seed: int
    world: World
    rng: random.Random
    hit: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"p{self.seed}"

    @property
    def log(self) -> Path:
        return self.world.volume / f"{self.name}.log"

    def submit(self) -> None:
        (self.world.desk.directory / "given").write_text(self.name)
        file = self.world.desk.directory / f"{self.name}.yaml"
        file.write_text(json.dumps(pipeline(self.name, self.log.name)))
        self.world.desk("run", "-d", file.name, timeout_s=PATIENCE_S)

    def storm(self) -> None:
        """Trouble, from when the first program begins."""
        self._await(self.log.exists)
        for _ in range(self.rng.randint(10, 16)):
            time.sleep(self.rng.uniform(0.1, 4.0))
            fault = self.rng.choice(FAULTS)
            self.told.append(f"{time.monotonic() - self.began:.1f} {fault}")
            getattr(self, fault)()
        for follower in FOLLOWERS:  # they come back to an API server after up to half a minute, which nobody waits for
            self.world.cluster.restart(follower)

    def kill_operator(self) -> None:
        """kill -9 of one of the two, or of both; they come back after a while, or when all is over."""
        operators = self.world.operators
        victims = operators if self.rng.random() < 0.3 else [self.rng.choice(operators)]
        for victim in victims:
            victim.kill()
        time.sleep(self.rng.uniform(0.0, 2.0))
        for victim in victims:
            victim.start()

    def kill_apiserver(self) -> None:
        self._kill_server("apiserver")

    def kill_etcd(self) -> None:
        self._kill_server("etcd")

    def kill_kubelet(self) -> None:
        self._kill_server(f"kubelet-{self.rng.choice((1, 2))}")

    def kill_containerd(self) -> None:
        """kill -9; containers live on, and kubelet finds them again."""
        self._kill_server(f"containerd-{self.rng.choice((1, 2))}")

    def kill_node(self) -> None:
        """A node loses its power with all that runs there, and comes back at once."""
        cluster, node = self.world.cluster, self.rng.choice(self.world.cluster.nodes)
        there = [each for each in self._pods() if each["spec"].get("nodeName") == node]
        cluster.kill_node(node)
        for each in there:
            self._hit(_run_of(each))
        cluster.start_node(node)

    def kill_program(self) -> None:
        """kill -9 of any process of any pod, those of Fairlead beside the program among them."""
        self._kill_one(lambda _: True)

    def kill_driver(self) -> None:
        """kill -9 of a process of the driver's pod: the driver itself, what started it, or a command that it runs."""
        self._kill_one(lambda run: run == f"{self.name}-driver")

    def delete_driver(self) -> None:
        """As `kubectl delete --force`: the next one is made while this one may still live."""
        self._delete([each for each in self._pods() if _run_of(each) == f"{self.name}-driver"], grace_s=0)

    def delete_pod(self) -> None:
        self._delete(self._pods(), grace_s=1)

    def finished(self) -> None:
        """Wait for its end, and see what became of it."""
        path = f"{objects_path('Pipeline', NAMESPACE)}/{self.name}"

        def is_over() -> bool:
            self.world.keep()
            phase = (self.world.client.get(path).get("status") or {}).get("phase")
            assert phase != "Failed", self._story("it failed")
            return bool(phase == "Succeeded")

        self._await(is_over)
        print(
            f"round {self.seed}: {time.monotonic() - self.began:.0f} s, {self.told}, hit {dict(self.hit)}", flush=True
        )
        wrong = [*self._wrong_objects(path), *self._wrong_programs()]
        result = self.world.volume / f"{self.name}.result"
        said = result.read_text().split() if result.exists() else []
        if said != [returns(each) for each in RUNS[4:]]:
            wrong.append(f"what was handed on is {said}")
        assert not wrong, self._story("\n".join(wrong))

    def cleared(self) -> None:
        """Delete it, and wait until nothing of it is left."""
        self.world.desk("delete", "--yes", self.name, timeout_s=PATIENCE_S)
        self._await(lambda: not self._left())

    def _wrong_objects(self, path: str) -> Iterator[str]:
        parent = self.world.client.get(path)
        runs = {each["metadata"]["name"]: each for each in self._own(objects_path("Training", NAMESPACE))}
        trials = {f"{self.name}-tune-{number}" for number in range(TRIALS)}
        expected = {f"{self.name}-{each}" for each in ("driver", *RUNS)} | trials
        if runs.keys() != expected:
            yield f"its runs are {sorted(runs)}"
        (sweep,) = self._own(objects_path("Sweep", NAMESPACE))
        for name, run in runs.items():
            if run["status"]["phase"] != "Succeeded":
                yield f"{name} is {run['status']['phase']}"
            owner = sweep if name in trials else parent
            if owner_of(run) != owner["metadata"]["uid"]:
                yield f"{name} is not its own"
        shown = json.loads(self.world.desk("status", self.name, "--json", timeout_s=PATIENCE_S).out)
        steps = {step["name"]: step["phase"] for step in shown["steps"]}
        if steps != dict.fromkeys(("first", "tune", *RUNS, "join", "last"), "Succeeded"):
            yield f"its steps are {steps}"

    def _wrong_programs(self) -> Iterator[str]:
        """List what began too often or not at all: a program begins once more only where its own pod was hit."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        runs = {each: f"{self.name}-{each}" for each in RUNS}
        runs |= {f"trial-{number + 1}": f"{self.name}-tune-{number}" for number in range(TRIALS)}
        runs |= dict.fromkeys(("first", "join", "last"), f"{self.name}-driver")
        if unknown := {name for _, name, *_ in lines} - runs.keys():
            yield f"{unknown} ran"
        for name, run in runs.items():
            begun = [tuple(rest) for what, each, *rest in lines if (what, each) == ("begin", name)]
            ended = [tuple(rest) for what, each, *rest in lines if (what, each) == ("end", name)]
            if not 1 <= len(begun) <= 1 + self.hit[run]:
                yield f"{name} began {len(begun)} times, and {run} was hit {self.hit[run]} times"
            if len(set(begun)) != len(begun):
                yield f"{name} began twice in one start: {begun}"
            if not 1 <= len(ended) <= 1 + self.hit[run]:
                yield f"{name} ended {len(ended)} times, and {run} was hit {self.hit[run]} times"

    def _left(self) -> list[str]:
        place = f"namespaces/{NAMESPACE}"
        paths = [f"/api/v1/{place}/{kind}" for kind in ("pods", "services", "secrets")]
        paths.append(f"/apis/networking.k8s.io/v1/{place}/networkpolicies")
        paths += [objects_path(kind, NAMESPACE) for kind in ("Training", "Sweep", "Pipeline")]
        paths.append(f"/api/v1/{place}/configmaps")
        found = [each["metadata"]["name"] for path in paths for each in self._own(path)]
        return [*found, *filter(self._is_own, self.world.processes().values())]

    def _pods(self) -> list[Object]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        return [each for each in self._own(path) if each["status"].get("phase") in ("Pending", "Running")]

    def _own(self, path: str) -> list[Object]:
        """The objects of a collection that are of this round."""
        return [each for each in items(self.world.client, path) if self._is_own(each["metadata"]["name"])]

    def _is_own(self, name: str) -> bool:
        """Tell by its name, or that of its run, whether something is of this round."""
        return name == self.name or name.startswith((f"{self.name}-", f"{self.name}."))

    def _delete(self, pods: list[Object], *, grace_s: int) -> None:
        if not pods:
            return
        pod = self.rng.choice(sorted(pods, key=lambda each: str(each["metadata"]["name"])))
        self._hit(_run_of(pod))
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        try:
            self.world.client.request("DELETE", path, {"gracePeriodSeconds": grace_s})
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _kill_one(self, is_meant: Callable[[str], bool]) -> None:
        of = {pid: run for pid, run in self.world.processes().items() if self._is_own(run) and is_meant(run)}
        if not of:
            return
        pid = self.rng.choice(sorted(of))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._hit(of[pid])

    def _hit(self, run: str) -> None:
        self.hit[run] += 1
        self.told.append(f"hit {run}")

    def _kill_server(self, name: str) -> None:
        self.world.cluster.kill(name)
        time.sleep(self.rng.uniform(0.0, 2.0))
        self.world.cluster.restart(name)

    def _await(self, is_so: Callable[[], bool]) -> None:
        try:
            until(is_so, "end", timeout_s=PATIENCE_S, every_s=0.5)
        except AssertionError as error:
            raise AssertionError(self._story(str(error))) from error

    def _story(self, wrong: str) -> str:
        path = f"/api/v1/namespaces/{NAMESPACE}/events"
        events = "\n".join(
            f"{each['involvedObject'].get('name')} {each.get('reason')}: {each.get('message')}"
            for each in items(self.world.client, path)
            if self._is_own(each["involvedObject"].get("name", ""))
        )
        status = self.world.desk("status", self.name, code=None, timeout_s=PATIENCE_S).out
        ran = self.log.read_text() if self.log.exists() else "nothing ran"
        logs = "\n".join(f"--- {each.name}\n{each.log_tail()}" for each in self.world.operators)
        left = self._left()
        return f"round {self.seed}: {wrong}\n{self.told}\n{ran}\n{status}\n{left}\n{events}\n{logs}"


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with started(lambda: RealCluster(2), request) as made:
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        new_namespace(made, NAMESPACE)
        volumes.share(made, NAMESPACE, "team")
        directory = tmp_path_factory.mktemp("storms") / "desk"
        directory.mkdir()
        world = World(made, a_desk(made, NAMESPACE, directory))
        world.keep()
        try:
            yield world
        finally:
            for operator in world.operators:
                operator.kill()


@pytest.mark.parametrize("seed", rounds(few=1, many=1))
def test_no_kill_runs_a_program_twice_or_orphans_a_run_of_twelve_steps(seed: int, world: World) -> None:
    round_ = Round(seed=seed, world=world, rng=random.Random(f"pipeline-{seed}"))
    round_.submit()
    round_.storm()
    round_.finished()
    round_.cleared()


def _run_of(pod: Object) -> str:
    """The name of a pod's run, which is the pod's without its start and number."""
    return str(pod["metadata"]["name"]).rsplit("-", 2)[0]
