"""Modules of an image that are compiled ahead."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.control.image.bytecode import compile_modules, interpreter_of
from fairlead.control.image.layers import LayerFile
from fairlead.errors import ClusterError

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = sys.implementation.cache_tag
FILES = {
    "/opt/there/shop/__init__.py": LayerFile(
        content=b"WORDS = {'a', 'b', 'c'}\ndef has(word):\n    return word in {'x', 'y'}\n"
    ),
    "/opt/there/shop/page.html": LayerFile(content=b"<p>"),
    "/opt/there/numpy/__init__.py": LayerFile(content=b""),
}


def test_modules_are_compiled_but_those_of_large_packages_and_always_to_the_same_bytes() -> None:
    first, second = (compile_modules(sys.executable, FILES) for _ in range(2))
    assert list(first) == [f"/opt/there/shop/__pycache__/__init__.{TAG}.pyc"]
    assert first == second


def test_what_was_compiled_is_what_python_runs_and_names_the_place_in_the_image(tmp_path: Path) -> None:
    (compiled,) = compile_modules(sys.executable, FILES).values()
    assert b"/opt/there/shop/__init__.py" in compiled.content
    (tmp_path / "shop" / "__pycache__").mkdir(parents=True)
    (tmp_path / "shop" / "__pycache__" / f"__init__.{TAG}.pyc").write_bytes(compiled.content)
    (tmp_path / "shop" / "__init__.py").write_text("raise SystemExit('compiled anew')\n")
    argv = [sys.executable, "-c", "import shop; print(shop.has('x'))"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    ended = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


def test_a_module_that_is_none_is_told() -> None:
    with pytest.raises(ClusterError, match=r"cannot compile the image's modules. It says: (?s:.)*SyntaxError"):
        compile_modules(sys.executable, {"/opt/there/broken.py": LayerFile(content=b"def\n")})


def test_a_python_of_the_same_version_is_found_and_one_that_only_has_its_name_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interpreter_of(OWN) == sys.executable
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter_of("3.99") is None
    for said, expected in (("3.98", None), ("3.99", str(tmp_path / "python3.99"))):
        (tmp_path / "python3.99").write_text(f"#!/bin/sh\necho {said}\n")
        (tmp_path / "python3.99").chmod(0o755)
        assert interpreter_of("3.99") == expected
