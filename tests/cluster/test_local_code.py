"""A run of this machine runs its code as submitted, whatever is edited meanwhile, and all else as if run by oneself."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.cluster.local.agent import Agent
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.code import snapshots
from fairlead.cluster.local.code.environments import interpreter_of
from fairlead.cluster.local.code.keeping import CodeStore
from fairlead.cluster.local.code.trees import settle
from fairlead.runtime.podfiles import take_lock
from fairlead.specs.training import Training
from fairlead.state.snapshot import Workload
from tests.builders import change, members, plan

PYTHON = sys.executable


class Desk:
    """A project, and a cluster whose passes the test makes itself."""

    def __init__(self, path: Path) -> None:
        self.project = path / "project"
        self.project.mkdir()
        self.cluster = LocalCluster.open(path / "home")
        self._lock = take_lock(self.cluster.home.lock)
        self.agent = Agent(self.cluster.home, self.cluster.store, self.cluster.node())
        self.code = CodeStore(self.cluster.home)
        self.attempt = 0
        self._others = set(psutil.Process().children())

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.project / name.replace("__", "/").replace("_py", ".py").replace("_yaml", ".yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def submit(self, run: str, **changes: Any) -> Workload:
        return self.cluster.submit(Training(**{"name": "train", "run": run, "workdir": str(self.project), **changes}))

    def create(self, run: Workload, nodes: int = 1) -> None:
        now = self.cluster.store.get(run.uid)
        create = members(replace(run.spec, nodes=nodes), self.cluster.node().name, attempt=self.attempt)
        self.cluster.apply(plan(change(now, create=create)))

    def run(self, run: Workload, nodes: int = 1) -> list[str]:
        """The output of one attempt."""
        self.create(run, nodes)
        self.finish(run)
        lines = [line.text for line in self.cluster.logs(run.uid) if line.attempt == self.attempt]
        self.attempt += 1
        return lines

    def finish(self, run: Workload) -> None:
        self.until(lambda: all(pod.phase.is_final for pod in self.cluster.pods(run.uid)))

    def until(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not what():
            assert time.monotonic() < end
            self.agent.act(time.time())
            self.agent.observe(time.time())
            time.sleep(0.01)

    def said(self, run: Workload) -> list[str]:
        return [e.reason.message for e in self.cluster.events(run.uid) if e.type in ("CodeEdited", "FilesLeft")]

    def close(self) -> None:
        """See every shim and launcher out before the lock goes."""
        self.agent.close()
        for run in self.cluster.workloads():
            assert all(pod.phase.is_final for pod in self.cluster.pods(run.uid))
        psutil.wait_procs(set(psutil.Process().children()) - self._others, timeout=30)
        self.agent.act(time.time())
        self.cluster.close()
        assert self._lock is not None
        os.close(self._lock)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


HELPED = (
    "import helper, os\nprint(helper.NAME, open('conf.yaml').read(), os.getcwd())\nopen('out.txt', 'a').write('x')\n"
)


def test_unedited_code_runs_in_the_working_directory_itself(desk: Desk) -> None:
    desk.write(train_py=HELPED, helper_py="NAME = 'old'", conf_yaml="1")
    run = desk.submit(f"{PYTHON} train.py")
    assert desk.run(run) == [f"old 1 {desk.project}"]
    # What it wrote, and what was only looked at, is no edit.
    os.utime(desk.project / "train.py")
    assert desk.run(run) == [f"old 1 {desk.project}"]
    assert (desk.project / "out.txt").read_text() == "xx"
    assert desk.said(run) == []


@pytest.mark.parametrize("command", ["train.py", "-m train", "{project}/train.py", "-X faulthandler train.py"])
def test_what_was_edited_since_submission_does_not_reach_the_run(desk: Desk, command: str) -> None:
    desk.write(train_py=HELPED, helper_py="NAME = 'old'", conf_yaml="1")
    run = desk.submit(f"{PYTHON} {command.format(project=desk.project)}")
    desk.write(helper_py="NAME = 'new'", conf_yaml="2")
    (desk.project / "train.py").unlink()
    tree = desk.cluster.home.run(run.uid) / "code" / "0"
    assert desk.run(run) == [f"old 1 {tree}"]
    assert desk.said(run) == [
        f"conf.yaml, helper.py, train.py were edited since submission; attempt 0 runs the code as submitted, in {tree}"
    ]
    # What it made lies where it always did, and nothing else of it is left.
    assert (desk.project / "out.txt").read_text() == "x"
    assert sorted(os.listdir(desk.project)) == ["conf.yaml", "helper.py", "out.txt"]
    assert not tree.exists()
    assert (desk.project / "helper.py").read_text() == "NAME = 'new'"


def test_a_restart_runs_the_code_as_submitted_and_a_shell_does_too(desk: Desk) -> None:
    desk.write(train_py="print('old')")
    run = desk.submit(f"cd {desk.project} && {PYTHON} train.py | cat; {PYTHON} ./train.py")
    assert desk.run(run) == ["old", "old"]
    desk.write(train_py="print('new')")
    assert desk.run(run) == ["old", "old"]
    assert desk.said(run)[0].startswith("train.py was edited since submission; attempt 1 runs the code as submitted")
    desk.write(train_py="print('old')")
    assert desk.run(run) == ["old", "old"]
    assert len(desk.said(run)) == 1


def test_all_pods_of_a_gang_run_in_the_same_place(desk: Desk) -> None:
    desk.write(train_py="import os\nprint(os.getcwd())")
    run = desk.submit(f"{PYTHON} train.py", nodes=2)
    desk.create(run, 2)
    pods = desk.cluster.pods(run.uid)
    never = lambda _: False  # noqa: E731
    first = desk.code.place(run, pods[0], never)
    desk.write(train_py="print('new')")
    assert CodeStore(desk.cluster.home).place(run, pods[1], never) == first
    desk.finish(run)
    assert [line.text for line in desk.cluster.logs(run.uid)] == ["new", "new"]


def test_data_ignored_and_later_files_are_those_of_the_working_directory(desk: Desk) -> None:
    desk.write(
        train_py="import os\nfor name in ('data/x', 'later/y', 'weights.pt'): print(open(name).read())\n"
        "open('data/new', 'w').write('n'); open('weights.pt', 'w').write('w2')\n"
        "open('part', 'w').write('m2'); os.replace('part', 'metrics.json'); os.makedirs('made/deep')\n"
        "open('made/deep/z', 'w').write('z')\n",
        data__x="1",
    )
    (desk.project / ".gitignore").write_text("data/\n*.pt\n")
    (desk.project / "weights.pt").write_text("w")
    (desk.project / "metrics.json").write_text("m")
    run = desk.submit(f"{PYTHON} train.py")
    (desk.project / "train.py").write_text("print('new')")
    desk.write(later__y="2", data__x="11")
    assert desk.run(run) == ["11", "2", "w"]
    assert (desk.project / "data" / "new").read_text() == "n"
    assert (desk.project / "weights.pt").read_text() == "w2"
    assert (desk.project / "metrics.json").read_text() == "m2"
    assert (desk.project / "made" / "deep" / "z").read_text() == "z"
    assert len(desk.said(run)) == 1


def test_results_that_a_run_writes_beside_its_code_are_no_edits(desk: Desk) -> None:
    desk.write(train_py="import os\nopen('metrics.json', 'a').write('x')\nprint(os.getcwd())")
    (desk.project / "metrics.json").write_text("")
    run = desk.submit(f"{PYTHON} train.py")
    assert [desk.run(run), desk.run(run)] == [[str(desk.project)]] * 2
    assert (desk.project / "metrics.json").read_text() == "xx"
    assert desk.said(run) == []


def test_what_both_have_written_stays_in_the_tree_and_is_told(desk: Desk) -> None:
    desk.write(train_py="open('new.txt', 'w').write('mine')\nopen('helper.py', 'a').write('# run')", helper_py="")
    run = desk.submit(f"{PYTHON} train.py && echo theirs > {desk.project}/new.txt")
    (desk.project / "train.py").write_text("print('new')")
    (desk.project / "helper.py").write_text("# user")
    # Later files are seen live, so the conflict has to come while it runs.
    desk.run(run)
    tree = desk.cluster.home.run(run.uid) / "code" / "0"
    assert (desk.project / "helper.py").read_text() == "# user"
    assert (tree / "helper.py").read_text() == "# run"
    assert "attempt 0 wrote helper.py" in desk.said(run)[1]
    assert str(tree) in desk.said(run)[1]


@pytest.mark.parametrize("steps", range(6))
def test_settling_goes_on_after_a_kill_at_any_step(desk: Desk, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write(train_py="import os\nfor n in 'abc': open(n + '.txt', 'w').write(n)\nos.mkdir('d')")
    run = desk.submit(f"{PYTHON} train.py")
    desk.write(train_py="print('new')")
    desk.create(run)
    tree = desk.cluster.home.run(run.uid) / "code" / "0"
    monkeypatch.setattr("fairlead.cluster.local.code.keeping.settle", lambda _: None)
    desk.finish(run)
    monkeypatch.undo()
    left = steps
    real = Path.rename

    def killed(self: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    try:
        settle(tree)
    except KeyboardInterrupt:
        monkeypatch.undo()
        LocalCluster(desk.cluster.home).close()
        Agent(desk.cluster.home, desk.cluster.store, desk.cluster.node()).sweep()
    assert [(desk.project / f"{n}.txt").read_text() for n in "abc"] == ["a", "b", "c"]
    assert (desk.project / "d").is_dir()
    assert not tree.exists()


def test_a_tree_that_was_half_made_is_made_anew(desk: Desk) -> None:
    desk.write(train_py="print('old')")
    run = desk.submit(f"{PYTHON} train.py")
    desk.write(train_py="print('new')")
    for name in ("0", "0.part"):
        (desk.cluster.home.run(run.uid) / "code" / name).mkdir(parents=True)
        (desk.cluster.home.run(run.uid) / "code" / name / "train.py").write_text("print('half')")
    assert desk.run(run) == ["old"]


def test_a_state_directory_on_another_disk_gives_back_what_was_made(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write(train_py="import os\nos.mkdir('d')\nopen('d/x', 'w').write('x')\nopen('y', 'w').write('y')")
    run = desk.submit(f"{PYTHON} train.py")
    desk.write(train_py="print('new')")
    real = Path.rename

    def other_disk(self: Path, target: Path) -> Path:
        if "home" in self.parts and "project" in Path(target).parts:
            raise OSError(18, "Invalid cross-device link")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", other_disk)
    desk.run(run)
    assert (desk.project / "d" / "x").read_text() == "x"
    assert sorted(os.listdir(desk.project)) == ["d", "train.py", "y"]


def test_without_a_snapshot_the_run_sees_what_is_there(desk: Desk) -> None:
    desk.write(train_py="print('old')")
    run = desk.submit(f"{PYTHON} train.py", snapshot=False)
    desk.write(train_py="print('new')")
    assert desk.run(run) == ["new"]
    assert desk.code.kept(run.uid)[0]["why"] == "the spec says `snapshot: false`"
    assert desk.said(run) == []


def test_the_users_files_are_never_linked_to(desk: Desk) -> None:
    desk.write(train_py="print('old')")
    run = desk.submit(f"{PYTHON} train.py")
    assert (desk.project / "train.py").stat().st_nlink == 1
    with (desk.project / "train.py").open("r+") as file:
        file.write("print('new')")
    assert desk.run(run) == ["old"]


def stored(desk: Desk) -> int:
    return sum(path.stat().st_size for path in (desk.cluster.home.path / "code").rglob("*") if path.is_file())


def test_runs_of_the_same_files_keep_them_once_and_the_last_takes_them_along(desk: Desk) -> None:
    for number in range(50):
        desk.write(**{f"pkg__m{number}_py": f"x = {number}\n" * 50})
    run = desk.submit("true", name="first")
    once = stored(desk)
    others = [desk.submit("true", name=f"r{number}") for number in range(20)]
    assert stored(desk) <= once + 200  # that files were not touched for a while
    for each in (run, *others):
        desk.cluster.apply(plan(change(desk.cluster.store.get(each.uid), forget=True)))
        if each is run:
            assert stored(desk) >= once - 200
    assert not list((desk.cluster.home.path / "code" / "objects").glob("??/*"))


def test_what_somebody_keeps_just_now_is_not_pruned(desk: Desk) -> None:
    with desk.code.objects.writing():
        digest = desk.code.objects.put(b"on its way")
        assert desk.code.prune() == 0
    assert desk.code.objects.get(digest) == b"on its way"
    assert desk.code.prune() == 1


def test_what_is_no_project_is_not_kept_and_runs_all_the_same(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write(train_py="print('here')")
    monkeypatch.setenv("HOME", str(desk.project))
    home = desk.submit(f"{PYTHON} train.py", name="home")
    assert "is or holds a home directory" in desk.code.kept(home.uid)[0]["why"]
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setattr(snapshots, "MOST_BYTES", 5)
    large = desk.submit(f"{PYTHON} train.py", name="large")
    assert "put its data into .gitignore" in desk.code.kept(large.uid)[0]["why"]
    assert desk.run(large) == ["here"]


def test_large_files_and_large_directories_stay_where_they_are(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_FILE_BYTES", 1000)
    monkeypatch.setattr(snapshots, "MOST_IN_ONE", 3)
    desk.write(train_py="print(len(open('big.bin').read()), open('data/3').read())")
    (desk.project / "big.bin").write_text("x" * 1001)
    desk.write(**{f"data__{number}": str(number) for number in range(5)})
    run = desk.submit(f"{PYTHON} train.py")
    kept = desk.code.snapshot(desk.code.kept(run.uid)[0])
    assert kept is not None
    assert ([file.path for file in kept.files], kept.left_out) == (["train.py"], ("big.bin", "data/"))
    desk.write(train_py="print('new')")
    assert desk.run(run) == ["1001 3"]


def test_a_commit_and_what_differs_from_it_are_kept(desk: Desk) -> None:
    desk.write(train_py="print(1)\n")
    git = ["git", "-C", str(desk.project), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-qb", "trunk"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    clean = desk.code.kept(desk.submit("true", name="clean").uid)[0]["git"]
    desk.write(train_py="print(2)\n")
    dirty = desk.code.kept(desk.submit("true", name="dirty").uid)[0]["git"]
    assert (clean["branch"], clean["dirty"], clean["diff"]) == ("trunk", False, None)
    assert (dirty["commit"], dirty["dirty"]) == (clean["commit"], True)
    diff = desk.code.objects.get(dirty["diff"])
    assert diff is not None
    assert b"+print(2)" in diff


def test_what_a_run_ran_with_is_known_afterwards(desk: Desk) -> None:
    desk.write(train_py="print(1)")
    run = desk.submit(f"{PYTHON} train.py")

    def python() -> dict[str, Any]:
        return dict((desk.cluster.code(run.uid).environment or {}).get("python") or {})

    desk.run(run)
    desk.until(lambda: bool(python()))
    assert python()["executable"] == PYTHON
    assert python()["version"] == ".".join(map(str, sys.version_info[:3]))
    assert "pytest" in python()["packages"]
    # A Python whose packages are as they were is not asked again.
    desk.run(run)
    assert (desk.cluster.code(run.uid).environment or {})["python"]["packages"] == python()["packages"]
    assert desk.agent._environments._asked == []


def test_the_python_of_a_command_is_found(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/opt/python3.9 -s\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "other").write_text("#!/bin/sh\n")
    (tmp_path / "other").chmod(0o755)
    env = {"PATH": f"{Path(PYTHON).parent}:."}
    python = str(Path(PYTHON).parent / "python")
    for command, wanted in (
        ("python train.py", python),
        ("cd x && python train.py", python),
        ("./tool --flag", "/opt/python3.9"),
        ("tool", "/opt/python3.9"),
        ("./other", None),
        ("missing", None),
    ):
        assert interpreter_of(command, str(tmp_path), env) == wanted


def test_a_home_directory_is_told_of_beforehand(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(desk.project))
    wanted = Training(name="a", run="true")
    (note,) = desk.cluster.prepare(wanted, desk.project).notes
    assert note.startswith("snapshot: the code is not kept, and edits reach the run: ")
    assert desk.cluster.prepare(replace(wanted, snapshot=False), desk.project).notes == ()


def test_a_state_directory_is_no_project(desk: Desk) -> None:
    # Whoever opens and closes a database beside SQLite takes the locks of its own process on it away.
    home = desk.cluster.home.path
    index = snapshots.Index(home / "index.json")
    with pytest.raises(snapshots.Unfit, match="is the state directory of Fairlead"):
        snapshots.take(home, desk.code.objects, index, without=home)
