"""Mistakes that are certain are told at submission; nothing that may do well is refused."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.client import CheckPrograms
from fairlead.cluster.preflight import command_problem, place_problem, workdir_problem
from fairlead.specs.serving import PREDICTOR_SERVER, Replica
from fairlead.specs.training import Checkpoint
from tests.builders import training

ENV = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": "/root"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "my script.py").write_text("print(1)\n")
    (tmp_path / "run.sh").write_text("python train.py\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "train.py").touch()
    (tmp_path / "loose").mkdir()
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python trian.py", r"no file 'trian\.py' in .* \(did you mean train\.py\?\)"),
        ("python -u -X dev trian.py --lr 1", "did you mean train.py"),
        ("python src/../trian.py", "no file"),
        ("bash rnu.sh", "did you mean run.sh"),
        ("trian.py", r"no file 'trian\.py' .*\(did you mean train\.py\?\)\. Give `python` before it"),
        ("train.py", "is not executable. Give `python` before it"),
        ("./trian.sh", "no file"),
        ("./run.sh", "is not executable"),
        ("pkg", "'pkg' is a directory, no program"),
        ("pyhton train.py", r"'pyhton' is not on the PATH \(did you mean python\?\)"),
        ("python -m no_such_module_anywhere", "has no module 'no_such_module_anywhere'"),
        ("python -m pkg.trian", r"no module 'pkg\.trian': .* has no 'trian' \(did you mean train\?\)"),
        ("python -m trian", r"has no module 'trian', .* \(did you mean train\?\)"),
    ],
)
def test_what_cannot_start_is_told_with_near_names(project: Path, command: str, says: str) -> None:
    problem = command_problem(training(run=command), project, ENV)
    assert problem is not None
    with pytest.raises(ValueError, match=says):
        raise ValueError(problem)


@pytest.mark.parametrize(
    "command",
    [
        "cd elsewhere && python missing.py",
        "python $SCRIPT",
        "FOO=1 python made_by_that.py",
        "test -f made.py || ./make.sh; python made.py",
        "python made_by_glob_*.py",
        "exec python missing.py",
        "python 'my script.py'",
        "python -c 'import missing'",
        "python - < train.py",
        "python -m http.server",
        "python -m pytest -q missing.py",
        "python -m loose.made_later",
        "python pkg",
        "tool --flag",
        "./tool",
        "bash -c 'python missing.py'",
        "bash run.sh",
        "env FOO=1 python missing.py",
        "(python missing.py)",
        "true",
        "python train.py missing.yaml",
        "~/bin/missing",
    ],
)
def test_nothing_that_may_do_well_is_refused(project: Path, command: str) -> None:
    assert command_problem(training(run=command), project, ENV) is None


def test_what_a_setup_may_make_is_let_be(project: Path) -> None:
    for command in ("python made.py", "made", "python -m made"):
        assert command_problem(training(run=command, setup="./make.sh"), project, ENV) is None


def test_the_path_is_that_of_the_run(project: Path) -> None:
    (project / "bin").mkdir()
    (project / "tool").rename(project / "bin" / "mine")
    assert command_problem(training(run="mine"), project, ENV) is not None
    assert command_problem(training(run="mine", env={"PATH": "bin:/usr/bin"}), project, ENV) is None


def test_a_predictor_is_refused_where_its_python_lacks_what_serves_it(project: Path) -> None:
    bare = project / "bare"
    bare.mkdir()
    (bare / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (bare / "python").chmod(0o755)
    env = {"PATH": f"{bare}:/usr/bin:/bin"}
    replica = Replica(name="cats-1", run=PREDICTOR_SERVER, service="cats", predictor="cats:Cats")
    problem = command_problem(replica, project, env)
    assert problem is not None
    assert problem.startswith(f"the Python of 'python', {bare}/python, has no aiohttp and no numpy")
    assert "pip install 'fairlead[serve]' numpy" in problem
    assert command_problem(replica, project, ENV) is None
    assert command_problem(replace(replica, setup="pip install fairlead"), project, env) is None
    assert command_problem(replace(replica, predictor="", run="python train.py"), project, env) is None


def test_a_package_that_says_where_its_modules_are_is_let_be(project: Path) -> None:
    (project / "pkg" / "__init__.py").write_text("__path__.append('/elsewhere')\n")
    assert command_problem(training(run="python -m pkg.trian"), project, ENV) is None


def test_no_directory_is_told_with_near_names(project: Path) -> None:
    assert workdir_problem(project) is None
    assert str(workdir_problem(project / "pkgs")).endswith("/pkgs (did you mean pkg?)")
    assert str(workdir_problem(project / "train.py")).endswith("is not a directory")


def leaving_a_mark(path: Path, mark: Path) -> Path:
    """Write a program that passes for Python and leaves a mark when it runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\ntouch {mark}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


RUNS = "{program} -m surely_absent"
TRIES: dict[str, tuple[str, dict[str, str]]] = {
    "of the directory": ("./python3", {}),
    "of its environment": (".venv/bin/python", {}),
    "by the spec's PATH": ("python3", {"PATH": "bin:/usr/bin"}),
    "by an absolute path": ("{project}/python3", {}),
    "of the machine, with a module to load first": (sys.executable, {"PYTHONPATH": ".", "PYTHONSTARTUP": "x.py"}),
    "of the machine, with a library to load first": (sys.executable, {"LD_PRELOAD": "./evil.so"}),
}


@pytest.mark.parametrize("name", sorted(TRIES))
def test_a_plan_starts_no_program_that_the_spec_brings(name: str, project: Path) -> None:
    mark = project / "ran"
    for place in ("python3", ".venv/bin/python", "bin/python3"):
        leaving_a_mark(project / place, mark)
    (project / "sitecustomize.py").write_text(f"open({str(mark)!r}, 'w')")
    program, env = TRIES[name]
    spec = training(run=RUNS.format(program=program.format(project=project)), env=env)
    for probing in (CheckPrograms.INSTALLED, CheckPrograms.NONE):
        assert command_problem(spec, project, ENV, probing) is None
        assert not mark.exists()
    if "library" not in name:
        command_problem(spec, project, ENV, CheckPrograms.ANY)
        assert mark.exists()


def test_a_plan_asks_an_interpreter_of_the_machine_but_not_in_ci(project: Path) -> None:
    spec = training(run=f"{sys.executable} -m surely_absent")
    assert "has no module 'surely_absent'" in (command_problem(spec, project, ENV, CheckPrograms.INSTALLED) or "")
    assert command_problem(spec, project, ENV, CheckPrograms.NONE) is None


def test_a_module_of_the_directory_is_not_imported_by_the_check(project: Path) -> None:
    mark = project / "ran"
    (project / "importlib").mkdir()
    for name in ("importlib/__init__.py", "importlib/util.py", "sys.py", "surely.py"):
        (project / name).write_text(f"open({str(mark)!r}, 'w')")
    for probing in CheckPrograms:
        command_problem(training(run=f"{sys.executable} -m surely_absent"), project, ENV, probing)
    assert not mark.exists()


def test_without_programs_nothing_is_written_to_the_place_of_checkpoints(project: Path) -> None:
    for to in (str(project / "made"), f"local://{project}/made"):
        spec = training(run="true", checkpoint=Checkpoint(to=to))
        assert place_problem(spec, project, ENV, CheckPrograms.NONE) is None
        assert not (project / "made").exists()
