"""What may be imported ahead of a script: only what nothing before it could change."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from fairlead.runtime.preloading import _SESSION, find_preload, leading_imports


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ('"""Doc."""\nfrom __future__ import annotations\nimport os, sys\nimport torch\n', ["torch"]),
        ("import numpy as np\nfrom torch.nn import functional\nx = f()\nimport torch.optim", ["numpy", "torch.nn"]),
        ("import fairlead\n", []),
        ("import fairlead\nimport torch\n", ["torch", *_SESSION]),
        ("N = 3\ndef f(a, b=1):\n  return a\nimport torch", ["torch"]),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", []),
        ("import helpers\nimport torch", []),
        ("from . import helpers\nimport torch", []),
        ("def f(a=g()):\n  pass\nimport torch", []),
        ("if True:\n  import torch", []),
        ("print('hello')", []),
    ],
)
def test_only_leading_imports_are_preloaded(source: str, modules: list[str]) -> None:
    assert leading_imports(ast.parse(source).body)[0] == modules


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ndef main():\n  return torch.optim.SGD([], lr=1)",
        "import torch\nfrom torch import nn, optim\n",
        "import torch\nfrom torch.optim import AdamW\n",
        "import torch\nimport torch.optim as o\n",
    ],
)
def test_what_an_optimizer_imports_is_preloaded_with_it(source: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    assert find_preload("train.py", None, str(tmp_path)).modules[-1] == "torch._dynamo"


def test_a_script_beside_a_namesake_of_a_module_is_not_preloaded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch")
    assert find_preload("train.py", None, str(tmp_path)).modules == ("torch",)
    (tmp_path / "random").mkdir()
    assert find_preload("train.py", None, str(tmp_path)).modules == ("torch",)
    (tmp_path / "random.py").touch()
    preload = find_preload("train.py", None, str(tmp_path))
    assert preload.modules == ()
    assert preload.why == f"{tmp_path / 'random.py'} may stand in for the module of its name"


def test_packages_of_a_module_must_do_nothing_before_it(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import torch")
    (tmp_path / "pkg" / "__init__.py").write_text("import os")
    assert find_preload(None, "pkg.train", str(tmp_path)).modules == ("torch",)
    (tmp_path / "pkg" / "__init__.py").write_text("import os\nos.nice(1)")
    preload = find_preload(None, "pkg.train", str(tmp_path))
    assert preload.modules == ()
    assert preload.why == f"line 2 in {tmp_path / 'pkg' / '__init__.py'} comes first"


def test_the_first_entry_of_the_path_is_the_script_s_own_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text("import torch")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "train.py")
    assert find_preload("link.py", None, str(tmp_path)).first == str(tmp_path / "real")
    assert find_preload("gone.py", None, str(tmp_path)).modules == ()


SERVER_IMPORTS = ("aiohttp.web", "numpy", "prometheus_client")


@pytest.mark.parametrize(
    ("source", "further"),
    [
        ("import torch\nclass Model: pass\n", ("torch",)),
        ("import numpy as np\nfrom torch import nn\n", ("torch",)),
        ("import helpers\nimport torch\n", ()),
        ("import fairlead\nimport torch\n", ("torch",)),
        ("not Python", ()),
        (None, ()),
    ],
)
def test_our_server_is_preloaded_with_what_its_predictor_imports_first(
    source: str | None, further: tuple[str, ...], tmp_path: Path
) -> None:
    if source is not None:
        (tmp_path / "model.py").write_text(source)
    preload = find_preload(None, "fairlead.runtime.serving", str(tmp_path), "model:Model")
    assert preload.modules == SERVER_IMPORTS + further


def test_our_server_beside_a_namesake_of_what_it_imports_is_not_preloaded(tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").touch()
    preload = find_preload(None, "fairlead.runtime.serving", str(tmp_path), "model:Model")
    assert (preload.modules, preload.why) == ((), f"{tmp_path / 'aiohttp.py'} may stand in for the module of its name")


def test_a_program_that_comes_through_a_pipe_is_left_to_its_interpreter(tmp_path: Path) -> None:
    pipe = tmp_path / "train.py"
    os.mkfifo(pipe)
    # Somebody may write there, so that even a reader who opened it would only have to wait.
    writer = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, b"import torch\n")
        found = find_preload("train.py", None, str(tmp_path))
        assert (found.modules, found.why, found.is_bare) == ((), f"{pipe} is no file", False)
        assert os.read(writer, 64) == b"import torch\n"
    finally:
        os.close(writer)
