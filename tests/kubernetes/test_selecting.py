"""Labels of runs, runs chosen by label and phase, the queue and old runs removed, on a real control plane."""

import json

import pytest

from tests.kubernetes.test_faces import Desk, desk, namespace, operator, phases, plane, prepared, runs
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

__all__ = ["desk", "namespace", "operator", "plane", "prepared"]  # fixtures of the test below

pytestmark = pytest.mark.kubernetes


def listed(desk: Desk, *options: str) -> list[str]:
    return sorted(run["name"] for run in json.loads(desk("status", "--json", *options).out))


@pytest.mark.slow
def test_labels_are_on_the_object_and_its_pods_and_choose_runs(
    desk: Desk, prepared: ControlPlane, operator: None
) -> None:
    for name in ("one", "two"):
        desk("run", "-d", desk.write(name, labels={"sweep": "1"}), "--label", f"example.com/point={name}")
    desk("run", "-d", desk.write("other"))
    prefix = f"/namespaces/{desk.namespace}"
    (trainings, pods) = (f"/apis/fairlead.dev/v1alpha1{prefix}/trainings", f"/api/v1{prefix}/pods")
    until(lambda: set(phases(desk).values()) == {"Running"})
    assert prepared.request("GET", f"{trainings}/one")["metadata"]["labels"] == {
        "sweep": "1",
        "example.com/point": "one",
    }
    pod = prepared.request("GET", f"{pods}/one-0-0")["metadata"]["labels"]
    assert {"sweep": "1", "example.com/point": "one", "fairlead.dev/run": "one"}.items() <= pod.items()
    assert listed(desk, "--label", "sweep=1") == ["one", "two"]
    assert listed(desk, "--label", "sweep", "--label", "example.com/point=two", "--phase", "Running") == ["two"]
    assert listed(desk, "--label", "sweep=2") == []

    # Others put labels on objects as well: theirs choose too, and neither they nor Fairlead's own get in the way.
    body = {"metadata": {"labels": {"argocd.example/instance": "x", "app.kubernetes.io/managed-by": "Helm"}}}
    prepared.request("PATCH", f"{trainings}/other", body, kind="merge-patch+json")
    assert listed(desk, "--label", "argocd.example/instance=x") == ["other"]
    assert json.loads(desk("status", "other", "--json").out)["labels"] == {"argocd.example/instance": "x"}
    assert "with the same spec)" in desk("plan", "train.yaml").out

    assert (
        "standard input is not a terminal, so this cannot be confirmed: Stop 2 runs: two, one?"
        in desk("stop", "--label", "sweep=1", code=2).err
    )
    stopped = json.loads(desk("stop", "--label", "sweep=1", "--yes", "--json").out)
    assert sorted((run["name"], run["phase"]) for run in stopped) == [("one", "Stopped"), ("two", "Stopped")]
    assert listed(desk, "--phase", "Stopped") == ["one", "two"]
    desk("delete", "--phase", "Stopped", "--yes")
    assert [run["name"] for run in runs(desk)] == ["other"]


def test_the_queue_names_who_holds_the_room_and_old_runs_are_pruned(desk: Desk, operator: None) -> None:
    desk("run", "-d", desk.write("holds", nodes=2, resources={"gpu": 2}))
    until(lambda: set(phases(desk).values()) == {"Running"})
    desk("run", "-d", desk.write("waits", nodes=2, resources={"gpu": 2}, labels={"a": "b"}))
    (row,) = (each for each in json.loads(desk("queue", "--json").out) if each["team"] == desk.namespace)
    assert (row["name"], row["starts_at"], row["labels"]) == ("waits", None, {"a": "b"})
    assert row["unknown"] == "holds has no max_duration"
    assert "unknown: holds has no max_duration" in desk("queue").out
    desk("stop", "--all", "--yes")
    planned = json.loads(desk("prune", "--last", "0", "--dry-run", "--json").out)["runs"]
    assert [(run["bytes"], run["phase"]) for run in planned] == 2 * [(None, "Stopped")]
    desk("run", "-d", desk.write("going"))
    desk("prune", "--keep", "0s", "--yes")
    until(lambda: [*phases(desk)] == ["going"])
    assert "say what is to be kept" in desk("prune", "--yes", code=2).err
