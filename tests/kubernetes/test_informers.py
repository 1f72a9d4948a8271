"""The watches of an operator: what it takes for them to begin, and what is kept of what they tell."""

import itertools
import json
import time
from typing import Any

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.informers import informers as views
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.runtime.reporting import FORM
from fairlead.specs.keys import API_VERSION
from fairlead.specs.overlay import RANKS
from fairlead.state.snapshot import Grant, Pod, PodPhase
from tests.kubernetes.loopback import Answering, Listing, client_of, serving

MOMENT = "2026-01-01T00:00:00Z"
VERSIONS = itertools.count(1)


def refusing(listing: Listing, until: float) -> type[Answering]:
    """An API server that has not read its roles before a moment, by ``time.monotonic``."""
    right = listing.handler()

    class Handler(right):  # type: ignore[misc, valid-type]  # a class that is made at run time
        def answer(self) -> None:
            if time.monotonic() < until:
                self.refuse(403, "Forbidden")
            else:
                super().answer()

    return Handler


def test_a_server_that_refuses_because_it_has_just_started_is_waited_for() -> None:
    listing = Listing()
    with serving(refusing(listing, time.monotonic() + 0.5)) as url:
        view = Informers(client_of(url))
        view.start()
        assert all(cache.is_synced for cache in view.caches)
        view.stop()


def test_a_server_that_goes_on_to_refuse_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "REFUSED_S", 0.2)
    with serving(refusing(Listing(), time.monotonic() + 60)) as url:
        with pytest.raises(ApiError) as told:
            Informers(client_of(url)).start()
        assert told.value.status == 403


def a_pod(index: int, *, attempt: int = 0, said: dict[str, object] | None) -> dict[str, Any]:
    """A pod of a gang; it has ended with these last words, or runs when there are none."""
    owner = {"kind": "Training", "apiVersion": API_VERSION, "name": "a", "uid": "run", "controller": True}
    metadata = {
        "name": f"a-{attempt}-{index}",
        "namespace": "t",
        "uid": f"u-{attempt}-{index}",
        "labels": {names.ATTEMPT: str(attempt), names.INDEX: str(index)},
        "ownerReferences": [owner],
    }
    message = json.dumps({"form": FORM, "ranks": [], "progress": said})
    ended = {"terminated": {"exitCode": 1, "startedAt": MOMENT, "finishedAt": MOMENT, "message": message}}
    state = ended if said is not None else {"running": {"startedAt": MOMENT}}
    return {
        "metadata": {**metadata, "resourceVersion": str(next(VERSIONS)), "creationTimestamp": MOMENT},
        "spec": {"nodeName": "n0", "containers": [{"name": RANKS}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": RANKS, "state": state}]},
    }


def a_training() -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "t", "uid": "run", "creationTimestamp": MOMENT}
    content = {"apiVersion": API_VERSION, "kind": "Training", "spec": {"run": "work"}}
    return {**content, "metadata": {**metadata, "resourceVersion": str(next(VERSIONS))}}


def test_how_far_a_run_came_is_known_from_the_pods_that_end() -> None:
    view = Informers(Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous())))

    def steps_after(*pods: dict[str, Any]) -> int | None:
        for pod in pods:
            view.pods.put(pod)
        view.trainings.put(a_training())
        words = view.last_words("run")
        return None if words is None else words.step

    assert steps_after(a_pod(0, said=None), a_pod(1, said=None)) is None
    assert steps_after(a_pod(1, said={"step": 30, "loss": 2.0})) == 30
    assert steps_after(a_pod(0, said={"step": 30, "loss": 1.0})) == 30
    words = view.last_words("run")
    assert words is not None
    assert words.loss == 1.0, "of two that came as far the first counts"
    assert steps_after(a_pod(2, said={"step": 29})) == 30
    assert steps_after(a_pod(0, attempt=1, said={"step": 15})) == 15


def test_how_a_pod_ended_is_not_forgotten_for_whoever_finds_it_gone() -> None:
    view = Informers(Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous())))

    def told(message: str, *, is_guess: bool) -> str | None:
        ended = Pod(
            uid="run-0-0",
            workload_uid="run",
            attempt=0,
            index=0,
            node="n0",
            grant=Grant(),
            phase=PodPhase.LOST,
            created_at=0.0,
            message=message,
        )
        view.bury(ended, is_guess=is_guess)
        return view.over("run")["run-0-0"].message

    assert told("its pod vanished", is_guess=True) == "its pod vanished"
    assert told("a volume cannot be mounted", is_guess=False) == "a volume cannot be mounted"
    assert told("its pod vanished", is_guess=True) == "a volume cannot be mounted"
