"""``fairlead init``: what it writes is right, runs, and never takes the place of anything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cli.commands.init import FILES, TEMPLATES
from fairlead.specs.formats.reading import parse
from fairlead.specs.training import Training
from tests.cli.conftest import Call

TRAININGS = [template for template, names in FILES.items() if names == ("train.yaml", "train.py")]


@pytest.mark.parametrize("template", TRAININGS)
def test_every_template_is_a_right_spec_and_a_program(template: str, desk: Path, call: Call) -> None:
    said = call("init", "--template", template, "new/place")
    assert said.code == 0
    assert "Next: `fairlead run new/place/train.yaml`" in said.err
    for path in (desk / "new/place").iterdir():
        assert path.read_text() == (TEMPLATES / f"{template}{path.suffix}").read_text()
    compile((desk / "new/place/train.py").read_text(), "train.py", "exec")
    (spec,) = parse((desk / "new/place/train.yaml").read_text())
    assert isinstance(spec, Training)
    assert (spec.name, spec.checkpoint.every_s) == ("train", 30.0)
    planned = call("plan", "new/place/train.yaml")
    assert planned.code == 0
    assert "train: it would start at once" in planned.out


def test_it_writes_here_when_no_directory_is_named(desk: Path, call: Call) -> None:
    said = call("init", "--json")
    assert json.loads(said.out) == {
        "template": "training",
        "files": ["train.yaml", "train.py"],
        "next": "fairlead run train.yaml",
    }
    assert {path.name for path in desk.iterdir()} >= {"train.yaml", "train.py"}


@pytest.mark.parametrize("there", ["train.yaml", "train.py"])
def test_a_file_that_is_there_is_named_and_nothing_is_written(there: str, desk: Path, call: Call) -> None:
    (desk / there).write_text("mine")
    said = call("init")
    assert said.code == 6
    assert f"{there} is there already" in said.err
    assert (desk / there).read_text() == "mine"
    assert {path.name for path in desk.iterdir()} & {"train.yaml", "train.py"} == {there}


def test_a_link_to_nothing_is_not_written_through(desk: Path, call: Call) -> None:
    (desk / "train.py").symlink_to(desk / "elsewhere")
    assert call("init").code == 6
    assert not (desk / "elsewhere").exists()


def test_an_unknown_template_is_refused_with_those_there_are(call: Call) -> None:
    said = call("init", "--template", "keras")
    assert said.code == 2
    assert all(template in said.err for template in FILES)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(("template", "ranks"), [pytest.param("training", 1, marks=pytest.mark.long), ("torchrun", 2)])
def test_what_it_writes_runs(template: str, ranks: int, desk: Path, process: Call) -> None:
    assert process("init", "--template", template).code == 0
    env = {**os.environ, "STEPS": "20", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def said(*argv: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)

    ran = said(sys.executable, "-m", "fairlead.cli.main", "run", "train.yaml")
    assert ran.returncode == 0, ran.stderr
    assert f"trained 20 steps on {ranks} ranks" in ran.stdout
    assert "train is Succeeded" in ran.stderr
    alone = said(sys.executable, "train.py")
    assert "trained 20 steps on 1 ranks" in alone.stdout, alone.stderr


@pytest.mark.parametrize(
    ("template", "kind", "planned"),
    [
        ("sweep", "Sweep", "search: it would start at once"),
        ("pipeline", "Pipeline", "flow: it would start at once"),
        ("serving", "Serving", "answers"),
    ],
)
def test_a_template_of_another_kind_is_a_right_spec_with_its_program(
    template: str, kind: str, planned: str, desk: Path, call: Call
) -> None:
    said = call("init", "--template", template, "new")
    spec, program = FILES[template]
    assert f"Next: `fairlead run new/{spec}`" in said.err
    assert {path.name for path in (desk / "new").iterdir()} == {spec, program}
    compile((desk / "new" / program).read_text(), program, "exec")
    (read,) = parse((desk / "new" / spec).read_text())
    assert type(read).__name__ == kind
    answer = call("plan", f"new/{spec}")
    assert answer.code in (0, 1)
    assert planned in answer.out


def test_the_search_and_the_steps_that_it_writes_run_to_their_end(desk: Path, call: Call) -> None:
    assert call("init", "--template", "sweep", "search").code == 0
    ran = call("run", "search/sweep.yaml", "--json")
    assert ran.code == 0, ran.err
    best = json.loads(call("sweep", "best", "search", "--json").out)
    assert (best["step"], 0 < best["value"] < 2) == (20, True)
    assert call("init", "--template", "pipeline", "flow").code == 0
    ran = call("run", "flow/pipeline.yaml")
    assert ran.code == 0, ran.err
    assert '[publish] publishing {"slope": 2.0}' in ran.out
