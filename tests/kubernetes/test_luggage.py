"""Which directory goes along with a run."""

from pathlib import Path

import pytest

from fairlead.cluster.kubernetes.people.luggage import choose
from fairlead.errors import Conflict
from tests.kubernetes.builders import a_training

IMAGE = "python:3.12-slim"


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
    found = choose(a_training(), project)
    assert (found.directory, found.spec.workdir) == (project, ".")


def test_an_absolute_path_that_is_not_here_is_one_of_the_image_and_that_is_said(project: Path) -> None:
    found = choose(a_training(image=IMAGE, workdir="/opt/nowhere"), project)
    assert (found.directory, found.spec.workdir) == (None, "/opt/nowhere")
    assert found.note == "/opt/nowhere is not here, so it is taken for a directory of the image"
    with pytest.raises(Conflict, match="there is no directory /opt/nowhere"):
        choose(a_training(workdir="/opt/nowhere"), project)


def test_a_relative_path_that_is_not_here_is_a_mistake(project: Path) -> None:
    with pytest.raises(Conflict, match=r"there is no directory .*/scr\. Correct `workdir`"):
        choose(a_training(image=IMAGE, workdir="scr"), project)
