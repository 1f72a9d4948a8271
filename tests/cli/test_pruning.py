"""`fairlead prune`, and what a machine keeps by itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.errors import ClusterError
from fairlead.policy.kinds.retention import Retention
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.cli.conftest import Call, Past
from tests.waiting import until


def with_files(past: Past, run: Workload, size: int = 300_000) -> Path:
    """The directory of a run with a checkpoint of its own in it."""
    own = past.cluster.home.run(run.uid)
    (own / "checkpoints").mkdir(parents=True)
    (own / "checkpoints" / "weights").write_bytes(os.urandom(size))
    return own


@pytest.fixture
def several(past: Past) -> Past:
    for number in range(4):
        past.submit(f"old-{number}", phase=Phase.FAILED if number == 1 else Phase.SUCCEEDED)
    past.submit("going", phase=Phase.STOPPING)
    return past


def names(past: Past) -> set[str]:
    return {run.spec.name for run in past.cluster.workloads()}


def test_content_of_a_deleted_model_version_is_removed_as_its_deletion_says(
    call: Call, several: Past, desk: Path
) -> None:
    (desk / "model.onnx").write_text("weights")
    (desk / "other.onnx").write_text("other weights")
    for name in ("model", "other"):
        assert call("model", "push", "churn", f"./{name}.onnx").code == 0
    again = call("model", "push", "churn", "./other.onnx", "--metric", "accuracy=0.9")
    assert again.err.startswith("It was there already")
    assert again.err.endswith("; the given metrics were added to it.\n")
    gone = call("model", "delete", "churn@1")
    assert "`fairlead prune --artefacts` removes its content" in gone.err
    pruned = call("prune", "--artefacts")
    assert (pruned.code, pruned.err) == (0, "1 output of steps or models removed, 7 B.\n")
    assert json.loads(call("model", "list", "churn", "--json").out)["models"][0]["version"] == 2
    assert call("prune", "--artefacts").err == "0 outputs of steps or models removed, 0 B.\n"
    assert len(names(several)) == 5


def test_doctor_reports_a_file_keep_that_cannot_be_used(call: Call, several: Past, desk: Path) -> None:
    file = desk / "home" / "keep"
    file.write_text("last: 20\n")
    assert call("doctor").code == 0
    file.write_text("las: 20\n")
    found = call("doctor")
    assert found.code == 1
    assert f'keep           {file}: "las: 20" is not one line each of for, last.' in found.out


def test_costs_of_days_are_those_of_a_cluster(call: Call, several: Past) -> None:
    refused = call("prune", "--costs", "400d")
    assert refused.code == 2
    assert "the costs of this machine are in its database" in refused.err
    assert len(names(several)) == 5


def test_what_is_removed_is_said_before_with_its_space_and_nothing_else_goes(
    call: Call, several: Past, desk: Path
) -> None:
    runs = {run.spec.name: run for run in several.cluster.workloads()}
    own = {name: with_files(several, run) for name, run in runs.items()}
    (desk / "mine").mkdir()
    (desk / "mine" / "checkpoint").write_text("elsewhere")
    (own["old-0"] / "link").symlink_to(desk / "mine")

    first = call("prune", "--last", "2", "--dry-run")
    assert first.code == 0
    assert [line.split()[0] for line in first.out.splitlines()] == ["NAME", "old-0", "old-1"]
    assert "296 KiB" in first.out or "293 KiB" in first.out
    assert "2 runs would be removed, " in first.err
    assert len(names(several)) == 5

    refused = call("prune", "--last", "2")
    assert refused.code == 2
    assert (
        "standard input is not a terminal, so this cannot be confirmed: Remove 2 runs with their "
        "logs and own checkpoints" in refused.err
    )

    planned = json.loads(call("prune", "--last", "2", "--dry-run", "--json").out)
    done = json.loads(call("prune", "--last", "2", "--yes", "--json").out)
    assert (planned["removed"], done["removed"]) == (False, True)
    assert planned["runs"] == done["runs"]
    assert done["bytes"] == sum(run["bytes"] for run in done["runs"]) > 600_000
    assert names(several) == {"old-2", "old-3", "going"}
    assert {name for name, path in own.items() if path.exists()} == {"old-2", "old-3", "going"}
    assert (desk / "mine" / "checkpoint").read_text() == "elsewhere"
    again = call("prune", "--last", "2", "--yes")
    assert (again.code, again.out, again.err) == (0, "", "No finished run needs to be removed.\n")


def test_phases_and_labels_choose_among_those_that_need_not_be_kept(call: Call, several: Past) -> None:
    call("prune", "--keep", "30d", "--phase", "failed", "--yes")
    assert names(several) == {"old-0", "old-2", "old-3", "going"}
    call("prune", "--keep", "30d", "--label", "none", "--yes")
    assert names(several) == {"old-0", "old-2", "old-3", "going"}
    call("prune", "--keep", "0s", "--yes")
    assert names(several) == {"going"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "say what is to be kept: --keep 30d, --last 20, or both"),
        (("--keep", "soon"), "'soon' is not a duration"),
        (("--keep", "20000d"), "is out of bounds: give 0s to 3650d"),
        (("--keep", "forever", "--last", "3"), "keeps all runs: leave out the number"),
        (("--last", "-1"), "-1"),
        (("--keep", "1d", "--phase", "Running"), "this command does nothing to runs that are Running"),
    ],
)
def test_what_cannot_work_is_refused(call: Call, several: Past, arguments: tuple[str, ...], says: str) -> None:
    ended = call("prune", *arguments, "--yes")
    assert ended.code == 2
    assert says in ended.err
    assert len(names(several)) == 5


def test_a_run_that_is_resumed_meanwhile_stays(several: Past) -> None:
    (seen,) = (run for run in several.cluster.workloads() if run.spec.name == "old-1")
    several.cluster.set_intent(seen.uid, Intent.RUN)
    assert several.cluster.forget([seen]) == (False,)
    assert several.cluster.get(seen.uid).intent is Intent.RUN


KILLED = """
import os, signal
from fairlead.cluster.local import cluster
from fairlead.cluster.local.cluster import LocalCluster
def die(*_args, **_kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
{where}
here = LocalCluster.open()
here.forget(here.workloads())
"""


@pytest.mark.parametrize(
    "where",
    [
        "cluster.LocalCluster._move_away = die",
        "move = LocalCluster._move_away\ncluster.LocalCluster._move_away = lambda *a: (move(*a), die())",
        "cluster.shutil.rmtree = die",
    ],
    ids=["before anything is moved", "before it is forgotten", "before its files are removed"],
)
def test_a_prune_that_is_killed_at_any_instant_is_finished_by_the_next(call: Call, past: Past, where: str) -> None:
    for name in ("one", "two"):
        with_files(past, past.submit(name))
    ended = subprocess.run(
        [sys.executable, "-c", KILLED.format(where=where)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert call("prune", "--keep", "0s", "--yes").code == 0
    assert names(past) == set()
    assert list(past.cluster.home.runs.iterdir()) == []


def test_a_machine_forgets_by_itself_what_its_file_does_not_keep(call: Call, several: Past) -> None:
    own = with_files(several, next(run for run in several.cluster.workloads() if run.spec.name == "old-0"))
    several.cluster.home.keep.write_text("last: 1  # and nothing else\n")
    # What `prune` would do is what the machine does.
    assert [run["name"] for run in json.loads(call("prune", "--dry-run", "--json").out)["runs"]] == [
        "old-0",
        "old-1",
        "old-2",
    ]
    assert call("run", "--detach", "--name", "new", "--", "sleep", "60").code == 0
    until(lambda: names(several) == {"old-3", "going", "new"})
    assert not own.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ("30d", '"30d" is not one line each of for, last'),
        ("for: soon", 'for: "soon" is not a duration'),
        ("last: 1\nlast: 2", "is not one line each of"),
        ("last: -1", "last"),
    ],
)
def test_a_file_that_makes_no_sense_is_told_and_removes_nothing(
    call: Call, several: Past, text: str, says: str
) -> None:
    several.cluster.home.keep.write_text(text)
    with pytest.raises(ClusterError, match="until then no run is removed by itself"):
        several.cluster.keeps()
    ended = call("prune", "--yes")
    assert ended.code == 7
    assert says in ended.err
    assert len(names(several)) == 5


def test_the_file_says_how_long_and_how_many(past: Past) -> None:
    assert past.cluster.keeps() == Retention()
    past.cluster.home.keep.write_text("for: 30d\n\nlast: 20\n")
    assert past.cluster.keeps() == Retention(for_s=30 * 86_400.0, last=20)
