"""The request of an `environment` at its submission: the text of its files, its Python, and what is refused."""

import os
from pathlib import Path

import pytest

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages.requests import read_request, with_file
from fairlead.errors import Conflict, InvalidSpec
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.environment import PythonEnvironment
from fairlead.specs.training import Training
from fairlead.specs.workspace import Ide, Workspace
from tests.builders import training

HASHED = '[[packages]]\nname = "a"\nwheels = [{url = "https://x/a.whl", hashes = {sha256 = "00"}}]\n'


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, script in (
        ("uv", '#!/bin/sh\nfor last; do :; done\n[ "$last" = 3.12 ] && echo "$0/../python3.12"\n'),
        ("python3", '#!/bin/sh\necho \'["/usr/bin/python3.11", "3.11.2"]\'\n'),
        ("python3.12", '#!/bin/sh\necho \'["/usr/bin/python3.12", "3.12.9"]\'\n'),
    ):
        (tmp_path / "bin" / name).write_text(script.replace("$0/..", str(tmp_path / "bin")))
        (tmp_path / "bin" / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    return work


def environ(work: Path, **more: str) -> dict[str, str]:
    return {"PATH": f"{work.parent / 'bin'}:/usr/bin:/bin", **more}


def asking(work: Path, **environment: object) -> Training:
    return training(workdir=str(work), environment=PythonEnvironment(**environment))  # type: ignore[arg-type]


def request(work: Path, **environment: object) -> dict[str, object]:
    return read_request(asking(work, **environment), Home(work.parent / "home"), environ(work))


def test_a_file_is_read_with_those_that_it_includes_and_paths_become_absolute(work: Path) -> None:
    (work / "more").mkdir()
    (work / "requirements.txt").write_text("numpy\n-r more/base.txt  # of all\n")
    (work / "more" / "base.txt").write_text("six\n-c bounds.txt\n--find-links wheels\n")
    (work / "more" / "bounds.txt").write_text("six<2\n")
    files = request(work, file="requirements.txt")["files"]
    assert files == {
        "requirements.txt": f"numpy\nsix\n--find-links {work}/more/wheels",
        "constraints.txt": "six<2",
    }


def test_a_request_is_another_one_for_other_packages_another_python_or_another_index(work: Path) -> None:
    home = Home(work.parent / "home")
    specs = [
        asking(work, packages=("numpy",)),
        asking(work, packages=("numpy", "six")),
        asking(work, packages=("numpy",), python="3.12"),
    ]
    digests = {read_request(spec, home, environ(work))["digest"] for spec in specs}
    assert len(digests | {read_request(specs[0], home, environ(work, UV_INDEX="https://x"))["digest"]}) == 4
    (work / "requirements.txt").write_text("numpy")
    assert request(work, file="requirements.txt")["digest"] in digests, "it is the same that is asked for"
    secret = read_request(specs[0], home, environ(work, UV_INDEX="https://me:hunter2@x"))
    assert "hunter2" not in str(secret)


def test_a_python_that_is_replaced_is_asked_again(work: Path) -> None:
    assert request(work, packages=("six",))["python"] == ["/usr/bin/python3.11", "3.11.2"]
    python = work.parent / "bin" / "python3"
    python.write_text(python.read_text().replace("3.11.2", "3.11.3"))
    os.utime(python, ns=(1, 1))
    assert request(work, packages=("six",))["python"] == ["/usr/bin/python3.11", "3.11.3"]


def test_auto_takes_the_most_exact_file_that_is_there(work: Path) -> None:
    spec = asking(work, file="auto")
    with pytest.raises(InvalidSpec, match=r"has none of requirements\.txt, pyproject\.toml, uv\.lock or pylock\.toml"):
        with_file(spec, work)
    for name in ("requirements.txt", "pyproject.toml", "uv.lock", "pylock.toml"):
        (work / name).touch()
        chosen = with_file(spec, work).environment
        assert chosen is not None
        assert chosen.file == name


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("requirements.txt", "-e .", "'-e .' is a directory, which no lock can hold"),
        ("requirements.txt", "-r gone.txt", "cannot be read: No such file"),
        ("requirements.txt", "-r requirements.txt", "it includes more than 64 files"),
        ("pylock.toml", "packages = 3", "its `packages` are no list of tables"),
        ("pylock.toml", HASHED.replace('sha256 = "00"', ""), "a has a file without a hash"),
        ("pylock.toml", '[[packages]]\nname = "a"\ndirectory = {path = "."}', "a is a directory, which has no hash"),
        ("uv.lock", "", "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_locked_is_refused(work: Path, name: str, text: str, problem: str) -> None:
    (work / name).write_text(text)
    with pytest.raises(InvalidSpec, match=problem.replace("`", ".")):
        request(work, file=name)
    (work / "pylock.toml").write_text(HASHED)
    assert request(work, file="pylock.toml")["form"] == "pylock"


def test_without_uv_or_the_python_it_says_how_to_get_them(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Conflict, match=r"there is no Python 3\.9 .* `uv python install 3\.9`"):
        request(work, packages=("six",), python="3.9")
    (work.parent / "bin" / "uv").unlink()
    monkeypatch.setattr("sys.executable", str(work.parent / "bin" / "python3"))
    with pytest.raises(Conflict, match=r"by uv, which is not on the PATH; install it with .pip install 'fairlead\["):
        request(work, packages=("six",))


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({}, "missing; name requirements"),
        ({"file": "environment.yml"}, "names an environment of conda"),
        ({"file": "setup.py"}, "is none of the files that are read"),
        ({"file": "requirements.txt", "packages": ("six",)}, "either in a `file` or listed"),
        ({"packages": ("six",), "python": "2.7"}, 'give one such as "3.12"'),
        ({"packages": ("six\nnumpy",)}, "line break"),
    ],
)
def test_mistakes_in_a_spec_are_explained(environment: dict[str, object], problem: str) -> None:
    with pytest.raises(BrokenRules, match=problem):
        PythonEnvironment(**environment)  # type: ignore[arg-type]


def test_a_workspace_with_notebooks_gets_their_server_beside_its_packages_and_another_does_not(work: Path) -> None:
    environment = PythonEnvironment(packages=("numpy",))
    for ide, wanted in ((Ide.JUPYTER, "numpy\njupyterlab"), (Ide.SSH, "numpy")):
        spec = Workspace(name="dev", ide=ide, workdir=str(work), environment=environment)
        assert read_request(spec, Home(work.parent / "home"), environ(work))["files"] == {"requirements.txt": wanted}
