"""The place of the checkpoints, tried before the program starts."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.cluster.preflight import place_problem, pod_place_problem
from fairlead.runtime import trial
from fairlead.specs.training import Checkpoint, Training
from tests.disks import NEEDS_ROOT, WHY, fill, small_disk
from tests.s3 import S3

BY = (sys.executable, trial.__file__)


def problem_of(to: str, workdir: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    spec = Training(name="net", run=f"{sys.executable} train.py", checkpoint=Checkpoint(to=to))
    return place_problem(spec, workdir, environ)


def test_a_directory_that_is_there_or_can_be_made_is_well_and_left_as_it_was(tmp_path: Path) -> None:
    assert problem_of("here/and/there", tmp_path) is None
    assert problem_of(str(tmp_path), Path("/")) is None
    assert problem_of(f"file://{tmp_path}/x", Path("/")) is None
    assert list(tmp_path.iterdir()) == []


def test_pods_that_try_a_volume_at_the_same_time_do_not_take_each_others_files_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the pods of a cluster all processes that try have the same id."""
    write, found = os.write, list[OSError | None]()

    def write_after_another(fd: int, data: bytes) -> int:
        if not found:
            found.append(None)
            found[0] = trial.directory_problem(str(tmp_path))
        return write(fd, data)

    monkeypatch.setattr(os, "write", write_after_another)
    assert trial.directory_problem(str(tmp_path)) is None
    assert found == [None]
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_told_with_what_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = problem_of("file/checkpoints", tmp_path)
    assert found == (
        f"'file/checkpoints' cannot be created: {tmp_path / 'file'}: Not a directory. Fix that, or name another "
        "directory"
    )


@pytest.mark.skipif(NEEDS_ROOT, reason=WHY)
def test_a_directory_on_a_full_disk_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as mounted:
        if not mounted:
            pytest.skip(WHY)
        fill(tmp_path / "disk")
        found = problem_of("disk", tmp_path)
        assert found is not None
        assert f"cannot be written to: {tmp_path / 'disk'}: No space left on device" in found


def test_a_scheme_that_nothing_serves_is_told(tmp_path: Path) -> None:
    found = problem_of("s4://bucket/x", tmp_path)
    assert found is not None
    assert "checkpoints cannot go to 's4://bucket/x': Protocol not known: s4" in found


def test_a_store_whose_package_only_the_program_may_have_is_not_judged_by_another_python() -> None:
    missing = (sys.executable, "-c", "print('checkpoints at s3:// need fsspec'); raise SystemExit(3)")
    assert trial.store_problem("s3://b", missing, os.environ, is_its_own=False) is None
    assert trial.store_problem("s3://b", missing, os.environ, is_its_own=True) == "checkpoints at s3:// need fsspec"


def test_a_store_that_does_not_answer_is_told_in_time() -> None:
    hangs = (sys.executable, "-c", "import time; time.sleep(60)")
    found = trial.store_problem("s3://b", hangs, os.environ, is_its_own=True, within_s=0.3)
    assert found == "s3://b does not answer within 0.3 s"


@pytest.mark.slow
def test_a_bucket_is_tried_and_what_is_wrong_with_it_told(s3: S3, tmp_path: Path) -> None:
    environ = {**os.environ, **s3.environ}
    assert problem_of("s3://models/runs", tmp_path, environ) is None
    assert not [path for path in s3.directory.rglob("*") if ".fairlead-trial" in path.name]
    found = problem_of("s3://nowhere/runs", tmp_path, environ)
    assert found is not None
    assert "nothing can be written to s3://nowhere/runs: there is no such bucket" in found
    refused = problem_of("s3://models/runs", tmp_path, {**environ, "AWS_SECRET_ACCESS_KEY": "wrong"})
    assert refused is not None
    assert "nothing can be written to s3://models/runs" in refused


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("https://host/x", "https:// can only be read"),
        ("memory://x", "is gone with the process"),
        ("runs", "is relative"),
    ],
)
def test_what_pods_can_never_keep_checkpoints_in_is_told_by_its_words(to: str, why: str) -> None:
    found = pod_place_problem(Training(name="net", run="python train.py", checkpoint=Checkpoint(to=to)))
    assert found is not None
    assert why in found
    assert pod_place_problem(Training(name="net", run="x", checkpoint=Checkpoint(to="s3://b/x"))) is None
    assert pod_place_problem(Training(name="net", run="x", checkpoint=Checkpoint(to="/data"))) is None
