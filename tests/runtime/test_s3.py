"""Checkpoints on a real S3 server."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.checkpoint.directory import open_store
from fairlead.runtime.environment import Environment
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.session import Run
from tests.runtime.gang import Gang, read_events, read_report
from tests.s3 import S3

pytestmark = pytest.mark.slow

PLACE = "s3://models/runs/one"


@pytest.fixture
def open_run(tmp_path: Path) -> Callable[..., Run]:
    return lambda **given: Run(Environment(pod_dir=tmp_path / "pod", run_dir=tmp_path, checkpoint_to=PLACE, **given))


@pytest.fixture(autouse=True)
def pod_dir(tmp_path: Path) -> Path:
    (tmp_path / "pod").mkdir()
    return tmp_path / "pod"


@pytest.mark.torch
def test_state_is_saved_found_and_loaded_and_old_ones_go(s3: S3, open_run: Callable[..., Run], pod_dir: Path) -> None:
    import torch

    def objects(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = torch.nn.Linear(1000, 2000)
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "bag": {"seed": seed}}

    state = objects(1)
    with open_run(every_steps=1, keep=2) as run:
        assert run.resume(**state) == 0
        for step in range(4):
            state["optimizer"].zero_grad()
            state["model"](torch.randn(2, 1000)).sum().backward()
            state["optimizer"].step()
            run.checkpoint(step + 1)
            assert run._saver is not None
            run._saver.wait(60)
    assert open_store(PLACE, scratch=None).steps() == [3, 4]
    again = objects(2)
    with open_run() as run:
        assert run.resume(**again) == 4
    assert torch.equal(state["model"].weight, again["model"].weight)
    assert again["bag"] == {"seed": 1}
    # Nothing waits on the pod's disk any more.
    assert {path.name for path in pod_dir.iterdir()} == {"rank-0.json", "rank-0.events.jsonl"}


@pytest.mark.torch
def test_two_ranks_share_nothing_but_the_store(s3: S3, tmp_path: Path, pod_dir: Path) -> None:
    from tests.runtime import programs

    env = s3.environ
    with Gang(programs.train, 12, tmp_path, 0.0, 6, pod_dir=pod_dir, to=PLACE, env=env) as gang:
        gang.finish()
    assert open_store(PLACE, scratch=None).steps()[-1] == 12
    with Gang(programs.train, 14, tmp_path, pod_dir=pod_dir, to=PLACE, attempt=1, env=env) as gang:
        gang.finish()
        assert [read_report(pod_dir, rank)["resumed_step"] for rank in (0, 1)] == [12, 12]


@pytest.mark.torch
def test_upload_that_was_killed_half_way_does_not_count_and_is_cleaned_up(
    s3: S3, open_run: Callable[..., Run], tmp_path: Path
) -> None:
    from tests.runtime import programs

    def save(directory: Path) -> None:
        (directory / "a.txt").write_text("one")

    with open_run() as run:
        run.resume(load=lambda _: None)
        run.checkpoint(1, save=save, force=True)
    with Gang(
        programs.upload_half_and_die, "two", pod_dir=tmp_path / "b", to=PLACE, world_size=1, env=s3.environ
    ) as gang:
        assert gang.wait() == [-signal.SIGKILL]
    half = s3.directory / "models" / "runs" / "one" / "step-000000000002"
    assert (half / "rank-00000" / "files" / "a.txt").read_text() == "two"
    assert open_store(PLACE, scratch=None).steps() == [1]
    loaded = []
    with open_run() as run:
        assert run.resume(load=lambda directory: loaded.append((directory / "a.txt").read_text())) == 1
        run.checkpoint(3, save=save, force=True)
    assert loaded == ["one"]
    assert open_store(PLACE, scratch=None).steps() == [1, 3]
    assert not half.exists()


def test_changed_object_falls_back_to_the_one_before(s3: S3, open_run: Callable[..., Run], pod_dir: Path) -> None:
    with open_run() as run:
        run.resume(state={"value": 1})
        run.checkpoint(1, force=True)
        run.checkpoint(2, force=True)
    path = s3.directory / "models" / "runs" / "one" / "step-000000000002" / "rank-00000" / "objects.pickle"
    path.write_bytes(b"x" * path.stat().st_size)
    state = {"value": 0}
    with open_run() as run:
        assert run.resume(state=state) == 1
    assert state == {"value": 1}
    assert [kind for kind, _ in read_events(pod_dir)][-2:] == ["CheckpointDamaged", "Resumed"]


def test_server_that_is_down_fails_the_save_and_training_goes_on(
    s3: S3, open_run: Callable[..., Run], pod_dir: Path
) -> None:
    with open_run() as run:
        run.resume(state={"value": 1})
        assert run._saver is not None
        s3.stop()
        run.checkpoint(1, force=True)
        run._saver.wait(60)
        s3.start()
        run.checkpoint(2, force=True)
    assert [kind for kind, _ in read_events(pod_dir)] == ["CheckpointFailed", "CheckpointSaved"]
    assert f"a checkpoint cannot be read from {PLACE}" in read_events(pod_dir)[0][1]
    assert open_store(PLACE, scratch=None).steps() == [2]


def test_server_that_is_down_is_no_fresh_start(s3: S3, open_run: Callable[..., Run]) -> None:
    s3.stop()
    with open_run() as run, pytest.raises(StoreUnavailable, match="cannot be read from"):
        run.resume(state={})
