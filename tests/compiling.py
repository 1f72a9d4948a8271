"""Compiles test files once, before workers start, where most of them are new: each worker would compile them all."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

FEW = 60
"""So many files each worker compiles in less time than another look for tests takes."""

LIMIT_S = 300.0


def compile_new(config: pytest.Config) -> None:
    """Have each processor find a part of the tests, which keeps what pytest makes of their files.

    Whatever goes wrong there goes wrong again, and is told, in the workers.
    """
    places = [config.invocation_params.dir / each.partition("::")[0] for each in config.args]
    files = sorted({file for place in places for file in place.rglob("test_*.py") if not is_compiled(file)})
    if len(files) <= FEW:
        return
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-n", "0", "-p", "no:cacheprovider"]
    null = subprocess.DEVNULL
    children = [
        subprocess.Popen([*argv, *map(str, part)], cwd=config.rootpath, stdin=null, stdout=null, stderr=null)
        for part in parts(files, os.cpu_count() or 1)
    ]
    for child in children:
        try:
            child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def is_compiled(file: Path) -> bool:
    """Return whether pytest has kept what it made of a file since the file was last changed."""
    cached = Path(importlib.util.cache_from_source(str(file)))
    name = f"{cached.name.removesuffix('.pyc')}-pytest-{pytest.__version__}.pyc"
    try:
        return (cached.parent / name).stat().st_mtime >= file.stat().st_mtime
    except FileNotFoundError:
        return False


def parts(files: Sequence[Path], count: int) -> list[list[Path]]:
    """Files in their order, as neighbours import the same, in at most so many parts of about the same size."""
    most = sum(file.stat().st_size for file in files) / count
    made: list[list[Path]] = [[] for _ in range(count)]
    before = 0
    for file in files:
        made[min(int(before / most), count - 1)].append(file)
        before += file.stat().st_size
    return [part for part in made if part]
