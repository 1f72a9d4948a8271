"""Which directory goes along with a run."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.cluster.kubernetes.client import workdir_upload as luggage
from fairlead.cluster.kubernetes.client.workdir_upload import choose
from fairlead.cluster.kubernetes.manifests import workdir
from fairlead.errors import Conflict, InvalidSpec
from fairlead.specs.overlay import overlay
from fairlead.specs.training import Checkpoint
from tests.kubernetes.builders import a_training

IMAGE = "python:3.12-slim"
RUN = "python src/train.py"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a spec file, a program below, and what git is not to see."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print(1)\n")
    (tmp_path / "train.yaml").write_text("name: train\n")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / "weights.bin").write_bytes(b"0" * 100)
    return tmp_path


def test_a_directory_that_is_given_goes_along_relative_to_the_file(project: Path) -> None:
    found = choose(a_training(image=IMAGE, workdir="src"), project)
    assert found.directory == project / "src"
    assert found.spec.workdir == "src"
    assert found.sentence is not None
    assert found.sentence.startswith(f"Taking along 1 file of {project / 'src'}, ")
    assert choose(a_training(image=IMAGE, workdir=str(project / "src")), Path("/")).directory == project / "src"


def test_what_git_ignores_stays(project: Path) -> None:
    found = choose(a_training(image=IMAGE, workdir="."), project)
    assert found.note is not None
    assert found.note.startswith("3 files of ")


def test_an_image_has_its_own_program(project: Path) -> None:
    found = choose(a_training(image=IMAGE), project)
    assert (found.directory, found.spec.workdir, found.note) == (None, None, None)


def test_without_an_image_the_directory_of_the_file_goes_along(project: Path) -> None:
    found = choose(a_training(run=RUN), project)
    assert (found.directory, found.spec.workdir) == (project, ".")


def test_an_absolute_path_that_is_not_here_is_one_of_the_image_and_that_is_said(project: Path) -> None:
    found = choose(a_training(image=IMAGE, workdir="/opt/nowhere"), project)
    assert (found.directory, found.spec.workdir) == (None, "/opt/nowhere")
    assert found.note == "/opt/nowhere does not exist here, so it is taken as a directory of the image"
    with pytest.raises(InvalidSpec, match="there is no directory /opt/nowhere"):
        choose(a_training(workdir="/opt/nowhere"), project)


def test_a_relative_path_that_is_not_here_is_a_mistake(project: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"there is no directory .*/scr\. Correct `workdir`"):
        choose(a_training(image=IMAGE, workdir="scr"), project)


CLAIM = {"name": "team", "persistentVolumeClaim": {"claimName": "team"}}


def mounted(volume: Mapping[str, object], **mount: object) -> dict[str, object]:
    """A spec's way to have a volume at /team."""
    mounts = [{"name": volume["name"], "mountPath": "/team", **mount}]
    return {"spec": {"volumes": [volume], "containers": [{"name": "ranks", "volumeMounts": mounts}]}}


@pytest.fixture
def large(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, when no more than ten bytes may go through the API."""
    monkeypatch.setattr(workdir, "MOST_BYTES", 10)
    return project


def test_what_is_too_large_for_the_api_goes_where_checkpoints_go(large: Path) -> None:
    found = choose(a_training(run=RUN, checkpoint=Checkpoint(to="s3://bucket/runs/")), large)
    assert found.sentence == f"Taking along 3 files of {large}, 27 B, by way of s3://bucket/runs."
    spec = a_training(run=RUN, checkpoint=Checkpoint(to="/team/runs"), kubernetes=overlay(mounted(CLAIM)))
    assert choose(spec, large).sentence == (
        f"Taking along 3 files of {large}, 27 B, by way of the volume `team` at /team/runs."
    )


@pytest.mark.parametrize(
    ("to", "pod"),
    [
        (None, mounted(CLAIM)),
        ("/elsewhere", mounted(CLAIM)),
        ("/teammates", mounted(CLAIM)),
        ("/team", mounted(CLAIM, readOnly=True)),
        ("/team", mounted({"name": "team", "nfs": {"server": "files", "path": "/", "readOnly": True}})),
        ("/team", mounted({"name": "team", "emptyDir": {}})),
    ],
    ids=["no place", "no volume", "beside it", "read only mount", "read only volume", "gone with its pod"],
)
def test_without_a_lasting_place_it_is_refused_with_both_numbers(
    large: Path, to: str | None, pod: dict[str, object]
) -> None:
    spec = a_training(checkpoint=Checkpoint(to=to), kubernetes=overlay(pod))
    said = r"27 B in 3 files, the largest train\.yaml with 12 B; .* 10 B when packed.* 8 GiB.* give `checkpoint\.to`"
    with pytest.raises(Conflict, match=said):
        choose(spec, large)


def test_what_is_too_large_for_every_way_is_refused_with_both_numbers(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(luggage, "MOST_STORED_BYTES", 20)
    with pytest.raises(Conflict, match=r"is 27 B in 3 files, .*; at most 20 B go along"):
        choose(a_training(run=RUN, checkpoint=Checkpoint(to="s3://bucket/runs")), large)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python train.py", r"no file 'train\.py' in .* \(did you mean src/train\.py\?\)"),
        ("python weights.bin", "weights.bin does not go along: a .gitignore leaves it out"),
        ("python ../other.py", "is outside of"),
        ("python -m src.trian", r"no module 'src\.trian': .* has no 'trian' \(did you mean train\?\)"),
    ],
)
def test_a_program_that_does_not_go_along_is_told_before_anything_is_sent(
    project: Path, command: str, says: str
) -> None:
    (project / "src" / "__init__.py").touch()
    with pytest.raises(InvalidSpec, match=says):
        choose(a_training(run=command), project)
    # An image may have it by itself.
    note = choose(a_training(image=IMAGE, run=command, workdir="."), project).note
    assert note is not None
    assert note.endswith("so the image must contain it")


@pytest.mark.parametrize(
    "command", ["python src", "python /opt/train.py", "cd src && python train.py", "python -m torch"]
)
def test_what_only_the_image_can_tell_is_let_be(project: Path, command: str) -> None:
    note = choose(a_training(run=command), project).note
    assert note is not None
    assert note.endswith("are taken along")


def test_a_directory_that_goes_along_cannot_be_seen_live(project: Path) -> None:
    with pytest.raises(Conflict, match=r"snapshot: false was asked for, but the files of .* as they are at submission"):
        choose(a_training(run=RUN, snapshot=False), project)
    assert choose(a_training(image=IMAGE, snapshot=False), project).directory is None


def test_files_of_credentials_stay_and_are_named(project: Path) -> None:
    (project / ".env").write_text("TOKEN=s3cr3t")
    (project / "src" / "tls.pem").write_text("s3cr3t")
    found = choose(a_training(image=IMAGE, workdir="."), project)
    said = "left out, as such files hold credentials: .env, src/tls.pem; a line `!NAME` in .fairleadignore takes one"
    assert said in (found.sentence or "")
    assert said in (found.note or "")
    archive = workdir.pack(project)
    assert archive is not None
    assert archive.num_files == 3
    (project / ".fairleadignore").write_text("!.env\n")
    again = workdir.pack(project)
    assert again is not None
    assert again.num_files == 5


@pytest.mark.parametrize("way", ["the file's directory", "a workdir", "the root"])
def test_a_home_directory_is_not_uploaded(way: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    specs = {
        "the file's directory": a_training(run=RUN),
        "a workdir": a_training(image=IMAGE, workdir=str(project)),
        "the root": a_training(image=IMAGE, workdir="/"),
    }
    with pytest.raises(Conflict, match="is or holds a home directory; give the run a directory of its own"):
        choose(specs[way], project)
