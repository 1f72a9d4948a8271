"""Drift is found in files as people keep them, and makes an applied pipeline run, once for each reason."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import patch

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.pipelines import drift, triggers
from fairlead.control.pipelines.drift import DriftFinding, look, request_of
from fairlead.control.pipelines.triggers import Triggers, all_applied, check, keep, remove
from fairlead.errors import Conflict
from fairlead.runtime.processes import descendants
from fairlead.specs.pipeline import Detector, Drift, On
from fairlead.state.snapshot import Phase
from tests.cluster.test_triggers import applied, finish
from tests.launch.pods import is_alive
from tests.processes import Child
from tests.waiting import until

BY_COST = Drift(data="seen.csv", column="error", cost=20.0, window=50)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster.open(tmp_path / "home")
    yield cluster
    cluster.close()


def csv_of(mistakes: list[int]) -> str:
    return "id,error\n" + "".join(f"{number},{mistake}\n" for number, mistake in enumerate(mistakes))


def found(work: Path, watched: Drift, **state: object) -> DriftFinding:
    return look(request_of(watched, work, **state))


def test_mistakes_beyond_those_of_a_fresh_model_make_a_training_due(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text(csv_of([0] * 50 + [1] * 19))
    seen = found(tmp_path, BY_COST)
    assert (seen.is_due, seen.reason) == (False, "staleness has cost 19 of 20 (error) in 69 predictions")
    (tmp_path / "seen.csv").write_text(csv_of([0] * 50 + [1] * 20))
    assert found(tmp_path, BY_COST).is_due


def test_rows_count_from_where_the_model_was_trained_and_a_row_without_an_end_does_not_count_yet(
    tmp_path: Path,
) -> None:
    place = tmp_path / "seen.csv"
    place.write_text(csv_of([1] * 100) + "100,")
    after = found(tmp_path, BY_COST, begin=None)
    assert after.begin == len(csv_of([1] * 100))
    with place.open("a") as file:
        file.write("0\n101,1\n")
    assert found(tmp_path, BY_COST, begin=after.begin, fresh=0.5).reason.endswith("in 2 predictions")
    place.write_text(csv_of([0]))
    again = found(tmp_path, BY_COST, begin=after.begin, fresh=0.5)
    assert (again.begin, again.reason.endswith("in 1 predictions")) == (0, True)


def test_json_lines_with_flags_are_read_and_rows_without_the_column_are_left_out(tmp_path: Path) -> None:
    rows = [{"error": False}] * 60 + [{"other": 1}, {"error": None}] + [{"error": True}] * 25
    (tmp_path / "seen.csv").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen = found(tmp_path, BY_COST)
    assert (seen.is_due, seen.reason) == (True, "staleness has cost 25 of 20 (error) in 85 predictions")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("id,loss\n1,2\n", "has no column 'error'; columns: id, loss"),
        ("id,error\n1,high\n", "row 1 has 'high' as error, which is no finite number"),
        ("id,error\n1,nan\n", "row 1 has 'nan' as error, which is no finite number"),
        ('{"error": 1}\n[1]\n', "row 2 is not a JSON object: [1]"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_row(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "seen.csv").write_text(content)
    assert problem in (found(tmp_path, BY_COST).problem or "")


@pytest.mark.parametrize("detector", Detector)
def test_each_detector_finds_that_mistakes_have_become_many_and_not_that_they_have_become_few(
    tmp_path: Path, detector: Detector
) -> None:
    rng = random.Random(7)
    watched = Drift(data="seen.csv", column="error", detector=detector)
    few = [int(rng.random() < 0.05) for _ in range(1_000)]
    many = [int(rng.random() < 0.5) for _ in range(1_000)]
    (tmp_path / "seen.csv").write_text(csv_of(few + many))
    seen = found(tmp_path, watched)
    assert seen.is_due
    assert seen.reason.startswith(f"{detector} finds that error has grown, at prediction 1")
    (tmp_path / "seen.csv").write_text(csv_of(many[:500] + few))
    assert not found(tmp_path, watched).is_due


def test_a_column_that_is_distributed_otherwise_than_in_the_reference_is_named(tmp_path: Path) -> None:
    rng = random.Random(1)

    def rows(age: float, town: str) -> str:
        drawn = ((rng.gauss(age, 5), rng.choice(town)) for _ in range(400))
        return "age,town\n" + "".join(f"{years:.2f},{letter}\n" for years, letter in drawn)

    watched = Drift(data="now.csv", reference="then.csv")
    (tmp_path / "then.csv").write_text(rows(40, "abc"))
    for now, told in (((40, "abc"), None), ((44, "abc"), "age differs"), ((40, "aaab"), "town differs")):
        (tmp_path / "now.csv").write_text(rows(*now))
        seen = found(tmp_path, watched)
        assert seen.is_due == (told is not None), seen
        assert told is None or seen.reason.startswith(f"{told} from then.csv (p = ")
    (tmp_path / "now.csv").write_text("age\n1\n")
    assert found(tmp_path, watched).reason == "1 rows are there, of 20 that a comparison takes"
    (tmp_path / "now.csv").write_text("age\n")
    assert found(tmp_path, watched).reason == "0 rows are there, of 20 that a comparison takes"
    (tmp_path / "now.csv").write_text("years\n1\n")
    assert "no column in common" in (found(tmp_path, watched).problem or "")


def test_a_value_that_is_missing_hides_no_difference(tmp_path: Path) -> None:
    watched = Drift(data="now.csv", reference="then.csv")

    def rows(mean: float) -> str:
        drawn = random.Random(1)
        told = "".join(f"{'' if row else 'late'},{'nan' if row % 9 else 1},{drawn.gauss(mean)}\n" for row in range(300))
        return f"note,rate,age\n{told}"

    (tmp_path / "then.csv").write_text(rows(0.0))
    (tmp_path / "now.csv").write_text(rows(1.0))
    seen = found(tmp_path, watched)
    assert seen.is_due
    assert seen.reason.startswith("age differs from then.csv (p = ")
    assert "; 2 columns, 300 rows)" in seen.reason


def test_columns_of_words_that_each_row_has_anew_are_compared_in_seconds(tmp_path: Path) -> None:
    def rows(first: int) -> str:
        return "id\n" + "".join(f"order-{number}\n" for number in range(first, first + 100_000))

    (tmp_path / "then.csv").write_text(rows(0))
    (tmp_path / "now.csv").write_text(rows(100_000))
    began = time.monotonic()
    assert not found(tmp_path, Drift(data="now.csv", reference="then.csv")).is_due
    assert time.monotonic() - began < 60.0


def test_a_text_within_a_row_ends_no_row(tmp_path: Path) -> None:
    told = json.dumps({"text": "one\u2028two\x85three", "error": 1}, ensure_ascii=False)
    (tmp_path / "seen.csv").write_text(f"{told}\r\n{told}\n")
    assert found(tmp_path, BY_COST).reason.startswith("2 of the 50 predictions")
    (tmp_path / "seen.csv").write_text('\ufefferror,text\n1,"one\u2028two"\n0,"one\ntwo"\n')
    assert found(tmp_path, BY_COST).reason.startswith("2 of the 50 predictions")


def kept(cluster: LocalCluster, work: Path, watched: Drift = BY_COST) -> float:
    """Apply a pipeline; when that was."""
    one = replace(applied(cluster, work, on=On(drift=watched, every_s=0.1)), at=time.time())
    assert keep(cluster.home, one)
    return one.at


def looked(supervisor: Triggers, now: float) -> int:
    """Let a supervisor look until no look is under way; how many runs it submitted."""
    submitted = 0

    def is_over() -> bool:
        nonlocal submitted
        submitted += supervisor.look(now)
        return not supervisor.is_looking

    with patch.object(triggers, "LOOK_S", 0.0):
        supervisor.look(now)
        until(is_over, "end of the look for drift")
    return submitted


def test_a_stale_model_is_retrained_once_and_again_only_for_what_came_after(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    seen = work / "seen.csv"
    seen.write_text(csv_of([0] * 50 + [1] * 30))
    began = kept(cluster, work)
    supervisor = Triggers(cluster.home, cluster)
    assert looked(supervisor, time.time()) == 1
    (run,) = cluster.workloads()
    assert run.spec.labels["trigger"] == f"drift-{began:.0f}-1"
    triggered = cluster.events(run.uid)[-1]
    assert triggered.reason is not None
    assert triggered.reason.message == "by drift: staleness has cost 30 of 20 (error) in 80 predictions"
    time.sleep(0.11)  # longer than `every`, as below
    assert looked(supervisor, time.time()) == 0  # it is not over
    finish(cluster, run)
    time.sleep(0.11)
    assert looked(supervisor, time.time()) == 0
    with seen.open("a") as file:
        file.write("".join(f"{number},1\n" for number in range(10)))
    time.sleep(0.11)
    assert looked(Triggers(cluster.home, cluster), time.time()) == 0  # another supervisor knows where rows count from
    ((_, state),) = all_applied(cluster.home)
    assert state["drift_said"] == "staleness has cost 10 of 20 (error) in 10 predictions"
    with seen.open("a") as file:
        file.write("".join(f"{number},1\n" for number in range(10)))
    assert looked(Triggers(cluster.home, cluster), time.time()) == 1
    assert cluster.workloads()[0].spec.labels["trigger"] == f"drift-{began:.0f}-2"


def test_a_training_that_failed_is_tried_again_when_staleness_has_cost_as_much_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "seen.csv").write_text(csv_of([0] * 50 + [1] * 30))
    kept(cluster, work)
    assert looked(Triggers(cluster.home, cluster), time.time()) == 1
    finish(cluster, cluster.workloads()[0], Phase.FAILED)
    assert looked(Triggers(cluster.home, cluster), time.time()) == 0
    with (work / "seen.csv").open("a") as file:
        file.write("".join(f"{number},1\n" for number in range(25)))
    assert looked(Triggers(cluster.home, cluster), time.time()) == 1


def test_who_was_killed_before_it_kept_what_was_found_still_runs_for_what_comes_after(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "seen.csv").write_text(csv_of([0] * 50 + [1] * 30))
    kept(cluster, work)
    with patch.object(Triggers, "_keep", side_effect=OSError("killed")):
        looked(Triggers(cluster.home, cluster), time.time())
    assert looked(Triggers(cluster.home, cluster), time.time()) == 0  # it is not over
    finish(cluster, cluster.workloads()[0])
    assert looked(Triggers(cluster.home, cluster), time.time()) == 0
    with (work / "seen.csv").open("a") as file:
        file.write("".join(f"{number},0\n" for number in range(50)))
        file.write("".join(f"{number},1\n" for number in range(25)))
    assert looked(Triggers(cluster.home, cluster), time.time()) == 1
    assert len(cluster.workloads()) == 2


@pytest.mark.slow
def test_data_that_differs_from_the_reference_is_run_for_once_until_it_changes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "then.csv").write_text(csv_of([0] * 100))
    (work / "seen.csv").write_text(csv_of([1] * 100))
    kept(cluster, work, Drift(data="seen.csv", reference="then.csv"))
    assert looked(Triggers(cluster.home, cluster), time.time()) == 1
    finish(cluster, cluster.workloads()[0])
    assert looked(Triggers(cluster.home, cluster), time.time()) == 0
    (work / "seen.csv").write_text(csv_of([1] * 101))
    assert looked(Triggers(cluster.home, cluster), time.time()) == 1


def look_that_hangs(cluster: LocalCluster, work: Path) -> Triggers:
    """A supervisor whose look for drift reads what nobody writes."""
    work.mkdir()
    kept(cluster, work)
    os.mkfifo(work / "seen.csv")
    supervisor = Triggers(cluster.home, cluster)
    supervisor.look(time.time())
    assert supervisor.is_looking
    return supervisor


def replaced(cluster: LocalCluster, work: Path) -> None:
    other = applied(cluster, work, on=On(drift=replace(BY_COST, cost=2_000.0), every_s=600.0))
    assert keep(cluster.home, replace(other, at=time.time()))
    (work / "seen.csv").unlink()
    (work / "seen.csv").write_text(csv_of([0] * 50 + [1] * 30))


def removed(cluster: LocalCluster, _: Path) -> None:
    assert remove(cluster.home, "default", "nightly")


@pytest.mark.parametrize("change", [replaced, removed])
def test_a_look_ends_with_what_it_was_for(
    cluster: LocalCluster, tmp_path: Path, change: Callable[[LocalCluster, Path], None]
) -> None:
    others = set(descendants(os.getpid()))  # of tests that ran before in this process
    supervisor = look_that_hangs(cluster, tmp_path / "work")
    (one,) = set(descendants(os.getpid())) - others
    change(cluster, tmp_path / "work")
    assert looked(supervisor, time.time()) == 0
    assert one not in descendants(os.getpid())
    assert not cluster.workloads()


def test_a_look_that_does_not_end_is_ended_and_tried_again(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with patch.object(triggers, "DRIFT_LOOK_S", 0.3):
        supervisor = look_that_hangs(cluster, tmp_path / "work")
    assert looked(supervisor, time.time()) == 0
    assert "looking at seen.csv had not ended after" in caplog.text
    (tmp_path / "work" / "seen.csv").unlink()
    assert looked(supervisor, time.time()) == 0
    ((_, state),) = all_applied(cluster.home)
    assert state["drift_said"].endswith("seen.csv: No such file or directory")
    (tmp_path / "work" / "seen.csv").write_text(csv_of([0] * 50 + [1] * 30))
    time.sleep(0.11)
    assert looked(supervisor, time.time()) == 1


def test_a_look_ends_with_its_supervisor(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "seen.csv")
    request = json.dumps(asdict(request_of(BY_COST, tmp_path)))
    looker = [sys.executable, "-m", drift.__name__]
    program = (
        "import os, subprocess, sys\n"
        f"looking = subprocess.Popen([*{looker!r}, str(os.getpid())], stdin=subprocess.PIPE)\n"
        f"looking.stdin.write({request.encode()!r})\nlooking.stdin.close()\n"
        "print(looking.pid, flush=True)\nsys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with Child[bytes]([sys.executable, "-c", program], **pipes) as supervisor:
        assert supervisor.stdout is not None
        looking = int(supervisor.stdout.readline())
        assert looking in descendants(supervisor.pid)
        supervisor.kill()
    until(lambda: not is_alive(looking), "end of the look")


def test_a_file_or_a_column_that_is_not_there_is_refused_when_it_is_applied(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    one = applied(cluster, tmp_path / "work", on=On(drift=BY_COST))
    with pytest.raises(Conflict, match=r"on\.drift\.data: .*seen\.csv does not exist or is no file"):
        check(one)
    (tmp_path / "work" / "seen.csv").write_text("id\n")
    with pytest.raises(Conflict, match=r"on\.drift: .* has no column 'error'; columns: id"):
        check(one)


def test_a_detector_is_refused_where_its_package_is_not_installed(cluster: LocalCluster, tmp_path: Path) -> None:
    watched = Drift(data="seen.csv", column="error", detector=Detector.ADWIN)
    one = applied(cluster, tmp_path / "work", on=On(drift=watched))
    (tmp_path / "work" / "seen.csv").write_text(csv_of([0]))
    check(one)
    with (
        patch("importlib.util.find_spec", return_value=None),
        pytest.raises(Conflict, match=r"pip install 'fairlead\[drift\]'"),
    ):
        check(one)
