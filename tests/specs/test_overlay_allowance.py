"""Root, capabilities and priority classes: for nobody, unless the installation lists them."""

from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.workloads.run_record import read_workload
from fairlead.specs.overlay import overlay
from fairlead.specs.overlay_allowance import NOTHING, OverlayAllowance, read_allowance, refusals
from fairlead.specs.training import Training

OVERLAYS: dict[str, dict[str, Any]] = {
    "the pod is root": {"securityContext": {"runAsUser": 0}},
    "the pod may be root": {"securityContext": {"runAsNonRoot": False}},
    "the ranks are root": {"containers": [{"name": "ranks", "securityContext": {"runAsUser": 0}}]},
    "another container is root": {"initContainers": [{"name": "a", "image": "x", "securityContext": {"runAsUser": 0}}]},
    "a capability": {"containers": [{"name": "ranks", "securityContext": {"capabilities": {"add": ["SYS_MODULE"]}}}]},
    "a priority class": {"priorityClassName": "system-node-critical"},
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_it_is_refused_with_the_option_that_allows_it_and_allowed_by_that(name: str) -> None:
    laid = overlay({"spec": OVERLAYS[name]})
    (sentence,) = refusals(laid, NOTHING)
    word = sentence.partition("--allow-overlay ")[2].rstrip("`")
    assert list(refusals(laid, read_allowance([word]))) == []


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_operator_refuses_it_too_before_the_run_has_started(name: str) -> None:
    content = write_object(Training(name="a", team="t", run="x", kubernetes=overlay({"spec": OVERLAYS[name]})))
    content["metadata"] |= {
        "uid": "u", "namespace": "t", "resourceVersion": "1", "creationTimestamp": "2026-11-29T00:00:00Z",
    }  # fmt: skip
    refused = read_workload(content, NOTHING)
    assert refused.workload is None
    assert "--allow-overlay" in refused.problem
    assert read_workload(content).workload is not None


def test_the_words_of_an_allowance_read_back() -> None:
    allowed = OverlayAllowance(root=True, capabilities=("IPC_LOCK", "SYS_PTRACE"), priority_classes=("a.b-c",))
    assert read_allowance(allowed.words()) == allowed
    assert read_allowance(()) == NOTHING


@pytest.mark.parametrize(
    "word", ["Root", "capability=", "capability=ipc_lock", 'capability=A"B', "priority-class=", "x"]
)
def test_another_word_is_refused_with_the_forms(word: str) -> None:
    with pytest.raises(ValueError, match="is none of root, capability=NAME or priority-class=NAME"):
        read_allowance([word])


def test_a_container_of_the_overlay_adds_no_capability_to_none() -> None:
    assert list(refusals(overlay({"spec": {}}), NOTHING)) == []
    bind = {"containers": [{"name": "ranks", "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}]}
    assert list(refusals(overlay({"spec": bind}), NOTHING)) == []
