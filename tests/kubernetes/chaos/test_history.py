"""The history notices what must never be: without this, a storm would find nothing because nobody looks."""

import base64
import json
from itertools import count
from typing import Any

import pytest

from tests.kubernetes.chaos import history
from tests.kubernetes.chaos.history import PODS, TRAININGS, History


@pytest.fixture
def told() -> "Told":
    return Told()


class Told:
    """A history of what a test says."""

    def __init__(self) -> None:
        self.history = History("http://127.0.0.1:9")
        self._revisions = count(1)
        self._put(f"{TRAININGS}ns/run", {"metadata": {"uid": "run"}, "spec": {"nodes": 2}})

    def pod(self, attempt: int, index: int, *, node: str = "", phase: str = "Pending") -> None:
        """A pod of the run is stored so."""
        owner = {"kind": "Training", "uid": "run", "controller": True}
        labels = {"fairlead.dev/attempt": str(attempt), "fairlead.dev/index": str(index)}
        name = f"run-{attempt}-{index}"
        metadata = {"name": name, "uid": name, "labels": labels, "ownerReferences": [owner]}
        self._put(f"{PODS}ns/{name}", {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}})

    def gone(self, attempt: int, index: int) -> None:
        self._say({"type": "DELETE", "kv": self._pair(f"{PODS}ns/run-{attempt}-{index}", b"")})

    def _put(self, key: str, content: dict[str, Any]) -> None:
        self._say({"kv": self._pair(key, json.dumps(content).encode())})

    def _pair(self, key: str, value: bytes) -> dict[str, str]:
        words = {"key": key.encode(), "value": value}
        return {
            "mod_revision": str(next(self._revisions)),
            **{name: base64.b64encode(word).decode() for name, word in words.items()},
        }

    def _say(self, event: dict[str, Any]) -> None:
        self.history.take({"events": [event]})


def test_two_live_pods_of_one_rank_are_noticed_however_briefly_they_live(told: Told) -> None:
    told.pod(0, 0, node="a", phase="Running")
    told.pod(1, 0)
    told.gone(0, 0)
    (wrong,) = told.history.check()
    assert "2 live pods of one rank" in wrong


def test_a_pod_that_is_over_or_gone_makes_room_for_the_next(told: Told) -> None:
    told.pod(0, 0, node="a", phase="Failed")
    told.pod(1, 0)
    told.gone(1, 0)
    told.pod(2, 0)
    assert told.history.check() == []


def test_a_gang_that_holds_places_in_part_for_long_is_noticed(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PARTIAL_MOST_S", -1.0)
    told.pod(0, 0, node="a")
    (wrong,) = told.history.check()
    assert "held places in part" in wrong


def test_a_gang_that_is_whole_or_withdrawn_holds_nothing_in_part(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    told.pod(0, 0, node="a")
    told.pod(0, 1, node="a")
    told.pod(0, 0, node="a", phase="Succeeded")
    told.pod(1, 0, node="b")
    told.gone(1, 0)
    monkeypatch.setattr(history, "PARTIAL_MOST_S", -1.0)
    assert told.history.check() == []
