"""A run's framework is found by its command and by what its script names, and `plan` says so."""

from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.admission import admit, left_open
from fairlead.control.framework_detection import detect, framework_of
from fairlead.specs.engines import Engine
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Framework
from tests.builders import training
from tests.docs.examples import ROOT, examples_of

OF_TORCH = {Framework.TORCH, Framework.LIGHTNING}


def script(tmp_path: Path, *lines: str) -> Path:
    (tmp_path / "train.py").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("framework", [each for each in Framework if each not in OF_TORCH])
def test_programs_of_the_guide_are_told_by_what_they_name(framework: Framework) -> None:
    file = f"with_{framework}.py"
    (body,) = (each.body for each in examples_of(ROOT / "docs" / "distributed.md") if each.file == file)
    assert framework_of(body)[0] is framework


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("import torch", (Framework.TORCH, "imports torch")),
        ("import torch.distributed as dist\nimport jax", (Framework.TORCH, "names torch.distributed")),
        ("import lightning as L\nimport torch\nL.Trainer()", (Framework.LIGHTNING, "names lightning")),
        ("import jax, tensorflow as tf\njax.distributed.initialize()", (Framework.JAX, "names jax.distributed")),
        ("import jax\nimport tensorflow", (None, "imports jax and tensorflow")),
        ("from jax import distributed", (Framework.JAX, "names jax.distributed")),
        ("from . import torch", (None, "")),
        ("import numpy", (None, "")),
        ("this is no Python", (None, "")),
    ],
)
def test_what_is_named_to_meet_comes_before_what_is_imported(
    lines: str, expected: tuple[Framework | None, str]
) -> None:
    assert framework_of(lines) == expected


def test_a_run_of_several_ranks_gets_it_and_says_why(tmp_path: Path) -> None:
    workdir = script(tmp_path, "import jax", "jax.distributed.initialize()")
    found = detect(training(run="python -u train.py --lr 1", ranks_per_node=2), workdir)
    assert found.spec.framework is Framework.JAX
    assert found.notes == ("framework: jax (train.py names jax.distributed)",)
    (tmp_path / "package").mkdir()
    (tmp_path / "train.py").rename(tmp_path / "package" / "train.py")
    assert detect(training(run="python -m package.train", nodes=2), workdir).spec.framework is Framework.JAX


def test_what_may_be_either_is_left_and_said(tmp_path: Path) -> None:
    workdir = script(tmp_path, "import jax, xgboost")
    found = detect(training(run="python train.py", ranks_per_node=2), workdir)
    assert found.spec.framework is None
    assert found.notes == (
        "framework: torchrun's variables alone, since train.py imports jax and xgboost; name one with `framework`",
    )


def test_whoever_says_how_ranks_meet_is_left_alone(tmp_path: Path) -> None:
    workdir = script(tmp_path, "import tensorflow as tf")
    for spec in (
        training(run="python train.py"),
        training(run="python train.py", nodes=2, framework=Framework.MPI),
        training(run="python train.py", nodes=2, engine=Engine.TFJOB),
        training(run="python train.py", nodes=2, env={"TF_CONFIG": "{}"}),
        training(run="cat train.py | python", nodes=2),
        training(run="python absent.py", nodes=2),
        training(run="python train.py", nodes=600),
    ):
        found = detect(spec, workdir)
        assert found.spec == spec
        assert found.notes == ()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("torchrun --nproc-per-node=8 train.py", "framework: torch (torchrun starts"),
        ("python3.12 -m torch.distributed.run train.py", "framework: torch (python -m torch.distributed.run starts"),
        ("/opt/bin/accelerate launch train.py", "framework: accelerate (accelerate launch starts"),
        ("mpirun -np 8 python train.py", "framework: mpi (mpirun starts"),
        ("horovodrun -np 8 python train.py", "framework: horovod (horovodrun starts"),
    ],
)
def test_a_launcher_is_started_once_on_each_node(command: str, told: str, tmp_path: Path) -> None:
    gpus = Resources(gpu=GpuRequest(milli=8000))
    found = detect(training(run=command, resources=gpus), tmp_path)
    assert found.spec.ranks_per_node == 1
    assert found.spec.framework is None
    assert found.notes[0].startswith(told)
    asked = training(run=command, resources=gpus, ranks_per_node=2)
    assert detect(asked, tmp_path).spec == asked


def test_it_is_found_at_submission_and_anew_where_the_command_changes(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    workdir = script(tmp_path / "files", "import mpi4py")
    cluster = LocalCluster.open(tmp_path / "home")
    admitted = admit(cluster, training(run="python train.py", ranks_per_node=2), workdir).spec
    assert admitted.framework is Framework.MPI
    assert left_open(cluster, admitted).framework is None
    named = admit(cluster, training(run="sleep 1", ranks_per_node=2, framework=Framework.MPI), workdir).spec
    assert left_open(cluster, named).framework is Framework.MPI
    cluster.close()
