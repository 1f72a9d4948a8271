"""A run of this machine runs its code as submitted, whatever is edited meanwhile, and all else as if run by oneself."""

import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.cluster.local.agent import Agent
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.code import snapshots, trees
from fairlead.cluster.local.code.environments import interpreter_of
from fairlead.cluster.local.code.keeping import CodeStore
from fairlead.cluster.local.code.trees import Tree
from fairlead.runtime.podfiles import take_lock
from fairlead.specs.training import Training
from fairlead.state.snapshot import Grant, Pod, PodPhase, Workload
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

    def tree(self, run: Workload) -> Path:
        """The directory that stands for the project in the attempts of a run."""
        key = CodeStore(self.cluster.home).tree_of(run.uid, run.uid, run.spec)
        found = Tree.read(self.cluster.home.path / "trees" / f"{key}.json")
        assert found is not None
        return found.cwd

    def end(self) -> None:
        """Close all trees, as when their runs are over."""
        for _ in CodeStore(self.cluster.home).close((), ()):
            pass

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


def test_each_attempt_has_the_files_as_submitted_and_leaves_nothing_but_what_it_wrote(desk: Desk) -> None:
    desk.write(train_py=HELPED, helper_py="NAME = 'old'", conf_yaml="1")
    run = desk.submit(f"{PYTHON} train.py")
    lines = desk.run(run)
    tree = desk.tree(run)
    assert lines == [f"old 1 {tree}"]
    # What it wrote, and what was only looked at, is no edit.
    os.utime(desk.project / "train.py")
    assert desk.run(run) == lines
    desk.end()
    assert sorted(os.listdir(desk.project)) == ["conf.yaml", "helper.py", "out.txt", "train.py"]
    assert not any(path.is_symlink() for path in desk.project.iterdir())
    assert (desk.project / "out.txt").read_text() == "xx"
    assert desk.said(run) == []
    # Paths that the program has recorded stay valid.
    assert (tree / "out.txt").read_text() == "xx"


def test_an_edit_in_the_first_moments_of_a_run_does_not_reach_it(desk: Desk) -> None:
    desk.write(
        train_py="import os, time\nopen('started', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(.01)\n"
        "import json, helper\nprint(helper.NAME, open('conf.yaml').read(), json.load(open('settings.json')))",
        helper_py="NAME = 'old'",
        conf_yaml="1",
    )
    (desk.project / "settings.json").write_text("1")
    run = desk.submit(f"{PYTHON} train.py")
    desk.create(run)
    desk.until(lambda: (desk.project / "started").exists())
    desk.write(helper_py="NAME = 'new'", conf_yaml="2")
    (desk.project / "settings.json").write_text("2")
    (desk.project / "go").touch()
    desk.finish(run)
    assert [line.text for line in desk.cluster.logs(run.uid)] == ["old 1 1"]
    assert (desk.project / "settings.json").read_text() == "2"


def test_new_files_are_seen_in_the_working_directory_while_the_run_goes_on(desk: Desk) -> None:
    desk.write(
        train_py="import os, time\nos.makedirs('runs/1'); open('runs/1/x', 'w').write('x')\n"
        "open('../beside.txt', 'w').write('b')\nlog = open('log.txt', 'w'); print('a', file=log, flush=True)\n"
        "while not os.path.exists('go'): time.sleep(.01)\n"
        "print('b', file=log); os.remove('runs/1/x'); os.replace('log.txt', 'log.old')\n"
        "open('part', 'w').write('w'); os.replace('part', 'weights.bin')\n"
    )
    (desk.project / "weights.bin").write_bytes(b"\0")
    run = desk.submit(f"{PYTHON} train.py")
    desk.create(run)
    desk.until(lambda: (desk.project / "log.txt").exists() and (desk.project / "log.txt").read_text() == "a\n")
    desk.until(lambda: (desk.project / "runs" / "1" / "x").exists())
    (desk.project / "go").touch()
    desk.finish(run)
    assert (desk.project / "log.old").read_text() == "a\nb\n"
    assert (desk.project / "weights.bin").read_text() == "w"
    assert (desk.project.parent / "beside.txt").read_text() == "b"
    assert sorted(os.listdir(desk.project)) == ["go", "log.old", "runs", "train.py", "weights.bin"]
    assert os.listdir(desk.project / "runs" / "1") == []
    assert not any(path.is_symlink() for path in desk.project.iterdir())


@pytest.mark.parametrize("way", ["write", "replace"])
@pytest.mark.parametrize("name", ["state.yaml", "state.json", "state.toml", "state.py"])
def test_what_a_run_writes_into_a_stored_file_goes_to_the_next_attempt_and_is_no_edit(
    desk: Desk, name: str, way: str
) -> None:
    save = f"open({name!r}, 'w').write(str(n + 1))"
    if way == "replace":
        save = f"open('tmp', 'w').write(str(n + 1)); import os; os.replace('tmp', {name!r})"
    desk.write(train_py=f"n = int(open({name!r}).read())\nprint(n)\n{save}")
    (desk.project / name).write_text("3")
    run = desk.submit(f"{PYTHON} train.py")
    assert [desk.run(run), desk.run(run)] == [["3"], ["4"]]
    assert (desk.project / name).read_text() == "5"
    # The supervisor may have been another one in between.
    desk.agent.close()
    desk.agent = Agent(desk.cluster.home, desk.cluster.store, desk.cluster.node())
    assert desk.run(run) == ["5"]
    desk.end()
    assert (desk.project / name).read_text() == "6"
    assert sorted(os.listdir(desk.project)) == sorted([name, "train.py"])
    assert desk.said(run) == []
    assert desk.cluster.code(run.uid).edited == ()
    # A later submission begins with what is there.
    assert desk.run(desk.submit(f"{PYTHON} train.py", name="later")) == ["6"]


def test_a_file_that_user_and_run_have_changed_is_kept_in_both_versions(desk: Desk) -> None:
    desk.write(train_py="import time, os\nopen('state.yaml', 'w').write('run')\nopen('on', 'w').close()\n"
    "while not os.path.exists('go'): time.sleep(.01)", state_yaml="0")  # fmt: skip
    run = desk.submit(f"{PYTHON} train.py")
    desk.create(run)
    desk.until(lambda: (desk.project / "on").exists())
    desk.write(state_yaml="user")
    (desk.project / "go").touch()
    desk.finish(run)
    tree = desk.tree(run)
    for _ in range(2):
        assert (desk.project / "state.yaml").read_text() == "user"
        assert (tree / "state.yaml").read_text() == "run"
        desk.end()
    (said,) = desk.said(run)
    assert said.startswith("the run wrote state.yaml, which ")
    assert str(tree) in said


def test_a_program_removes_and_renames_what_it_finds_as_in_the_working_directory(desk: Desk) -> None:
    desk.write(
        train_py="import os, shutil\nshutil.rmtree('outputs', ignore_errors=False)\nos.mkdir('outputs')\n"
        "open('outputs/new', 'w').write('n')\nos.rename('a.log', 'a.log.1')\nopen('a.log', 'w').write('second')\n"
        "os.remove('old.log')",
    )
    setup = desk.submit(
        "mkdir outputs && echo o > outputs/old && printf 'first\\0' > a.log && echo x > old.log", name="before"
    )
    desk.run(setup)
    run = desk.submit(f"{PYTHON} train.py")
    desk.attempt = 0
    assert desk.run(run) == []
    assert os.listdir(desk.project / "outputs") == ["new"]
    assert (desk.project / "a.log").read_text() == "second"
    assert (desk.project / "a.log.1").read_text() == "first\0"
    assert not (desk.project / "old.log").exists()


def test_what_the_user_made_is_not_removed_with_a_programs_link_to_it(desk: Desk) -> None:
    desk.write(train_py="import shutil, os\nshutil.rmtree('mine'); os.remove('table.bin')", mine__x="x")
    (desk.project / "table.bin").write_bytes(b"\0")
    desk.run(desk.submit(f"{PYTHON} train.py"))
    desk.end()
    assert (desk.project / "mine" / "x").read_text() == "x"
    assert (desk.project / "table.bin").exists()


def test_runs_of_different_code_add_lines_to_one_file(desk: Desk) -> None:
    """Both begin the file at the same moment: neither sees that of the other."""
    runs = []
    for number in range(3):
        desk.write(
            train_py="import os, time\nopen('all.csv', 'a').write('head\\nNUMBER\\n')\n"
            "while not os.path.exists('go'): time.sleep(.01)".replace("NUMBER", str(number))
        )
        runs.append(desk.submit(f"{PYTHON} train.py", name=f"r{number}"))
    for run in runs:
        desk.create(run)
    trees = []
    for run in runs:
        desk.agent.act(time.time())
        trees.append(desk.tree(run))
    end = time.monotonic() + 30
    while not all((tree / "all.csv").exists() for tree in trees):  # without a look of the agent in between
        assert time.monotonic() < end
        time.sleep(0.01)
    (desk.project / "go").touch()
    for run in runs:
        desk.finish(run)
    lines = (desk.project / "all.csv").read_text().splitlines()
    assert sorted(lines) == ["0", "1", "2", "head"]
    assert not [text for run in runs for text in desk.said(run) if "stays in" in text]


def test_directories_above_and_git_are_where_they_were(desk: Desk) -> None:
    repository = desk.project / "repository"
    desk.write(repository__exp__train_py="import subprocess\nprint(open('../data/x').read())\n"
    "print(subprocess.check_output(['git', 'rev-parse', '--show-prefix'], text=True).strip())")  # fmt: skip
    desk.write(repository__data__x="data")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(repository), *words], check=True, timeout=60)
    run = desk.submit(f"{PYTHON} train.py", workdir=str(repository / "exp"))
    assert desk.run(run) == ["data", "exp/"]


def test_odd_files_beside_the_code_neither_hang_nor_break_a_run(desk: Desk) -> None:
    desk.write(train_py="import os, socket, stat\nprint(stat.S_ISFIFO(os.stat('pipe').st_mode))\n"
    "os.mkfifo('made'); s = socket.socket(socket.AF_UNIX); s.bind('made.sock')\n"
    "f = open('sparse', 'wb'); f.truncate(1 << 40)\nos.symlink('nowhere', 'dangling')\n"
    "os.symlink('.', 'loop')")  # fmt: skip
    os.mkfifo(desk.project / "pipe")
    (desk.project / "cycle").symlink_to(".")
    (desk.project / "gone").symlink_to("nowhere")
    with open(desk.project / "huge.bin", "wb") as file:
        file.truncate(1 << 40)
    run = desk.submit(f"{PYTHON} train.py")
    assert desk.run(run) == ["True"]
    desk.end()
    assert (desk.project / "sparse").stat().st_size == 1 << 40
    assert (desk.project / "sparse").stat().st_blocks == 0
    assert (desk.project / "made").is_fifo()
    assert (desk.project / "made.sock").is_socket()
    assert os.readlink(desk.project / "dangling") == "nowhere"
    assert os.readlink(desk.project / "loop") == "."
    assert desk.said(run) == []


def test_a_working_directory_on_another_disk_has_its_trees_there(desk: Desk) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        project = Path(other, "project")
        project.mkdir()
        if project.stat().st_dev == desk.cluster.home.path.stat().st_dev:
            pytest.skip("there is one disk only")
        (project / "train.py").write_text("import os\nprint(os.getcwd()); open('out', 'w').write('x')")
        run = desk.submit(f"{PYTHON} train.py", workdir=str(project))
        (place,) = desk.run(run)
        assert os.stat(os.path.dirname(place)).st_dev == project.stat().st_dev
        assert (project / "out").read_text() == "x"
        desk.end()
        assert Path(place, "out").read_text() == "x"


def test_a_run_beside_one_that_changed_its_sources_has_them_as_submitted(desk: Desk) -> None:
    """Runs of one parent share a tree as long as nobody has changed the code in it."""
    desk.write(train_py="import os\nprint(open('conf.yaml').read())\nopen('conf.yaml', 'w').write('changed')",
               conf_yaml="as submitted")  # fmt: skip
    parent = desk.submit(f"{PYTHON} train.py")
    one, other = desk.submit("true", name="one"), desk.submit("true", name="other")
    for child in (one, other):
        desk.code.inherit(child.uid, parent.uid, parent.spec, 0.0)
    first = desk.code.place(one.uid, parent.uid, a_pod(one), parent.spec)
    assert desk.code.place(other.uid, parent.uid, a_pod(other), parent.spec) == first
    assert first.tree is not None
    (first.tree / "conf.yaml").write_text("changed")
    third = desk.submit("true", name="third")
    desk.code.inherit(third.uid, parent.uid, parent.spec, 0.0)
    own = desk.code.place(third.uid, parent.uid, a_pod(third), parent.spec)
    assert own.tree not in (None, first.tree)
    assert (own.tree / "conf.yaml").read_text() == "as submitted"
    again = replace(a_pod(third), attempt=1)
    assert CodeStore(desk.cluster.home).place(third.uid, parent.uid, again, parent.spec).tree == own.tree


def a_pod(run: Workload) -> Pod:
    return Pod(
        uid=f"{run.uid}-0-0", workload_uid=run.uid, attempt=0, index=0, node="here", phase=PodPhase.CREATED,
        grant=Grant(cpu_milli=1000), created_at=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["train.py", "-m train", "{project}/train.py", "-X faulthandler train.py"])
def test_what_was_edited_since_submission_does_not_reach_the_run(desk: Desk, command: str) -> None:
    desk.write(train_py=HELPED, helper_py="NAME = 'old'", conf_yaml="1")
    run = desk.submit(f"{PYTHON} {command.format(project=desk.project)}")
    desk.write(helper_py="NAME = 'new'", conf_yaml="2")
    (desk.project / "train.py").unlink()
    lines = desk.run(run)
    tree = desk.tree(run)
    assert lines == [f"old 1 {tree}"]
    assert desk.said(run) == [
        f"conf.yaml, helper.py, train.py were edited since submission; attempt 0 runs the code as submitted, in {tree}"
    ]
    # What it made lies where it always did, and nothing else of it is left.
    assert (desk.project / "out.txt").read_text() == "x"
    assert sorted(os.listdir(desk.project)) == ["conf.yaml", "helper.py", "out.txt"]
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
    first = desk.code.place(run.uid, run.uid, pods[0], run.spec)
    desk.write(train_py="print('new')")
    assert CodeStore(desk.cluster.home).place(run.uid, run.uid, pods[1], run.spec) == first
    desk.finish(run)
    assert [line.text for line in desk.cluster.logs(run.uid)] == [str(first.tree)] * 2


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
    desk.write(train_py="open('metrics.json', 'a').write('x')")
    (desk.project / "metrics.json").write_text("")
    run = desk.submit(f"{PYTHON} train.py")
    desk.run(run)
    desk.run(run)
    assert (desk.project / "metrics.json").read_text() == "xx"
    assert desk.said(run) == []


def test_runs_that_wait_for_each_other_add_to_the_file_that_is_there(desk: Desk) -> None:
    """A file that a run has written is no setting, but what all share, whenever they were submitted."""
    desk.write(train_py="import json\ntry: all = json.load(open('all.json'))\nexcept OSError: all = []\n"
    "json.dump([*all, len(all)], open('all.json', 'w'))")  # fmt: skip
    first = desk.submit(f"{PYTHON} train.py", name="first")
    desk.run(first)
    runs = [desk.submit(f"{PYTHON} train.py", name=f"r{number}") for number in range(3)]
    for run in runs:
        desk.attempt = 0
        desk.run(run)
    assert (desk.project / "all.json").read_text() == "[0, 1, 2, 3]"
    assert [desk.said(run) for run in runs] == [[], [], []]


@pytest.mark.parametrize("steps", range(6))
def test_settling_goes_on_after_a_kill_at_any_step(desk: Desk, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write(train_py="import os\nfor n in 'abc': open(n + '.txt', 'w').write(n)\nos.mkdir('d')\nopen('s.yaml', 'w')"
    ".write('2')", s_yaml="1")  # fmt: skip
    run = desk.submit(f"{PYTHON} train.py")
    desk.create(run)
    monkeypatch.setattr(CodeStore, "settle", lambda *_: None)
    desk.finish(run)
    monkeypatch.undo()
    left = steps
    real = os.rename

    def killed(one: str, other: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(one, other)

    monkeypatch.setattr(os, "rename", killed)
    with suppress(KeyboardInterrupt):
        desk.end()
    monkeypatch.undo()
    desk.end()
    assert [(desk.project / f"{n}.txt").read_text() for n in "abc"] == ["a", "b", "c"]
    assert (desk.project / "d").is_dir()
    assert (desk.project / "s.yaml").read_text() == "2"
    assert sorted(os.listdir(desk.project)) == ["a.txt", "b.txt", "c.txt", "d", "s.yaml", "train.py"]
    assert not any(path.is_symlink() for path in desk.project.iterdir())
    assert not list((desk.cluster.home.path / "trees").glob("*.json"))


def test_a_tree_that_was_half_made_is_made_anew(desk: Desk) -> None:
    desk.write(train_py="print('old')")
    run = desk.submit(f"{PYTHON} train.py")
    desk.write(train_py="print('new')")
    key = str(desk.code.tree_of(run.uid, run.uid, run.spec))
    for name in (key, f"{key}.part"):
        (desk.cluster.home.path / "trees" / name).mkdir(parents=True)
        (desk.cluster.home.path / "trees" / name / "train.py").write_text("print('half')")
    assert desk.run(run) == ["old"]


def test_a_state_directory_on_another_disk_gives_back_what_was_made(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write(train_py="import os\nos.mkdir('d')\nopen('d/x', 'w').write('x')\nopen('y', 'w').write('y')")
    run = desk.submit(f"{PYTHON} train.py")
    real = os.rename

    def other_disk(one: str, other: str) -> None:
        if "/home/" in one and "/project/" in other:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return real(one, other)

    monkeypatch.setattr(os, "rename", other_disk)
    monkeypatch.setattr(trees, "_exchange", lambda *_: False)
    desk.run(run)
    assert (desk.project / "d" / "x").read_text() == "x"
    assert sorted(os.listdir(desk.project)) == ["d", "train.py", "y"]


def test_without_a_snapshot_the_run_sees_what_is_there(desk: Desk) -> None:
    desk.write(train_py="print('old')")
    run = desk.submit(f"{PYTHON} train.py", snapshot=False)
    desk.write(train_py="print('new')")
    assert desk.run(run) == ["new"]
    assert desk.code.stored_states(run.uid)[0]["why"] == "the spec says `snapshot: false`"
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
    assert "is or holds a home directory" in desk.code.stored_states(home.uid)[0]["why"]
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setattr(snapshots, "MOST_BYTES", 5)
    large = desk.submit(f"{PYTHON} train.py", name="large")
    assert "put its data into .gitignore" in desk.code.stored_states(large.uid)[0]["why"]
    assert desk.run(large) == ["here"]


def test_large_files_and_large_directories_stay_where_they_are(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_FILE_BYTES", 1000)
    monkeypatch.setattr(snapshots, "MOST_IN_ONE", 3)
    desk.write(train_py="print(len(open('big.bin').read()), open('data/3').read())")
    (desk.project / "big.bin").write_text("x" * 1001)
    desk.write(**{f"data__{number}": str(number) for number in range(5)})
    run = desk.submit(f"{PYTHON} train.py")
    kept = desk.code.snapshot(desk.code.stored_states(run.uid)[0])
    assert kept is not None
    assert ([file.path for file in kept.files], kept.left_out) == (["train.py"], ("big.bin", "data/"))
    desk.write(train_py="print('new')")
    assert desk.run(run) == ["1001 3"]


def test_an_edit_of_a_source_in_a_large_directory_reaches_no_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_IN_ONE", 3)
    desk.write(train_py="from data import conf; print(conf.V, open('data/3').read())", data__conf_py="V = 1")
    desk.write(**{f"data__{number}": str(number) for number in range(5)})
    run = desk.submit(f"{PYTHON} train.py")
    kept = desk.code.snapshot(desk.code.stored_states(run.uid)[0])
    assert kept is not None
    assert ([file.path for file in kept.files], kept.left_out) == (["data/conf.py", "train.py"], ("data/",))
    desk.write(data__conf_py="V = 2", data__3="new")
    assert desk.run(run) == ["1 new"]


def test_an_edit_of_settings_is_one_of_code_and_one_of_a_spec_is_not(desk: Desk) -> None:
    desk.write(train_py="", conf_yaml="lr: 1", spec_yaml="name: a\nkind: Serving\n")
    run = desk.submit(f"{PYTHON} train.py")
    code = desk.code.newest(run.uid)
    desk.write(spec_yaml="name: b\nkind: Serving\n")
    assert (desk.code.name_now(run.spec), desk.code.edited_sources(run.uid, code, run.spec)) == (code, ())
    desk.write(conf_yaml="lr: 2")
    assert desk.code.name_now(run.spec) != code
    assert desk.code.edited_sources(run.uid, code, run.spec) == ("conf.yaml",)


def test_a_commit_and_what_differs_from_it_are_kept(desk: Desk) -> None:
    desk.write(train_py="print(1)\n")
    git = ["git", "-C", str(desk.project), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-qb", "trunk"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    clean = desk.code.stored_states(desk.submit("true", name="clean").uid)[0]["git"]
    desk.write(train_py="print(2)\n")
    dirty = desk.code.stored_states(desk.submit("true", name="dirty").uid)[0]["git"]
    assert (clean["branch"], clean["dirty"], clean["diff"]) == ("trunk", False, None)
    assert (dirty["commit"], dirty["dirty"]) == (clean["commit"], True)
    diff = desk.code.objects.get(dirty["diff"])
    assert diff is not None
    assert b"+print(2)" in diff


@pytest.mark.slow
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
    assert desk.agent._environments._inspections == []


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


def test_a_directory_with_too_many_files_is_told_of_beforehand(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk.project / "more.py").write_text("")
    wanted = Training(name="a", run="true")
    assert desk.cluster.prepare(wanted, desk.project).notes == ()
    monkeypatch.setattr(snapshots, "MOST_FILES", 0)
    (note,) = desk.cluster.prepare(wanted, desk.project).notes
    assert note.startswith(f"snapshot: the code is not kept, and edits reach the run: {desk.project} holds ")


def test_files_of_credentials_are_not_kept_and_named(desk: Desk) -> None:
    (desk.project / ".env").write_text("TOKEN=s3cr3t")
    found = snapshots.take(desk.project, None, snapshots.Index(desk.project / "none"), without=desk.cluster.home.path)
    assert ".env" in found.left_out
    assert ".env" not in [file.path for file in found.files]


def test_a_state_directory_is_no_project(desk: Desk) -> None:
    # Whoever opens and closes a database beside SQLite takes the locks of its own process on it away.
    home = desk.cluster.home.path
    index = snapshots.Index(home / "index.json")
    with pytest.raises(snapshots.Unfit, match="is the state directory of Fairlead"):
        snapshots.take(home, desk.code.objects, index, without=home)


def test_a_tree_of_an_ended_run_is_taken_for_the_next_one_with_all_that_changed(desk: Desk) -> None:
    desk.write(
        train_py="import os, helper, extra, conf\n"
        "print(helper.NAME, open('conf.yaml').read(), sorted(os.listdir('.')))\n"
        "open('helper.py', 'a').write('#'); open('new.txt', 'w').close(); os.makedirs('made/by/run', exist_ok=True)",
        helper_py="NAME = 'a'",
        extra_py="",
        conf__init_py="",
        conf_yaml="1",
    )
    for name in ("conf", "link", "gone"):
        (desk.project / name).mkdir(exist_ok=True)
    (desk.project / "conf" / "__init__.py").touch()
    first = desk.run(desk.submit(f"{PYTHON} train.py", name="first"))
    desk.end()
    (spare,) = (path for path in (desk.cluster.home.path / "trees").glob("spare-*") if path.is_dir())
    inode = (next(spare.rglob("extra.py"))).stat().st_ino
    # Of the same size and in the same second, as compiled files are compared by these.
    desk.write(helper_py="NAME = 'b'")
    (desk.project / "link").rmdir()
    (desk.project / "link").write_bytes(b"\0")
    (desk.project / "gone").rmdir()
    (desk.project / "conf" / "__init__.py").unlink()
    (desk.project / "conf.yaml").chmod(0o755)
    run = desk.submit(f"{PYTHON} train.py", name="second")
    desk.attempt = 0
    second = desk.run(run)
    assert not spare.exists()
    assert (desk.tree(run) / "extra.py").stat().st_ino == inode
    assert os.access(desk.tree(run) / "conf.yaml", os.X_OK)
    assert first[0].startswith("a 1 [")
    assert second[0].startswith("b 1 [")
    names = {"conf", "conf.yaml", "extra.py", "helper.py", "link", "made", "new.txt", "train.py"}
    assert {name for name in names | {"gone"} if f"'{name}'" in second[0]} == names
    desk.end()
    assert (desk.project / "helper.py").read_text() == "NAME = 'b'#"


@pytest.mark.parametrize("way", ["pth", "finder"])
def test_a_project_that_is_installed_as_editable_is_imported_as_submitted(desk: Desk, way: str) -> None:
    site = desk.project / ".venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (desk.project / ".venv" / "pyvenv.cfg").touch()
    if way == "pth":
        (site / "_own.pth").write_text(f"{desk.project}/src\nimport nothing\n")
    else:
        mapping = {"own": f"{desk.project}/src/own", "other": "/elsewhere/other"}
        (site / "__editable___own_finder.py").write_text(f"MAPPING: dict[str, str] = {mapping!r}\n")
    desk.write(scripts__train_py="import own\nprint(own.NAME)", src__own__x_py="")
    (desk.project / "src" / "own" / "__init__.py").write_text("NAME = 'old'")
    run = desk.submit(f"{PYTHON} scripts/train.py")
    (desk.project / "src" / "own" / "__init__.py").write_text("NAME = 'new'")
    assert desk.run(run) == ["old"]
