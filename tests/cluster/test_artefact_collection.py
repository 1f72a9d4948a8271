"""Outputs of steps that are removed: none that a run, a version of a model or a kept result needs."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.models import delete, promote, push
from fairlead.control.pipelines import journal
from fairlead.control.pipelines.artefacts import REMOVED, Artefacts
from fairlead.control.pipelines.collection import collect
from fairlead.control.pipelines.results import Results
from fairlead.control.pipelines.step_run import COLLECTED
from fairlead.control.pipelines.submission import as_workload
from fairlead.control.pipelines.triggers import AppliedPipeline, keep
from fairlead.errors import Conflict, NotFound
from fairlead.policy.kinds.retention import KEEP_ALL, Retention
from fairlead.policy.kinds.steps import Result, Task, TaskPhase
from fairlead.specs.formats.serialization import to_json
from fairlead.specs.pipeline import Pipeline, Schedule, Step, StepTraining
from fairlead.specs.serving import Serving
from fairlead.specs.training import Checkpoint
from fairlead.state.endpoint_detail import Revision, ServingDetail
from fairlead.state.plan import Change, Plan
from tests.builders import training

DAY = 86_400.0
NOW = 100 * DAY
NOTHING = Retention(for_s=0.0)


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster.open(tmp_path / "home")


def kept(cluster: LocalCluster, text: str) -> str:
    """The hash of an output that is in the store."""
    place = cluster.home.path / "new"
    place.write_text(text)
    return Artefacts(cluster.home.artefacts).keep(place)


def returned(cluster: LocalCluster, text: str, *, days_ago: float, task: str = "train") -> str:
    """The hash of what a task returned so long ago."""
    digest = kept(cluster, text)
    results = Results(cluster.home.artefacts / "results.db")
    at = NOW - days_ago * DAY
    results.add("p", task, Result(parts={"x": text}, outputs={"y": digest}, values={}, at=at, took_s=1.0, run="r"))
    results.close()
    return digest


def there(cluster: LocalCluster) -> set[str]:
    return {path.name for path in cluster.home.artefacts.glob("??/*")}


def test_results_are_kept_by_age_and_by_number(cluster: LocalCluster) -> None:
    old, middle, new = (returned(cluster, f"{days}", days_ago=days) for days in (40, 20, 1))
    other = returned(cluster, "other", days_ago=50, task="evaluate")
    orphan = kept(cluster, "orphan")
    assert set(collect(cluster, KEEP_ALL, NOW, dry_run=True).digests) == {orphan}
    assert there(cluster) == {old, middle, new, other, orphan}
    assert set(collect(cluster, Retention(last=1), NOW, dry_run=True).digests) == {old, middle, orphan}
    found = collect(cluster, Retention(for_s=30 * DAY), NOW)
    assert (set(found.digests), found.num_results) == ({old, other, orphan}, 2)
    assert there(cluster) == {middle, new}
    results = Results(cluster.home.artefacts / "results.db")
    assert results.origins(old) == ()
    assert len(results.origins(new)) == 1
    results.close()
    assert not (cluster.home.artefacts / REMOVED).exists()


def test_what_a_kept_run_has_returned_or_names_stays(cluster: LocalCluster) -> None:
    made, begun, gone = (returned(cluster, text, days_ago=9) for text in ("made", "begun", "gone"))
    run = cluster.submit(training(name="p"))
    files = cluster.home.run(run.uid) / "files"
    files.mkdir()
    written = journal.Journal(files / journal.NAME)
    written.task(Task(step="train", phase=TaskPhase.SUCCEEDED, outputs={"y": made}), 1.0)
    written.close()
    origin = str(Artefacts(cluster.home.artefacts).path(begun))
    cluster.submit(training(name="q", checkpoint=Checkpoint(origin=origin)))
    assert collect(cluster, NOTHING, NOW).digests == (gone,)
    assert there(cluster) == {made, begun}
    assert collect(cluster, NOTHING, NOW, without=frozenset({run.uid}), dry_run=True).digests == (made,)


def test_what_a_run_that_was_cut_short_has_collected_stays(cluster: LocalCluster) -> None:
    taken, gone = (returned(cluster, text, days_ago=9) for text in ("taken", "gone"))
    place = cluster.home.run(cluster.submit(training(name="p")).uid) / "files" / "steps" / "train"
    place.mkdir(parents=True)
    (place / COLLECTED).write_text(json.dumps({"outputs": {"y": taken}, "values": {}}))
    assert collect(cluster, NOTHING, NOW).digests == (gone,)


def test_what_a_pipeline_that_runs_by_itself_names_stays(cluster: LocalCluster) -> None:
    named, gone = (returned(cluster, text, days_ago=9) for text in ("named", "gone"))
    origin = str(Artefacts(cluster.home.artefacts).path(named))
    tune = Step(training=StepTraining(name="tune", run="true", checkpoint=Checkpoint(origin=origin)))
    pipeline = as_workload(Pipeline(name="p", steps={"tune": tune}, schedule=Schedule(cron="0 3 * * *")), cluster.home)
    assert isinstance(pipeline, Pipeline)
    keep(cluster.home, AppliedPipeline(pipeline=pipeline, spec=pipeline, environ={}, at=NOW))
    assert collect(cluster, NOTHING, NOW).digests == (gone,)


def test_the_model_of_a_revision_that_an_endpoint_may_go_back_to_stays(cluster: LocalCluster) -> None:
    before, gone = (returned(cluster, text, days_ago=9) for text in ("before", "gone"))
    endpoint = cluster.submit(Serving(name="churn", run="serve"))
    old = Serving(name="churn", run="serve", model=str(Artefacts(cluster.home.artefacts).path(before)))
    revision = Revision(number=1, spec=to_json(old), replica="", created_at=1.0, served_at=1.0)
    status = replace(endpoint.status, detail=ServingDetail(revisions=(revision,)))
    change = Change(workload_uid=endpoint.uid, version=endpoint.version, status=status)
    assert cluster.apply(Plan(changes=(change,))) == (True,)
    assert collect(cluster, NOTHING, NOW).digests == (gone,)


def test_a_version_of_a_model_stays_until_it_is_removed(cluster: LocalCluster, tmp_path: Path) -> None:
    for text in ("one", "two"):
        (tmp_path / "weights").write_text(text)
        push(cluster, "churn", str(tmp_path / "weights"))
    promote(cluster, "churn@2", "production")
    both = there(cluster)
    assert len(both) == 2
    assert collect(cluster, NOTHING, NOW).digests == ()
    with pytest.raises(Conflict) as caught:
        delete(cluster, "churn@2")
    assert "churn@2 is production" in str(caught.value)
    gone = delete(cluster, "churn@1")
    assert collect(cluster, NOTHING, NOW).digests == (gone.digest,)
    assert there(cluster) == both - {gone.digest}


def test_the_number_of_a_removed_version_is_not_given_again(cluster: LocalCluster, tmp_path: Path) -> None:
    for text in ("one", "two"):
        (tmp_path / "weights").write_text(text)
        push(cluster, "churn", str(tmp_path / "weights"))
    delete(cluster, "churn@2")
    (tmp_path / "weights").write_text("three")
    version, is_new = push(cluster, "churn", str(tmp_path / "weights"))
    assert (version.version, is_new) == (3, True)
    with pytest.raises(NotFound):
        delete(cluster, "churn@production")


def test_nothing_is_removed_while_a_driver_takes_a_result(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.control.pipelines.artefacts.ALONE_S", 0.0)
    digest = returned(cluster, "old", days_ago=9)
    store = Artefacts(cluster.home.artefacts)
    with store.in_use():
        with pytest.raises(Conflict):
            collect(cluster, NOTHING, NOW)
        assert store.has(digest)
    begun, done = threading.Event(), list[bool]()

    def take() -> None:
        begun.set()
        with store.in_use():
            done.append(store.has(digest))

    with store.alone():
        taker = threading.Thread(target=take)
        taker.start()
        assert begun.wait(60)
        assert done == []
    taker.join(60)
    assert done == [True]
    assert collect(cluster, NOTHING, NOW).digests == (digest,)
