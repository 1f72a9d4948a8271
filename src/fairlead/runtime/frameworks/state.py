"""A framework's own checkpoint as files of a run: every rank writes its part and reads the parts of all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.runtime.session import Run


@contextlib.contextmanager
def resumed_files(run: Run) -> Iterator[Path]:
    """Yield a directory with the files of all ranks of the newest usable checkpoint; it is empty if there is none."""
    if os.environ.get("FAIRLEAD_RUN"):
        own = run.dir / f"resumed-{run.rank}"
        shutil.rmtree(own, ignore_errors=True)  # of an attempt that was killed
        own.mkdir(parents=True)
    else:
        own = Path(tempfile.mkdtemp(prefix="fairlead-resumed-"))
    try:
        run.resume(load=lambda files: gather(files, own))
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def gather(files: Path, into: Path) -> None:
    """Collect the files of all ranks of a checkpoint, as hard links if the file system allows them.

    Args:
        files: The files of one rank in the checkpoint: ``rank-N/files``.
    """
    if into.exists() and any(into.iterdir()):  # left by a checkpoint that could not be loaded
        shutil.rmtree(into)
    for folder in sorted(files.parent.parent.glob("rank-*/files")):
        shutil.copytree(folder, into, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        pass  # several ranks write the same file
    except OSError:
        shutil.copy2(source, target)
