"""A picture that follows changes shows what one made anew shows, whatever happened."""

import logging
import random
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.informers import snapshot_cache as picture
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.snapshot_cache import SnapshotCache
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.operator.cluster import transition_of
from fairlead.cluster.kubernetes.workloads.run_record import recorded, state_plain
from fairlead.policy.decide import decide
from fairlead.specs.team import Quota, Team
from fairlead.state.snapshot import Progress, Snapshot

NUM_NODES, NUM_RUNS, NUM_STEPS = 4, 5, 400
NOTHING: dict[str, Progress] = {}
MOMENT = "2026-01-01T00:00:00Z"


class World:
    """A view whose caches are fed by hand, with objects that change at random."""

    def __init__(self, seed: int) -> None:
        access = ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous())
        self.view = Informers(Client(access))
        self._rng = random.Random(seed)
        self._version = 0
        self._pods: dict[str, dict[str, Any]] = {}

    def step(self) -> None:
        self._rng.choice((self._node, self._node_goes, self._run, self._decide, self._pod, self._pod, self._pod_goes))()

    def metadata(self, name: str, **more: Any) -> dict[str, Any]:
        self._version += 1
        return {"name": name, "resourceVersion": str(self._version), "creationTimestamp": MOMENT, **more}

    def _node(self) -> None:
        amounts = {"cpu": "8", "memory": "64Gi", "pods": str(self._rng.choice((2, 110))), "nvidia.com/gpu": "4"}
        ready = {"type": "Ready", "status": self._rng.choice(("True", "True", "False"))}
        self.view.nodes.put(
            {
                "metadata": self.metadata(f"n{self._rng.randrange(NUM_NODES)}"),
                "spec": {"unschedulable": self._rng.random() < 0.2},
                "status": {"allocatable": amounts, "conditions": [ready]},
            }
        )

    def _node_goes(self) -> None:
        if self._rng.random() < 0.3:
            self.view.nodes.drop(f"n{self._rng.randrange(NUM_NODES)}", self._version)

    def _run(self) -> None:
        number = self._rng.randrange(NUM_RUNS)
        key = f"t/r{number}"
        if self.view.trainings.get(key) is not None:
            if self._rng.random() < 0.2:
                self.view.trainings.drop(key, self._version)
            return
        spec = {"run": "work", "nodes": self._rng.randint(1, 3), "resources": {"gpu": 1, "cpu": 1, "memory": "1Gi"}}
        metadata = self.metadata(f"r{number}", namespace="t", uid=f"uid-{number}-{self._version}")
        self._write(metadata, spec, {})

    def _write(self, metadata: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> None:
        content = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Training", "metadata": metadata, "spec": spec}
        self.view.trainings.put({**content, "status": status})

    def _decide(self) -> None:
        """Write what the loop decides on the picture made anew, as the adapter would."""
        for change in decide(anew(self.view), 2e9).changes:
            found = self.view.find(change.workload_uid)
            if found is None or found.workload is None or change.forget:
                continue
            effect = transition_of(self.view, found, change, 2e9)
            assert effect is not None
            state = recorded(found, effect, 2e9, event_id=self._version)
            run = found.workload.spec
            spec = {"run": "work", "nodes": run.nodes, "resources": {"gpu": 1, "cpu": 1, "memory": "1Gi"}}
            self._write(self.metadata(found.name, namespace="t", uid=found.uid), spec, {"state": state_plain(state)})

    def _pod(self) -> None:
        """A pod of a gang, or of somebody else, is created, bound, runs or ends."""
        runs = [run for run in self.view.trainings.all() if run.state.gang is not None]
        if not runs or self._rng.random() < 0.3:
            name, labels, owners = f"other-{self._rng.randrange(4)}", {}, []
            node = f"n{self._rng.randrange(NUM_NODES)}"
        else:
            run = self._rng.choice(runs)
            gang = run.state.gang
            assert gang is not None
            index = self._rng.randrange(len(gang.nodes))
            name, node = f"{run.name}-{gang.attempt}-{index}", gang.nodes[index]
            labels = {"fairlead.dev/attempt": str(gang.attempt), "fairlead.dev/index": str(index)}
            owner = {"kind": "Training", "apiVersion": "fairlead.dev/v1alpha1", "name": run.name, "uid": run.uid}
            owners = [{**owner, "controller": True}]
        phase = self._rng.choice(("Pending", "Running", "Running", "Succeeded", "Failed"))
        running = {"name": "ranks", "state": {"running": {"startedAt": MOMENT}}}
        ended = {"name": "ranks", "state": {"terminated": {"exitCode": 1, "startedAt": MOMENT, "finishedAt": MOMENT}}}
        states = {"Running": [running], "Failed": [ended]}.get(phase, [])
        requests = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
        metadata = self.metadata(name, namespace="t", uid=f"pod-{name}", labels=labels, ownerReferences=owners)
        self._pods[f"t/{name}"] = metadata
        bound = {"nodeName": node} if phase != "Pending" or self._rng.random() < 0.5 else {}
        spec = {**bound, "containers": [{"name": "ranks", "resources": {"requests": requests}}]}
        self.view.pods.put(
            {"metadata": metadata, "spec": spec, "status": {"phase": phase, "containerStatuses": states}}
        )

    def _pod_goes(self) -> None:
        if self._pods:
            key = self._rng.choice(list(self._pods))
            del self._pods[key]
            self.view.pods.drop(key, self._version)


def anew(view: Informers) -> Snapshot:
    return SnapshotCache(view, namespace=None, progress_of=NOTHING.get).look()


@pytest.mark.parametrize("seed", range(5))
def test_what_follows_changes_shows_what_is_made_anew(seed: int) -> None:
    world = World(seed)
    following = SnapshotCache(world.view, namespace=None, progress_of=NOTHING.get)
    most, rng = 0, random.Random(seed)
    for _ in range(NUM_STEPS):
        world.step()
        if rng.random() < 0.5:  # several changes may come before a look
            assert following.look() == anew(world.view)
            most = max(most, len(following.look().pods))
    assert most > NUM_RUNS, "nothing happened in this world"


def test_nothing_is_looked_at_again_when_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1)
    for _ in range(NUM_STEPS):
        world.step()
    following = SnapshotCache(world.view, namespace=None, progress_of=NOTHING.get)
    shown = following.look()
    monkeypatch.setattr(picture, "everyone", lambda *_: pytest.fail("looked at a run that did not change"))
    assert following.look() is shown


def test_teams_are_shown_by_name_and_one_that_breaks_a_rule_is_left_out_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="fairlead.cluster")  # commands in this process have it tell errors only
    world = World(1)
    teams = (Team(name="speech"), Team(name="vision", guaranteed=Quota(gpu_milli=8000), quota=Quota(gpu_milli=16_000)))
    followed: list[str] = []
    world.view.follow_teams(lambda team: followed.append(team.name))
    for team, spec in ((teams[1], {}), (Team(name="broken"), {"weight": -1}), (teams[0], {})):
        content = write_object(team)
        content["metadata"] |= world.metadata(team.name, uid=team.name)
        content["spec"] |= spec
        world.view.teams.put(content)
    assert anew(world.view).teams == teams
    assert followed == ["vision", "broken", "speech"]
    assert "Team broken is left out: " in caplog.text
