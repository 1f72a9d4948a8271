"""Memory limits by cgroups: one group for each pod, where this user may make one; a sentence where not."""

import errno
import os
import time
from pathlib import Path

from fairlead.frozen import dataclass

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Says whether memory limits bind here.

    Attributes:
        parent: Directory in which groups of pods are made; None when limits do not bind.
        why: One sentence for people.
    """

    parent: Path | None
    why: str


def enforcement() -> Enforcement:
    """Find out, by trying, whether this process may limit the memory of others."""
    if (V1 / "memory.limit_in_bytes").exists():
        parent = V1 / "fairlead"
        return _try(parent, f"memory limits are enforced through cgroup v1 ({parent})")
    if (V2 / "cgroup.controllers").exists():
        own = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2].lstrip("/")
        for base in (V2, (V2 / own).parent):
            parent = base / "fairlead"
            found = _try(parent, f"memory limits are enforced through cgroup v2 ({parent})", delegate=base)
            if found.parent is not None:
                return found
        return Enforcement(
            parent=None,
            why="memory limits are not enforced: this user may not make cgroups below "
            f"{(V2 / own).parent}; `systemd-run --user --scope -p Delegate=yes fairlead supervisor` would allow it",
        )
    return Enforcement(parent=None, why="memory limits are not enforced: this machine has no memory cgroup")


def create(parent: Path, pod_uid: str, memory_bytes: int) -> Path:
    """A group for one pod with a limit on memory and swap together; made again, it is the same one."""
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
    """Remove a pod's group; its processes are gone, but the kernel may need a moment to notice."""
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
