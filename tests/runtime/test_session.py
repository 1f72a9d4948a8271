"""The run of one rank, without torch: when it saves, what it loads, how it stops."""

import itertools
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fairlead.runtime import session
from fairlead.runtime.checkpoint import directory, randomness
from fairlead.runtime.checkpoint.manifest import FORMAT, checksum
from fairlead.runtime.checkpoint.problems import at_the_root, clause, may_pass
from fairlead.runtime.checkpoint.saving import Saver
from fairlead.runtime.environment import Environment
from fairlead.runtime.errors import CheckpointMismatch, LossNotFinite, Misuse, StoreUnavailable
from fairlead.runtime.session import Run, Stopped, run
from tests.runtime.gang import read_events, read_report

COUNTER = Path(__file__).with_name("counter.py")


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def open_run(tmp_path: Path, to: Path) -> Callable[..., Run]:
    """Makes runs that report to the same place."""

    def make(**given: Any) -> Run:
        defaults: dict[str, Any] = {"pod_dir": tmp_path, "run_dir": tmp_path, "checkpoint_to": str(to)}
        return Run(Environment(**{**defaults, "run_uid": "uid", **given}))

    return make


def count(opened: Run, steps: int, *, save_at: tuple[int, ...] = ()) -> tuple[int, dict[str, Any]]:
    """Count to a number of steps; where it started, and the state at the end."""
    state = {"count": 0}
    with opened as run:
        start = run.resume(state=state)
        for step in range(start, steps):
            state["count"] += 1
            run.progress(step + 1, total=steps)
            run.checkpoint(step + 1, force=step + 1 in save_at)
            assert run._saver is None or run._saver.wait(10)
    return start, state


def steps_in(to: Path) -> list[int]:
    return directory.Directory(to).steps()


def kinds(directory: Path) -> list[str]:
    return [kind for kind, _ in read_events(directory)]


def test_first_start_begins_at_nothing_and_the_last_step_is_saved(
    open_run: Callable[..., Run], to: Path, tmp_path: Path
) -> None:
    assert count(open_run(), 5) == (0, {"count": 5})
    assert steps_in(to) == [5]
    assert read_report(tmp_path)["checkpoint_step"] == 5
    assert count(open_run(), 8) == (5, {"count": 8})
    assert read_report(tmp_path)["resumed_step"] == 5
    assert kinds(tmp_path) == ["CheckpointSaved", "Resumed", "CheckpointSaved"]


def test_every_so_many_steps_and_the_newest_are_kept(open_run: Callable[..., Run], to: Path) -> None:
    count(open_run(every_steps=3, keep=100), 11)
    saved = [0, *steps_in(to)]
    assert saved[-1] == 11
    assert all(1 <= later - earlier <= 3 for earlier, later in itertools.pairwise(saved))
    count(open_run(keep=2), 14, save_at=(12, 13))
    assert steps_in(to) == [13, 14]


def test_every_so_many_seconds(open_run: Callable[..., Run], to: Path) -> None:
    count(open_run(every_s=1e-6, keep=100), 4)
    assert steps_in(to) == [1, 2, 3, 4]
    count(open_run(every_s=3600.0, keep=100), 6)
    assert steps_in(to) == [1, 2, 3, 4, 6]


def test_force_saves_now(open_run: Callable[..., Run], to: Path) -> None:
    with open_run() as run:
        run.resume(state={})
        run.checkpoint(1)
        run.checkpoint(2, force=True)
        run.checkpoint(3, force=True)
        assert run._saver is not None
        run._saver.wait(60)
        assert steps_in(to) == [2, 3]


def test_random_generators_go_on_where_they_were(open_run: Callable[..., Run]) -> None:
    with open_run() as run:
        run.resume(state={})
        run.checkpoint(1, force=True)
        expected = random.random()
    random.seed(0)
    with open_run() as run:
        assert run.resume(state={}) == 1
        assert random.random() == expected


def test_damaged_newest_falls_back_to_the_one_before(
    open_run: Callable[..., Run], to: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count(open_run(), 6, save_at=(2, 4))
    path = to / "step-000000000006" / "rank-00000" / "objects.pickle"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    path = to / "step-000000000004" / "rank-00000" / "random.json"
    size = path.stat().st_size
    path.write_bytes(b"short")
    assert count(open_run(), 7, save_at=(3, 6)) == (2, {"count": 7})
    assert [message for kind, message in read_events(tmp_path) if kind == "CheckpointDamaged"] == [
        "The checkpoint of step 6 cannot be used: rank-00000/objects.pickle differs from what was written; "
        "trying the one before.",
        f"The checkpoint of step 4 cannot be used: rank-00000/random.json has 5 bytes where {size} were written; "
        "trying the one before.",
    ]
    assert "cannot be used" in capsys.readouterr().err
    # The damaged ones are gone once a newer one is complete; step 6 was saved again.
    assert steps_in(to) == [3, 6, 7]
    assert count(open_run(), 7) == (7, {"count": 7})


def test_nothing_but_damaged_ones_starts_over(open_run: Callable[..., Run], to: Path) -> None:
    count(open_run(), 3)
    (to / "step-000000000003" / "MANIFEST.json").write_text("{}")
    assert count(open_run(), 5) == (0, {"count": 5})
    assert steps_in(to) == [5]


def test_checkpoints_that_were_saved_and_are_gone_are_told_before_a_start_from_nothing(
    open_run: Callable[..., Run], to: Path, tmp_path: Path
) -> None:
    count(open_run(), 6, save_at=(3,))
    shutil.rmtree(to / "step-000000000006")
    assert count(open_run(attempt=1, checkpoint_step=6), 7)[0] == 3
    told = [message for kind, message in read_events(tmp_path) if kind == "CheckpointsGone"]
    assert told[0].startswith(f"The checkpoint of step 6 is gone: there is none in {to} newer than that of step 3.")
    assert "goes on after step 3" in told[0]
    to.rename(tmp_path / "moved")
    assert count(open_run(attempt=2, checkpoint_step=7), 8)[0] == 0
    told = [message for kind, message in read_events(tmp_path) if kind == "CheckpointsGone"]
    assert f"there is none in {to} at all. Training goes on from the beginning." in told[1]


def test_nothing_is_told_where_nothing_is_missing(open_run: Callable[..., Run], to: Path, tmp_path: Path) -> None:
    count(open_run(), 3)
    count(open_run(attempt=1, checkpoint_step=3), 4)
    (to / "step-000000000004" / "MANIFEST.json").write_text("{}")  # told as damaged
    count(open_run(attempt=2, checkpoint_step=4), 5)
    assert not {"CheckpointsGone", "ForeignCheckpoint"} & set(kinds(tmp_path))


def test_a_checkpoint_that_another_run_saved_is_told(open_run: Callable[..., Run], to: Path, tmp_path: Path) -> None:
    count(open_run(run_uid="other"), 3)
    assert count(open_run(attempt=1), 4)[0] == 3
    (told,) = [message for kind, message in read_events(tmp_path) if kind == "ForeignCheckpoint"]
    assert told == f"The checkpoint of step 3 in {to} was saved by another run, other."


def test_a_checkpoint_of_a_newer_version_is_an_error_and_no_fresh_start(open_run: Callable[..., Run], to: Path) -> None:
    count(open_run(), 3)
    manifest = to / "step-000000000003" / "MANIFEST.json"
    body = {**json.loads(manifest.read_text()), "format": FORMAT + 1}
    body["checksum"] = checksum({name: value for name, value in body.items() if name != "checksum"})
    manifest.write_text(json.dumps(body))
    with open_run() as run, pytest.raises(StoreUnavailable, match="of a newer version of Fairlead, and this one reads"):
        run.resume(state={})
    assert steps_in(to) == [3]


def test_directory_without_manifest_does_not_count_and_is_removed_by_a_success(
    open_run: Callable[..., Run], to: Path
) -> None:
    count(open_run(), 3)
    (to / "step-000000000009").mkdir()
    (to / "step-000000000009" / "weights").write_text("half")
    (to / ".partial-step-000000000010-0-aa-1").mkdir()
    (to / "notes").mkdir()
    assert count(open_run(), 4)[0] == 3
    assert sorted(path.name for path in to.iterdir()) == ["notes", "step-000000000003", "step-000000000004"]


def test_sound_checkpoints_of_another_program_are_an_error_and_stay(open_run: Callable[..., Run], to: Path) -> None:
    count(open_run(), 3)
    with open_run() as run, pytest.raises(CheckpointMismatch, match=r"none can be loaded.*it holds state, which"):
        run.resume(other={})
    assert steps_in(to) == [3]


def test_place_that_cannot_be_read_is_an_error_and_no_fresh_start(open_run: Callable[..., Run], to: Path) -> None:
    to.write_text("a file")
    with open_run() as run, pytest.raises(StoreUnavailable, match="cannot be read from"):
        run.resume(state={})


def test_stop_notice_saves_this_step_and_ends_with_143(open_run: Callable[..., Run], to: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped, open_run() as run:
        run.resume(state={"count": 0})
        run.progress(1)
        run.checkpoint(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.stop_requested
        run.progress(2)
        run.checkpoint(2)
    assert stopped.value.code == 143
    assert (stopped.value.step, stopped.value.saved) == (2, True)
    assert steps_in(to) == [2]
    assert read_report(tmp_path)["stopped_step"] == 2
    assert kinds(tmp_path) == ["StopNotice", "CheckpointSaved"]
    assert signal.getsignal(signal.SIGTERM) is before


FORKING = """
import multiprocessing, signal, time
import fairlead
with fairlead.run() as run:
    context = multiprocessing.get_context("fork")
    for _ in range(20):
        worker = context.Process(target=time.sleep, args=(300,))
        worker.start()
        worker.terminate()
        worker.join(30)
        assert worker.exitcode == -signal.SIGTERM, worker.exitcode
    with context.Pool(2) as pool:
        pool.apply_async(time.sleep, (300,))
        time.sleep(0.1)
    signal.raise_signal(signal.SIGTERM)
    print(run.stop_requested)
"""


def test_forked_workers_end_at_sigterm_as_without_a_run_and_the_run_still_hears_it() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_stop_notice_right_after_a_save_needs_no_second_one(open_run: Callable[..., Run], tmp_path: Path) -> None:
    with pytest.raises(Stopped), open_run() as run:
        run.resume(state={})
        run.checkpoint(1, force=True)
        os.kill(os.getpid(), signal.SIGTERM)
        run.checkpoint(1)
    assert read_report(tmp_path)["stopped_step"] == 1
    assert kinds(tmp_path).count("CheckpointSaved") == 1


def test_stop_notice_whose_save_fails_says_so_and_still_ends_with_143(
    open_run: Callable[..., Run], to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(Stopped) as stopped, open_run() as run:
        run.resume(state={})
        monkeypatch.setattr(directory.Directory, "commit", fail)
        os.kill(os.getpid(), signal.SIGTERM)
        run.checkpoint(1)
    assert (stopped.value.code, stopped.value.saved) == (143, False)
    assert read_report(tmp_path).get("stopped_step") is None
    assert read_events(tmp_path)[-1] == (
        "CheckpointFailed",
        f"The checkpoint of step 1 could not be saved in {to}: No space left on device; the program ends without it.",
    )


def test_stop_notice_without_a_place_ends_with_143(open_run: Callable[..., Run], tmp_path: Path) -> None:
    with pytest.raises(Stopped) as stopped, open_run(checkpoint_to=None) as run:
        assert run.resume(state={}) == 0
        os.kill(os.getpid(), signal.SIGTERM)
        run.checkpoint(1)
    assert (stopped.value.code, stopped.value.saved) == (143, False)
    assert read_report(tmp_path).get("stopped_step") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="a full disk needs a mount, and that needs root")
def test_full_disk_fails_the_save_and_training_goes_on(tmp_path: Path) -> None:
    disk, pod_dir = tmp_path / "disk", tmp_path / "pod"
    disk.mkdir()
    pod_dir.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False, timeout=60).returncode != 0:
        pytest.skip("a full disk needs a mount, and this machine refuses one")
    try:
        state: dict[str, Any] = {"data": b""}
        with Run(Environment(pod_dir=pod_dir, run_dir=pod_dir, checkpoint_to=str(disk / "c"), keep=1)) as run:
            run.resume(state=state)
            for step in range(1, 9):
                state["data"] = bytes(2_000_000 if step in (3, 4, 5) else 100_000)
                run.checkpoint(step, force=step % 2 == 0)
                assert run._saver is not None
                run._saver.wait(60)
                if step == 5:
                    assert [path.name for path in (disk / "c").iterdir()] == ["step-000000000002"]
        assert kinds(pod_dir) == ["CheckpointSaved", "CheckpointFailed", "CheckpointSaved", "CheckpointSaved"]
        assert "No space left on device" in read_events(pod_dir)[1][1]
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=60)


def test_failure_in_the_program_waits_for_the_save_under_way_and_makes_no_new_one(
    open_run: Callable[..., Run], to: Path
) -> None:
    with pytest.raises(ZeroDivisionError), open_run() as run:
        run.resume(state={})
        run.checkpoint(1, force=True)
        run.checkpoint(2)
        _ = 1 / 0
    assert steps_in(to) == [1]


def test_program_may_write_its_own_files(open_run: Callable[..., Run]) -> None:
    state = {"value": 0}

    def load(directory: Path) -> None:
        state["value"] = int((directory / "deep" / "value.txt").read_text())

    def save(directory: Path) -> None:
        (directory / "deep").mkdir()
        (directory / "deep" / "value.txt").write_text(str(state["value"]))

    for goal in (3, 5):
        with open_run() as run:
            for step in range(run.resume(load=load), goal):
                state["value"] += 10
                run.checkpoint(step + 1, save=save, force=True)
        state["value"] = 0
    with open_run() as run:
        assert run.resume(load=load) == 5
    assert state["value"] == 50


def test_save_function_that_fails_costs_the_checkpoint_only(
    open_run: Callable[..., Run], to: Path, tmp_path: Path
) -> None:
    def save(directory: Path) -> None:
        raise ValueError("not today")

    with open_run() as run:
        run.resume(load=lambda _: None)
        run.checkpoint(1, save=save, force=True)
    assert {message for kind, message in read_events(tmp_path) if kind == "CheckpointFailed"} == {
        f"The checkpoint of step 1 could not be saved in {to}: ValueError: not today; {then}."
        for then in ("the training continues", "the program ends without it")
    }


def test_last_save_waits_for_room_and_is_tried_again(
    open_run: Callable[..., Run], to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, tries = directory.Directory.commit, []

    def fail_twice(self: directory.Directory, *given: Any) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(28, "No space left on device")
        commit(self, *given)

    monkeypatch.setattr(session, "LAST_TRIES_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(directory.Directory, "commit", fail_twice)
    with open_run() as run:
        run.resume(state={})
        run.checkpoint(7)
    assert steps_in(to) == [7]
    failed = [message for kind, message in read_events(tmp_path) if kind == "CheckpointFailed"]
    told = f"The checkpoint of step 7 could not be saved in {to}: No space left on device; "
    assert failed == [f"{told}it is tried again in 0.01 s."] * 2
    report = read_report(tmp_path)
    assert (report["saves_failed"], report["save_failed_step"], report["checkpoint_step"]) == (0, None, 7)


def test_last_save_that_cannot_succeed_is_given_up_and_reported(
    open_run: Callable[..., Run], to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(session, "LAST_TRIES_S", (0.01,))
    with open_run() as run:
        run.resume(state={})
        run.checkpoint(5, force=True)
        assert run._saver is not None
        run._saver.wait(60)
        monkeypatch.setattr(directory.Directory, "commit", fail)
        run.checkpoint(7)
    report = read_report(tmp_path)
    assert (report["saves_failed"], report["save_failed_step"], report["checkpoint_step"]) == (2, 7, 5)
    assert report["save_problem"] == f"No space left on device in {to}"


def test_first_call_of_checkpoint_is_reported(open_run: Callable[..., Run], tmp_path: Path) -> None:
    with open_run() as run:
        run.resume(state={})
        run.progress(1)
        assert "saves_failed" not in read_report(tmp_path)
        run.checkpoint(1)
        assert read_report(tmp_path)["saves_failed"] == 0


def test_an_error_that_hides_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598")
    assert at_the_root(hidden, tmp_path) is hidden

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    found = at_the_root(hidden, tmp_path)
    assert found is not None
    assert (clause(found), may_pass(found)) == ("No space left on device", True)
    assert list(tmp_path.iterdir()) == []


def test_object_with_state_dict_is_asked_for_it(open_run: Callable[..., Run]) -> None:
    class Loader:
        position = 0

        def state_dict(self) -> dict[str, int]:
            return {"position": self.position}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.position = state["position"]

    loader = Loader()
    with open_run() as run:
        run.resume(loader=loader, nothing=None)
        loader.position = 17
        run.checkpoint(1)
    loader = Loader()
    with open_run() as run:
        assert run.resume(loader=loader) == 1
    assert loader.position == 17


def test_misuse_is_a_sentence(open_run: Callable[..., Run]) -> None:
    with pytest.raises(Misuse, match="not open"):
        open_run().progress(1)
    with open_run() as run:
        with pytest.raises(Misuse, match="already open"):
            open_run().__enter__()
        with pytest.raises(Misuse, match=r"call resume\(\.\.\.\) first"):
            run.checkpoint(1)
        with pytest.raises(Misuse, match="one of the two"):
            run.resume()
        with pytest.raises(Misuse, match="weights is int, which cannot be saved"):
            run.resume(weights=3)
        run.resume(state={})
        with pytest.raises(Misuse, match="called twice"):
            run.resume(state={})
    with open_run() as run:
        run.resume(load=lambda _: None)
        with pytest.raises(Misuse, match=r"give run\.checkpoint"):
            run.checkpoint(1)


def test_ranks_that_cannot_talk_are_told_how(open_run: Callable[..., Run]) -> None:
    with open_run(world_size=2) as run, pytest.raises(Misuse, match="init_process_group"):
        run.resume(state={})


def test_plain_python_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FAIRLEAD_")]:
        monkeypatch.delenv(name)
    with run(checkpoint_to=tmp_path, checkpoint_every_steps=2) as session:
        assert (session.rank, session.world_size, session.local_rank, session.attempt) == (0, 1, 0, 0)
        assert session.resume(state={}) == 0
        session.checkpoint(2)
    assert steps_in(tmp_path) == [2]


def test_program_without_torch_loads_neither_torch_nor_fsspec(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    result = subprocess.run(
        [sys.executable, str(COUNTER), "3", "0"],
        env={**environ, "FAIRLEAD_CHECKPOINT_TO": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout == "start 0\nend 3 torch False fsspec False\n"
    assert "fairlead: Saved step 3" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows who catches a signal")
def test_a_rank_shows_its_stacks_on_request_where_its_interpreter_was_started_without_the_hook(tmp_path: Path) -> None:
    code = "import fairlead, os\nwith fairlead.run():\n    os.kill(os.getpid(), 45)\n"
    into = tmp_path / "stacks"
    into.touch()
    environ = {**os.environ, "FAIRLEAD_STACKS": str(into)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60)
    assert "most recent call first" in into.read_text()


def test_random_state_survives_pickling() -> None:
    state = pickle.loads(pickle.dumps(randomness.capture()))
    expected = random.random()
    randomness.restore(state)
    assert random.random() == expected


def test_a_chosen_interval_is_told_and_goes_on_with_the_run(open_run: Callable[..., Run], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), open_run(every_auto=True) as run:
        run.resume(state={})
        assert "checkpoint_interval_s" not in read_report(tmp_path)
        run.checkpoint(3, force=True)
        assert run._saver is not None
        run._saver.wait(60)
        assert read_report(tmp_path)["checkpoint_interval_s"] >= 30
        assert "none was seen" in read_report(tmp_path)["checkpoint_interval_why"]
        run.checkpoint(4, force=True)
        run._saver.wait(60)
        raise RuntimeError("an accident")
    with open_run(every_auto=True, attempt=1) as run:
        assert run.resume(state={}) == 4
        assert "1 seen" in read_report(tmp_path)["checkpoint_interval_why"]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_ends_the_program_with_its_step(open_run: Callable[..., Run], loss: float) -> None:
    with pytest.raises(LossNotFinite, match=f"the loss is not finite at step 7: {loss}$"), open_run() as run:
        run.progress(6, loss=1.0)
        run.progress(7, loss=loss)


def test_a_loss_that_is_not_finite_may_be_let_pass(open_run: Callable[..., Run]) -> None:
    with open_run(terminate_on_nan=False) as run:
        run.progress(7, loss=float("nan"))
        run.progress(8, loss=1.0)


class OnDevice:
    """A tensor that is read at most as often as reports are written."""

    def __init__(self, value: float) -> None:
        self.shape = ()
        self.value = value

    def __float__(self) -> float:
        return self.value


def test_no_state_is_saved_of_a_loss_that_is_read_late(open_run: Callable[..., Run], to: Path) -> None:
    def train() -> None:
        with open_run() as run:
            run.resume(state={})
            run.progress(1, loss=OnDevice(1.0))
            run.checkpoint(1)
            run.progress(2, loss=OnDevice(float("nan")))  # too soon to be read
            run.checkpoint(2, force=True)

    with pytest.raises(LossNotFinite, match="at step 2"):
        train()
    assert steps_in(to) == []


def test_a_save_under_way_is_ended_before_a_program_whose_last_loss_was_not_finite(
    open_run: Callable[..., Run], to: Path
) -> None:
    def slowly(*arguments: Any) -> None:
        time.sleep(0.5)
        made(*arguments)

    def train() -> None:
        with open_run() as run:
            run.resume(state={})
            run.progress(1, loss=OnDevice(1.0))
            run.checkpoint(1, force=True)
            run.progress(2, loss=OnDevice(float("nan")))

    made = Saver._make
    with patch.object(Saver, "_make", slowly), pytest.raises(LossNotFinite, match="at step 2"):
        train()
    assert steps_in(to) == [1]


def test_the_last_loss_of_a_program_is_read_before_what_it_ends_with_is_saved(
    open_run: Callable[..., Run], to: Path
) -> None:
    def train() -> None:
        with open_run() as run:
            run.resume(state={})
            run.progress(1, loss=OnDevice(1.0))
            run.checkpoint(1)
            run.progress(2, loss=OnDevice(float("nan")))
            run.checkpoint(2)

    with pytest.raises(LossNotFinite, match="at step 2"):
        train()
    assert steps_in(to) == []


def test_the_time_that_a_program_waits_for_data_and_for_saves_is_in_its_report(
    open_run: Callable[..., Run], tmp_path: Path
) -> None:
    def loader() -> Any:
        for batch in range(3):
            time.sleep(0.02)
            yield batch

    with open_run() as run:
        run.resume(state={})
        assert list(run.batches(loader())) == [0, 1, 2]
        run.checkpoint(1, force=True)
        run._reporter.fact(step=1)
        report = read_report(tmp_path)
        assert 0.06 <= report["loading_s"] < 10
        assert 0 < report["saving_s"] < 10
