"""Pods by run and by node, and what has changed since a reader last looked."""

from dataclasses import replace

from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.informers.pod_index import Marks, PodIndex

POD = PodObject(
    key="t/a-0-0", version=1, uid="u", phase="Running", node="n", requests=ResourceAmounts(), created_at=0.0,
    run_uid="r", run_key=("Training", "t/a"),
)  # fmt: skip
RUN = "r", POD.run_key


def test_a_pod_is_found_by_its_run_and_by_its_node() -> None:
    index = PodIndex()
    index.follow(POD.key, POD)
    assert (dict(index.of_run(*RUN)), dict(index.on_node("n"))) == ({POD.key: POD}, {POD.key: POD})
    assert not index.of_run("other", POD.run_key)
    assert not index.on_node("other")


def test_a_uid_alone_does_not_make_a_pod_that_of_a_run() -> None:
    index, foreign = PodIndex(), replace(POD, key="evil/a-0-0", run_key=("Training", "evil/a"))
    index.follow(POD.key, POD)
    index.follow(foreign.key, foreign)
    assert dict(index.of_run(*RUN)) == {POD.key: POD}
    assert index.keys_of("r") == (POD.run_key, foreign.run_key)
    index.follow(foreign.key, None)
    assert index.keys_of("r") == (POD.run_key,)


def test_a_pod_that_is_over_counts_on_no_node() -> None:
    index, over = PodIndex(), replace(POD, phase="Succeeded")
    index.follow(POD.key, POD)
    index.follow(POD.key, over)
    assert (dict(index.of_run(*RUN)), dict(index.on_node("n"))) == ({POD.key: over}, {})


def test_a_pod_that_is_bound_later_is_on_its_node_then() -> None:
    index, waiting = PodIndex(), replace(POD, node="")
    index.follow(POD.key, waiting)
    assert not index.on_node("n")
    assert index.get(POD.key) is waiting
    index.follow(POD.key, POD)
    assert dict(index.on_node("n")) == {POD.key: POD}


def test_a_pod_that_is_gone_is_nowhere() -> None:
    index = PodIndex()
    index.follow(POD.key, POD)
    index.follow(POD.key, None)
    assert index.get(POD.key) is None
    assert not index.of_run(*RUN)
    assert not index.on_node("n")


def test_a_mark_is_taken_once() -> None:
    marks = Marks()
    marks.add(runs=["r"], nodes=["n"])
    marks.add(runs=["r", "s"])
    assert marks.take() == ({"r", "s"}, {"n"})
    assert marks.take() == (set(), set())
