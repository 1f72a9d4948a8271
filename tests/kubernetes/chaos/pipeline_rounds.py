"""One round of pipelines of twelve runs, whose drivers are real processes beside the pods that kwok plays of them."""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fairlead.cluster.kubernetes.api.client import ApiError, Object
from fairlead.cluster.kubernetes.manifests.pipeline_driver import with_driver
from fairlead.cluster.kubernetes.names import FAMILY
from fairlead.errors import ClusterError
from fairlead.runtime.podfiles import write_json
from fairlead.runtime.reporting import pack_report
from fairlead.specs.formats.reading import parse
from fairlead.specs.overlay import RANKS
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.workload import PIPELINE_VARIABLE
from tests.kubernetes.chaos.parent_rounds import Parent, RelayRound
from tests.kubernetes.chaos.rounds import FAULTS, begin_in
from tests.kubernetes.chaos.world import World
from tests.rounds import parents_per_storm
from tests.waiting import until

STEPS = tuple(f"s{number}" for number in range(12))
DRIVER = "driver"
LOOK_S = 0.2


class PlayedDrivers:
    """Plays the containers of pipelines' drivers: a process for each pod that runs, killed when its pod is gone.

    What the operator writes into a pod's annotation comes to its process as by kubelet, and what that reports is what
    the log of the pod's reporter says. A process that ends ends its pod.
    """

    def __init__(self, world: World, namespace: str, pipelines: tuple[str, ...], home: Path) -> None:
        self._world, self._path, self._home = world, f"/api/v1/namespaces/{namespace}/pods", home
        self._prefixes = tuple(f"{name}-{DRIVER}-" for name in pipelines)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._told: dict[str, str] = {}
        self._pods: dict[str, Object] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.problem: str | None = None
        self._thread = threading.Thread(target=self._play, name="drivers", daemon=True)

    def start(self) -> None:
        self._world.logs_of_pods[self._path] = self._log
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(timeout=30.0)
        del self._world.logs_of_pods[self._path]
        for uid in list(self._processes):
            self._kill(uid)

    def kill(self) -> None:
        """kill -9 of all of them."""
        with self._lock:
            for process in self._processes.values():
                process.kill()

    def num_alive(self) -> int:
        with self._lock:
            return sum(process.poll() is None for process in self._processes.values())

    def _play(self) -> None:
        while not self._is_over.wait(LOOK_S):
            try:
                found = list(self._world.client.items(self._path))
                with self._lock:
                    self._look(found)
            except (ApiError, ClusterError):
                continue  # the API server is away, and containers live on
            except Exception:
                self.problem = traceback.format_exc()
                raise

    def _look(self, found: list[Object]) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in found if pod["metadata"]["name"].startswith(self._prefixes)}
        self._pods = {pod["metadata"]["name"]: pod for pod in pods.values()}
        for uid in self._processes.keys() - pods.keys():
            self._kill(uid)
        for uid, pod in pods.items():
            is_running = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            if uid in self._processes and not is_running:
                self._kill(uid)
            elif uid in self._processes:
                self._serve(uid, pod)
            elif is_running and uid not in self._told:
                self._begin(uid, pod)

    def _begin(self, uid: str, pod: Object) -> None:
        directory = self._home / uid
        (directory / "pod").mkdir(parents=True)
        work = self._home / "work"
        work.mkdir(exist_ok=True)
        write_json(directory / "pod" / "started.json", {"at": time.time()})
        run_uid = pod["metadata"]["ownerReferences"][0]["uid"]
        (container,) = (each for each in pod["spec"]["containers"] if each["name"] == RANKS)
        variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        env = {
            **os.environ, "FAIRLEAD_POD_DIR": str(directory / "pod"), "FAIRLEAD_RUN_DIR": str(directory / "run"),
            "WORLD_SIZE": "1", "FAIRLEAD_CHECKPOINT_TO": str(self._home / "place" / f"{DRIVER}-{run_uid}"),
            "FAIRLEAD_RUN_UID": run_uid, "FAIRLEAD_TEAM": pod["metadata"]["namespace"],
            PIPELINE_VARIABLE: variables[PIPELINE_VARIABLE], "PYTHONPATH": str(Path(__file__).parents[3]),
        }  # fmt: skip
        argv = [sys.executable, "-m", "tests.kubernetes.chaos.played_driver", str(directory / "told")]
        with (self._home / "drivers.log").open("ab") as log:
            self._processes[uid] = subprocess.Popen(argv, cwd=work, env=env, stdout=log, stderr=log)
        self._told[uid] = ""
        self._serve(uid, pod)

    def _serve(self, uid: str, pod: Object) -> None:
        annotations = pod["metadata"].get("annotations") or {}
        text = annotations.get(FAMILY, "")
        if text != self._told[uid]:
            new = self._home / uid / "told.new"
            new.write_text(text)
            new.rename(self._home / uid / "told")
            self._told[uid] = text
        code = self._processes[uid].poll()
        if code is not None and "fake/run" not in annotations:
            said = {"fake/run": "1ms", "fake/exit-code": str(code if code >= 0 else 128 - code)}
            patch = {"metadata": {"uid": uid, "annotations": said}}
            self._world.client.merge(f"{self._path}/{pod['metadata']['name']}", patch)

    def _kill(self, uid: str) -> None:
        process = self._processes.pop(uid)
        process.kill()
        process.wait(timeout=30.0)

    def _log(self, name: str) -> str | None:
        """The last line of the reporter of a pod; None of one that is no driver's."""
        with self._lock:
            pod = self._pods.get(name)
            return None if pod is None else pack_report(str(self._home / pod["metadata"]["uid"] / "pod"))


@dataclass(slots=True)
class PipelineRound(RelayRound):
    """A round of pipelines of twelve runs in three rows, each of which needs two of the row before."""

    kind: ClassVar[str] = "Pipeline"
    names: ClassVar[tuple[str, ...]] = tuple(f"twelve{number}" for number in range(parents_per_storm()))
    parts: ClassVar[tuple[str, ...]] = (DRIVER, *STEPS)
    num_deeds: ClassVar[tuple[int, int]] = (8, 14)
    settle_s: ClassVar[float] = 300.0
    faults: ClassVar[tuple[str, ...]] = (*FAULTS, *("kill_driver",) * 4)

    home: Path = field(default_factory=Path)
    drivers: PlayedDrivers = field(init=False)

    def __post_init__(self) -> None:
        self.drivers = PlayedDrivers(self.world, self.namespace, self.names, self.home)

    def storm(self) -> None:
        _share(self.world, self.namespace)
        self.drivers.start()
        super(PipelineRound, self).storm()

    def _unfinished(self, parent: Parent, phase: str | None, runs: dict[str, Object]) -> str | None:
        assert self.drivers.problem is None, self.drivers.problem
        return super(PipelineRound, self)._unfinished(parent, phase, runs)

    def clear(self) -> None:
        super(PipelineRound, self).clear()
        until(lambda: self.drivers.num_alive() == 0, "the end of the drivers' processes")

    def kill_driver(self) -> None:
        """kill -9 of the drivers, whose pods end for that."""
        self.drivers.kill()

    def submit_parent(self, name: str, fakes: dict[str, str]) -> str:
        claim = {"name": "team", "persistentVolumeClaim": {"claimName": "team"}}
        mounted = {"name": RANKS, "volumeMounts": [{"name": "team", "mountPath": "/team"}]}
        place = {"spec": {"volumes": [claim], "containers": [mounted]}}
        steps: dict[str, Any] = {}
        for number, step in enumerate(STEPS):
            row, column = divmod(number, 4)
            needs = [f"s{4 * (row - 1) + each % 4}" for each in (column, column + 1)] if row else []
            training = {
                "run": "work", "resources": {"cpu": 1, "memory": "1Gi"}, "grace": "2s",
                "retry": {"infrastructure": 1000, "program": 0, "backoff": "0.1s", "max_backoff": "0.4s"},
                "kubernetes": {"metadata": {"annotations": fakes}, **place},
            }  # fmt: skip
            steps[step] = {"needs": needs, "training": training, "code": ["none"]}
        spec = {
            "kind": "Pipeline", "name": name, "image": "none", "workdir": "/work", "checkpoint": "/team/runs",
            "grace": "2s", "kubernetes": place, "team": self.namespace, "steps": steps,
        }  # fmt: skip
        (found,) = parse(json.dumps(spec))
        assert isinstance(found, Pipeline)
        return self.world.user.submit(with_driver(found)).uid

    def _story(self, wrong: str) -> str:
        log = self.home / "drivers.log"
        said = log.read_text(errors="replace")[-4000:] if log.exists() else "no driver ran"
        return f"{super(PipelineRound, self)._story(wrong)}\n--- drivers\n{said}"


def begin_pipeline(seed: int, world: World) -> PipelineRound:
    """A round of pipelines with a namespace of its own."""
    namespace = begin_in(f"pipeline-{seed}", world)
    home = Path(tempfile.mkdtemp(prefix="drivers-", dir=world.plane.home))
    return PipelineRound(seed=seed, world=world, namespace=namespace, rng=random.Random(namespace), home=home)


def _share(world: World, namespace: str) -> None:
    """A claim of the namespace that is bound, so that pods which mount it find a node."""
    modes, size, name = ["ReadWriteMany"], {"storage": "1Gi"}, f"team-{namespace}"
    volume = {
        "metadata": {"name": name},
        "spec": {
            "nfs": {"server": "127.0.0.1", "path": "/team"},
            "accessModes": modes, "capacity": size, "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": "team"},
        },
    }  # fmt: skip
    world.client.create("/api/v1/persistentvolumes", volume)
    wanted = {"accessModes": modes, "resources": {"requests": size}, "storageClassName": "", "volumeName": name}
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    world.client.create(path, {"metadata": {"name": "team"}, "spec": wanted})
