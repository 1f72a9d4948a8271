"""A run's framework is found by its command and by what its script names, and `plan` says so."""

from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.admission import admit, left_open
from fairlead.control.framework_detection import detect, framework_of
from fairlead.errors import InvalidSpec
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


@pytest.mark.parametrize("nodes", [{"nodes": 2}, {"nodes": 1, "most_nodes": 4}])
@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("accelerate launch train.py --lr 1", "write `run: python train.py --lr 1` and `framework: accelerate`"),
        ("deepspeed train.py", "write `run: python train.py` and `framework: deepspeed`"),
        ("mpirun -np 8 python train.py", "write `run: python train.py` and `framework: mpi`"),
        ("horovodrun -np 8 python train.py", "write `run: python train.py`"),
        ("fabric run train.py", "write `run: python train.py` and `framework: lightning`"),
        (
            "uv run --with x accelerate launch -m train",
            "write `run: python YOUR_SCRIPT.py` and `framework: accelerate`",
        ),
        ("torchrun --standalone train.py", "has --standalone, with which each node would train alone"),
        ("torchrun --nnodes 1 train.py", "has --nnodes 1, with which"),
        ("env A=1 nohup torchrun --nnodes=1 train.py", "has --nnodes 1, with which"),
        ("torchrun --rdzv_endpoint=localhost:0 train.py", "has --rdzv-endpoint localhost:0, with which"),
    ],
)
def test_a_launcher_whose_nodes_would_each_train_alone_is_refused_with_the_lines_to_write(
    command: str, lines: str, nodes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        detect(training(run=command, **nodes), tmp_path)
    assert lines in str(refused.value)


@pytest.mark.parametrize("command", ["torchrun train.py", "accelerate launch train.py", "uv run torchrun train.py"])
def test_a_launcher_that_would_be_started_twice_on_a_node_is_refused(command: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="starts the processes of a node itself, so 2 of it on a node"):
        detect(training(run=command, ranks_per_node=2), tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun train.py --standalone",
        "torchrun --nnodes 2 --nproc-per-node 4 train.py",
        "env A=1 torchrun train.py",
        "mpirun --hostfile hosts python train.py",
        "python accelerate.py launch",
    ],
)
def test_a_launcher_that_finds_the_other_nodes_is_taken(command: str, tmp_path: Path) -> None:
    assert detect(training(run=command, nodes=2), tmp_path).spec.run == command


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


@pytest.mark.parametrize(
    ("command", "script", "where"),
    [
        ("cd sub && accelerate launch train.py", "", "accelerate launch does not"),
        ("export A=1; torchrun --standalone train.py 2>&1 | tee log", "", "torchrun has --standalone"),
        ("set -e\nA=1 deepspeed train.py\necho done", "", "deepspeed does not"),
        ("bash run.sh", "#!/bin/bash\nset -e\nmpirun -np 2 \\\n  python train.py\n", "mpirun in run.sh does not"),
        ("./run.sh --fast", "A=1 B=2 accelerate launch train.py > log\n", "accelerate launch in ./run.sh does not"),
        ("source run.sh", "nohup torchrun --nnodes=1 train.py\n", "torchrun in run.sh has --nnodes 1"),
    ],
)
def test_a_launcher_behind_other_commands_or_in_a_shell_script_is_refused_as_one_in_front(
    command: str, script: str, where: str, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(script)
    with pytest.raises(InvalidSpec, match=f"run: {where}"):
        detect(training(run=command, nodes=2), tmp_path)


def test_a_launcher_in_a_script_that_would_be_started_for_each_gpu_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("torchrun --nproc-per-node 4 train.py\n")
    gpus = Resources(gpu=GpuRequest(milli=4000))
    with pytest.raises(InvalidSpec, match=r"so 4 of it on a node would each train alone.*or give `ranks_per_node: 1`"):
        detect(training(run="bash run.sh", resources=gpus, ranks_per_node=None), tmp_path)
    assert detect(training(run="bash run.sh", resources=gpus, ranks_per_node=1), tmp_path).spec.run == "bash run.sh"


@pytest.mark.parametrize(
    "script",
    [
        'if [ -n "$MULTI" ]; then\n  accelerate launch train.py\nfi\n',
        "# accelerate launch train.py\npython train.py\n",
        "cat <<END\naccelerate launch train.py\nEND\n",
        "echo 'accelerate launch train.py'\n",
        "torchrun train.py\n",
    ],
)
def test_a_launcher_that_a_script_may_not_run_or_that_meets_is_taken(script: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(script)
    assert detect(training(run="bash run.sh", nodes=2), tmp_path).spec.run == "bash run.sh"
