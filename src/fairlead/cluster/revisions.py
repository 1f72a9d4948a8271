"""Reads the git commit of a directory and the differences from it."""

import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairlead.cluster.project_files import repository
from fairlead.cluster.secret_files import git_pathspecs
from fairlead.frozen import dataclass

ASK_S = 5.0
MOST_DIFF_BYTES = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRevision:
    """The git commit of a working directory, with its differences.

    Attributes:
        commit: None before the first commit.
        branch: None when no branch is checked out.
        dirty: True if tracked files differ from the commit.
        diff: The differences as git shows them, without files of credentials; the first MiB.
    """

    commit: str | None
    branch: str | None
    dirty: bool
    diff: bytes = b""

    def as_data(self) -> dict[str, Any]:
        """Return all but the diff, as plain data."""
        content = asdict(self)
        del content["diff"]
        return content


def read_revision(directory: Path) -> GitRevision | None:
    """Read the git revision of a directory; None outside of a repository, or if git fails or takes too long."""
    if repository(os.path.abspath(directory)) is None:
        return None
    status = _git(directory, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    if status is None:
        return None
    lines = status.decode(errors="replace").splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = heads.get("branch.oid"), heads.get("branch.head")
    is_dirty = any(not line.startswith("#") for line in lines)
    born = None if commit == "(initial)" else commit
    look = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", "--", *git_pathspecs())
    diff = _git(directory, *look) if is_dirty and born else None
    return GitRevision(
        commit=born,
        branch=None if branch == "(detached)" else branch,
        dirty=is_dirty,
        diff=(diff or b"")[:MOST_DIFF_BYTES],
    )


def _git(directory: Path, *arguments: str) -> bytes | None:
    try:
        ended = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(directory), *arguments],
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout if ended.returncode == 0 else None
