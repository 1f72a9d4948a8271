"""Enforces memory limits by cgroups, one per pod, where this user may create them; explains why where not."""

import errno
import os
import time
from pathlib import Path

from fairlead.frozen import dataclass

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """The result of a check whether memory limits are enforced here.

    Attributes:
        parent: Directory in which cgroups of pods are created; None when limits are not enforced.
        why: One sentence for the user.
    """

    parent: Path | None
    why: str


def enforcement() -> Enforcement:
    """Try to create a cgroup with a memory limit."""
    if (V1 / "memory.limit_in_bytes").exists():
        parent = V1 / "fairlead"
        return _try(parent, f"memory limits are enforced through cgroup v1 ({parent})")
    if (V2 / "cgroup.controllers").exists():
        own = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2].lstrip("/")
        for base in (V2, (V2 / own).parent):
            parent = base / "fairlead"
            attempt = _try(parent, f"memory limits are enforced through cgroup v2 ({parent})", delegate=base)
            if attempt.parent is not None:
                return attempt
        return Enforcement(
            parent=None,
            why="memory limits are not enforced: this user may not make cgroups below "
            f"{(V2 / own).parent}; `systemd-run --user --scope -p Delegate=yes fairlead supervisor` would allow it",
        )
    return Enforcement(parent=None, why="memory limits are not enforced: this machine has no memory cgroup")


def create(parent: Path, pod_uid: str, memory_bytes: int) -> Path:
    """Create, or reuse, a pod's cgroup with a limit on memory and swap together."""
    group = parent / pod_uid
    group.mkdir(exist_ok=True)
    if (group / "memory.limit_in_bytes").exists():
        (group / "memory.limit_in_bytes").write_text(str(memory_bytes))
        swap = group / "memory.memsw.limit_in_bytes"
        if swap.exists():
            swap.write_text(str(memory_bytes))
    else:
        (group / "memory.max").write_text(str(memory_bytes))
        swap = group / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
    return group


def remove(group: Path) -> None:
    """Remove a pod's cgroup; its processes are gone, but the kernel may take a moment to notice."""
    for _ in range(20):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(0.005)
        else:
            return


def _try(parent: Path, success: str, *, delegate: Path | None = None) -> Enforcement:
    try:
        if delegate is not None:
            (delegate / "cgroup.subtree_control").write_text("+memory")
        parent.mkdir(exist_ok=True)
        if delegate is not None:
            (parent / "cgroup.subtree_control").write_text("+memory")
        probe = parent / f"probe-{os.getpid()}"
        probe.mkdir(exist_ok=True)
        try:
            (probe / "cgroup.procs").read_text()
        finally:
            probe.rmdir()
    except OSError as error:
        return Enforcement(parent=None, why=f"memory limits are not enforced: {error.strerror} at {error.filename}")
    return Enforcement(parent=parent, why=success)
