"""Makes an output of a step self-contained before it is stored: content, not links to files that may change or go.

Links that stay within the output remain, relative ones; those that lead out of it are replaced by what they lead to.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnfitOutput(OSError):
    """An output that cannot be stored; the message is a clause that names the file and says why."""


def make_self_contained(output: Path, *, follows: bool = True) -> None:
    """Replace links of a file or directory in place.

    Args:
        follows: False to refuse links that lead out of the output, where they led elsewhere when they were written.

    Raises:
        UnfitOutput: It holds a link that leads nowhere or to itself, or something that is neither file nor directory.
        OSError: It cannot be read or written.
    """
    if output.is_symlink():
        _replace(output, _target(output, output.name), output.name, follows)
    _check_kind(output.lstat().st_mode, output.name)
    if output.is_dir():
        _settle(output, Path(os.path.realpath(output)), output.name, follows)


def _settle(directory: Path, root: Path, name: str, follows: bool) -> None:
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        path, own = Path(entry.path), f"{name}/{entry.name}"
        if entry.is_symlink():
            target = _target(path, own)
            place = Path(os.path.realpath(directory))
            if root not in target.parents:
                _replace(path, target, own, follows)
            elif os.readlink(path) != (relative := os.path.relpath(target, place)):
                path.unlink()
                path.symlink_to(relative)
            continue
        _check_kind(entry.stat(follow_symlinks=False).st_mode, own)
        if entry.is_dir(follow_symlinks=False):
            _settle(path, root, own, follows)


def _target(path: Path, name: str) -> Path:
    target = Path(os.path.realpath(path))
    if not target.exists():
        raise UnfitOutput(f"{name} is a link to {os.readlink(path)}, where nothing is")
    return target


def _replace(path: Path, target: Path, name: str, follows: bool) -> None:
    """Replace a link by a copy of what it leads to."""
    if not follows:
        raise UnfitOutput(f"{name} is a link to {os.readlink(path)}, outside of the output; copy what is there")
    if target in path.absolute().parents:
        raise UnfitOutput(f"{name} is a link to {os.readlink(path)}, which holds the output itself")
    copy = path.with_name(f".{path.name}.{os.getpid()}.copied")
    try:
        _copy(target, copy, name, ())
        path.unlink()
        copy.rename(path)
    finally:
        if copy.is_dir():
            shutil.rmtree(copy, ignore_errors=True)
        elif copy.exists():
            copy.unlink()


def _copy(source: Path, target: Path, name: str, above: tuple[Path, ...]) -> None:
    """Copy a file or directory, with what its links lead to."""
    source = Path(os.path.realpath(source))
    status = source.stat()
    _check_kind(status.st_mode, name)
    if not stat.S_ISDIR(status.st_mode):
        if status.st_size > shutil.disk_usage(target.parent).free:
            raise UnfitOutput(f"{name} leads to {status.st_size:,} bytes, for which there is no room")
        shutil.copy2(source, target)
        return
    if source in above:
        raise UnfitOutput(f"{name} leads back to a directory above it")
    target.mkdir()
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        own = f"{name}/{entry.name}"
        if entry.is_symlink():
            _target(Path(entry.path), own)
        _copy(Path(entry.path), target / entry.name, own, (*above, source))


def _check_kind(mode: int, name: str) -> None:
    kind = KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise UnfitOutput(f"{name} is {kind}; outputs are files and directories")
