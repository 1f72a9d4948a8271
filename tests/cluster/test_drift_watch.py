"""Drift is looked for from where the operator says that rows count, and what is found is reported to it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.pod_files import progress_of
from fairlead.control.pipelines.drift_watch import DriftWatch
from fairlead.runtime.progress import Reporter
from fairlead.specs.pipeline import Drift
from fairlead.state.snapshot import DriftSeen
from tests.cluster.test_drift import BY_COST, csv_of
from tests.s3 import S3, s3, s3_binary

__all__ = ["s3", "s3_binary"]


class Pod:
    """One that looks for drift, with the file in which it is told."""

    def __init__(self, path: Path, drift: Drift) -> None:
        self.path = path
        self.drift = drift
        (path / "pod").mkdir(exist_ok=True)
        self.starts()

    def starts(self) -> None:
        reporter = Reporter(rank=0, world_size=1, directory=self.path / "pod")
        self._watch = DriftWatch(self.drift, self.path, self.path / "told", reporter)

    def hears(self, **cycle: Any) -> None:
        told = {"run": 0, "is_new": True, "begin": 0, "fresh": None, **cycle}
        (self.path / "told").write_text(json.dumps({"cycle": told}))

    def looks(self) -> DriftSeen | None:
        self._watch.look()
        place = self.path / "pod" / "rank-0.json"
        return progress_of(json.loads(place.read_text())).drift if place.exists() else None


def writer(path: Path) -> Callable[[str], object]:
    return (path / "seen.csv").write_text


def follow_a_model(pod: Pod, write: Callable[[str], object]) -> None:
    """Let a model grow stale, be trained, and grow stale again, while pods come and go."""
    assert pod.looks() is None, "it was told nothing yet"
    pod.hears()
    write(csv_of([0] * 50 + [1] * 10))
    seen = pod.looks()
    assert seen is not None
    assert (seen.run, seen.begin, seen.is_due) == (0, 0, False)
    assert seen.said == "staleness has cost 10 of 20 (error) in 60 predictions"
    old = csv_of([0] * 50 + [1] * 25)
    write(old)
    due = pod.looks()
    assert due is not None
    assert (due.is_due, due.fresh) == (True, 0.0)
    assert due.looked != seen.looked
    # It was trained; rows count from where the file ends now, and another pod goes on from there.
    pod.hears(run=1, begin=None, fresh=due.fresh)
    trained = pod.looks()
    assert trained is not None
    assert (trained.run, trained.begin, trained.is_due) == (1, len(old), False)
    write(old + "".join(f"{number},1\n" for number in range(15)))
    pod.hears(run=1, begin=trained.begin, fresh=0.0)
    pod.starts()
    again = pod.looks()
    assert again is not None
    assert again.said == "staleness has cost 15 of 20 (error) in 15 predictions"
    write(old + "".join(f"{number},1\n" for number in range(20)))
    assert pod.looks() == replace(again, looked=pod.looks().looked, is_due=True, said=again.said.replace("15", "20"))  # type: ignore[union-attr]


def test_rows_of_a_file_count_from_where_the_operator_says(tmp_path: Path) -> None:
    follow_a_model(Pod(tmp_path, BY_COST), writer(tmp_path))


@pytest.mark.slow
def test_rows_of_an_object_count_too(s3: S3, tmp_path: Path) -> None:
    # The server keeps objects as files; it is asked like any other.
    import s3fs

    system = s3fs.S3FileSystem(endpoint_url=s3.environ["AWS_ENDPOINT_URL"])

    def write(text: str) -> None:
        system.pipe_file("models/seen.csv", text.encode())

    drift = replace(BY_COST, data="s3://models/seen.csv")
    follow_a_model(Pod(tmp_path, drift), write)
    s3.stop()
    pod = Pod(tmp_path, drift)
    seen = pod.looks()
    assert seen is not None
    assert seen.said.startswith("it cannot be looked for: s3://models/seen.csv cannot be listed")
    assert not seen.is_due


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"column": "loss"}, "has no column 'loss'; columns: id, error"),
        ({"data": "gone.csv"}, "gone.csv: No such file or directory"),
    ],
)
def test_why_it_cannot_be_looked_is_told_once_to_people_and_always_to_the_operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: Mapping[str, Any], problem: str
) -> None:
    writer(tmp_path)(csv_of([0]))
    pod = Pod(tmp_path, replace(BY_COST, **changes))
    pod.hears(run=3, begin=7, fresh=0.5)
    for _ in range(3):
        seen = pod.looks()
        assert seen is not None
        assert problem in seen.said
        assert (seen.is_due, seen.begin, seen.fresh) == (False, 7, 0.5)
    assert capsys.readouterr().out.count("fairlead: drift cannot be looked for: ") == 1


@pytest.mark.parametrize("report", [3, [], {}, {"run": "1"}, {"run": 1, "looked": "../x", "begin": "a", "said": 5}])
def test_a_program_that_writes_its_own_findings_makes_no_trouble(report: object) -> None:
    found = progress_of({"drift": report}).drift
    assert found is None or found == DriftSeen(run=1, said="5")
