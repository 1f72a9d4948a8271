"""A real API server takes our kinds, and refuses what `fairlead validate` refuses, with the same sentences."""

import json
import random
import urllib.error
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.spec_objects import read_object, write_object
from fairlead.cluster.kubernetes.manifests.statuses import training_status
from fairlead.cluster.preflight import NO_POPULATION
from fairlead.policy.kinds.spec_updates import CHANGEABLE
from fairlead.specs.formats.reading import parse
from fairlead.state.snapshot import Phase, Progress
from tests.kubernetes.builders import a_training, a_workload
from tests.kubernetes.judges import Verdict, our_verdict, predicate, server_verdict
from tests.kubernetes.objects import RIGHT, mutated, whole
from tests.kubernetes.testcluster.control_plane import ControlPlane

NUM_INVALID = 300
POPULATION = {
    "parameters": {"lr": "0.1..1.0"}, "objective": {"metric": "loss"}, "trials": 8, "parallel": 4,
    "prune": {"rule": "pbt", "after": 5},
    "trial": {"run": "train", "checkpoint": {"to": "s3://b/c", "every": "5 steps"}},
}  # fmt: skip
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TRAININGS = "/apis/fairlead.dev/v1alpha1/namespaces/{}/trainings"


def test_the_definitions_are_accepted_without_a_complaint(plane: ControlPlane) -> None:
    for each in definitions():
        stored = plane.request("GET", f"{DEFINITIONS}/{each['metadata']['name']}")
        conditions = {found["type"]: found["status"] for found in stored["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert conditions["NamesAccepted"] == "True"
        assert "NonStructuralSchema" not in conditions


def test_right_objects_are_right_for_both_judges(plane: ControlPlane) -> None:
    for kind, spec in RIGHT.items():
        content = whole(kind, spec, "right")
        assert server_verdict(plane.request, content) == our_verdict(content) == Verdict(accepted=True)


@pytest.mark.slow
def test_three_hundred_invalid_objects_are_refused_by_both_judges_or_by_none(plane: ControlPlane) -> None:
    disagreements, unlike, num, num_invalid, num_by_rules = [], [], 0, 0, 0
    while num_invalid < NUM_INVALID:
        content = mutated(random.Random(num), num)
        ours, server = our_verdict(content), server_verdict(plane.request, content)
        num, num_invalid = num + 1, num_invalid + (not ours.accepted)
        if ours.accepted != server.accepted:
            disagreements.append((content, ours.sentences, server.sentences))
        elif not ours.accepted and server.by_rules:
            num_by_rules += 1
            if not {predicate(each) for each in ours.sentences} & {predicate(each) for each in server.sentences}:
                unlike.append((ours.sentences, server.sentences))
    assert disagreements == []
    assert unlike == []
    assert num_by_rules > NUM_INVALID // 4


def test_a_population_is_refused_as_a_whole_with_its_reason(plane: ControlPlane) -> None:
    content = whole("Sweep", POPULATION, "population")
    content["metadata"]["namespace"] = "default"
    assert our_verdict(content).accepted  # on this machine it is right
    assert server_verdict(plane.request, content).sentences == (NO_POPULATION,)
    asha = json.loads(json.dumps(content).replace("pbt", "asha"))
    assert server_verdict(plane.request, asha).accepted


@pytest.mark.parametrize(
    ("gpu", "sharing"),
    [
        ("0.5", ["mig"]),
        ("A100:0.5", ["mig", "mps"]),
        ("24GB", ["mig"]),
        ("A100:24GB:0.5", ["time-slicing"]),
        (2, ["mig"]),
        ("A100", ["mig"]),
        ("A100:8", ["mps"]),
        ("24GB:2", ["mig"]),
        (2, []),
        ("0.5", ["whole"]),
        ("0.5", ["mig", "mig"]),
    ],
)
def test_both_judges_agree_on_which_gpus_may_be_shared(plane: ControlPlane, gpu: object, sharing: list[str]) -> None:
    spec = {"run": "work", "resources": {"gpu": gpu, "sharing": sharing}}
    content = whole("Training", spec, "shared")
    ours, server = our_verdict(content), server_verdict(plane.request, content)
    assert ours.accepted == server.accepted
    if not ours.accepted and server.by_rules:
        assert {predicate(each) for each in ours.sentences} & {predicate(each) for each in server.sentences}


@pytest.mark.parametrize(
    "nodes",
    [4, 0, 10_001, -1, 2.5, None, True, "2..8", "8..2", "4..4", "0..3", "02..08", "1..20000", "20000..1", "2...8",
     "2..", "..8", "2 .. 8", "2..8..9", "-1..2", "1..9999999999", "2-8", "4", "two", ""],
)  # fmt: skip
def test_numbers_of_nodes_are_judged_alike(plane: ControlPlane, nodes: object) -> None:
    content = whole("Training", RIGHT["Training"] | {"nodes": nodes}, "gang")
    ours, server = our_verdict(content), server_verdict(plane.request, content)
    assert ours.accepted == server.accepted
    is_told = not server.accepted and server.by_rules
    assert not is_told or {*map(predicate, ours.sentences)} & {*map(predicate, server.sentences)}


@pytest.mark.parametrize("phase", [None, *Phase])
def test_a_run_changes_in_the_phases_in_which_no_pod_is_of_its_spec(
    plane: ControlPlane, namespace: str, phase: Phase | None
) -> None:
    path = TRAININGS.format(namespace)
    plane.request("POST", path, write_object(a_training(team=namespace, name="fixed")))
    if phase is not None:
        plane.request("PATCH", f"{path}/fixed/status", {"status": {"phase": phase}}, kind="merge-patch+json")
    edit = {"spec": {"nodes": 3, "resources": {"memory": "700Mi"}}}
    if phase is None or phase in CHANGEABLE:
        assert plane.request("PATCH", f"{path}/fixed", edit, kind="merge-patch+json")["spec"]["nodes"] == 3
        return
    with pytest.raises(urllib.error.HTTPError) as refused:
        plane.request("PATCH", f"{path}/fixed", edit, kind="merge-patch+json")
    told = json.load(refused.value)["message"]
    wanted = "it has succeeded" if phase is Phase.SUCCEEDED else f"it is {phase} with the spec that it was started with"
    assert wanted in told
    assert ("annotate training fixed fairlead.dev/intent=suspend" in told) == (phase is not Phase.SUCCEEDED)
    label = {"metadata": {"labels": {"a": "b"}}}
    assert plane.request("PATCH", f"{path}/fixed", label, kind="merge-patch+json")["metadata"]["labels"] == {"a": "b"}


def test_the_place_of_checkpoints_stays_once_there_are_some(plane: ControlPlane, namespace: str) -> None:
    path = TRAININGS.format(namespace)
    plane.request("POST", path, write_object(a_training(team=namespace, name="saver")))

    def move(place: str | None) -> None:
        moved = {"spec": {"checkpoint": {"to": place}}}
        plane.request("PATCH", f"{path}/saver", moved, kind="merge-patch+json")

    move("s3://here/now")
    saved = {"status": {"phase": "Failed", "checkpointStep": 7}}
    plane.request("PATCH", f"{path}/saver/status", saved, kind="merge-patch+json")
    for place in ("s3://there/now", None):
        with pytest.raises(urllib.error.HTTPError) as refused:
            move(place)
        told = json.load(refused.value)["message"]
        assert "spec.checkpoint.to: Invalid value: " in told
        assert "it cannot change: its checkpoints are there" in told


def test_a_stored_object_reads_as_what_was_submitted(plane: ControlPlane, namespace: str) -> None:
    content = whole("Training", RIGHT["Training"], "stored")
    content["metadata"]["namespace"] = namespace
    stored = plane.request("POST", TRAININGS.format(namespace), content)
    assert (read_object(stored),) == parse(json.dumps(content))


def test_a_status_is_taken_whole_and_shows_in_the_columns(plane: ControlPlane, namespace: str) -> None:
    spec = a_training(team=namespace, name="shown", nodes=2)
    path = TRAININGS.format(namespace)
    generation = plane.request("POST", path, write_object(spec))["metadata"]["generation"]
    workload = a_workload(spec, progress=Progress(step=50, total_steps=200, loss=0.5, checkpoint_step=40))
    status: dict[str, Any] = training_status(workload, (), generation=generation)
    answer = plane.request(
        "PATCH", f"{path}/shown/status?fieldValidation=Strict", {"status": status}, kind="merge-patch+json"
    )
    assert answer["status"] == status
    assert answer["status"]["progress"] == "50/200 (25%)"
    assert answer["status"]["ranks"] == "0/2"
