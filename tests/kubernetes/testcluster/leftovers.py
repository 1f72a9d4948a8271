"""What clusters make on this machine, and taking it away, also after the process that made it was killed.

Everything is named after the cluster's directory: network namespaces and cgroups by its last part; mounts lie below it.
A cluster holds a lock in its directory for as long as it lives, so the next one knows what is left over.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.kubernetes.testcluster.errors import Broken

BASE = Path("/tmp")
"""Whatever TMPDIR says: every process must find the clusters of all, and sockets take short paths alone."""

PREFIX = "fairlead-testcluster-"
LOCK = "alive"
SWEEP_LOCK = "fairlead-leftovers.lock"
NAMESPACES = Path("/var/run/netns")
CGROUPS = Path("/sys/fs/cgroup")
CONTAINER_LOGS = Path("/var/log/containers")
KEEP_LOGS_S = 24 * 3600


def new_home() -> Path:
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=BASE))


def sweep() -> None:
    """Take away what dead clusters left, but for logs that were kept less than a day ago; one process at a time."""
    with (BASE / SWEEP_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep()


def _sweep() -> None:
    for home in BASE.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # a cluster that stops removes its own
            if (home / LOCK).exists() and not _is_held(home / LOCK):
                remove(home, keep_logs=False)
            elif not (home / LOCK).exists() and time.time() - home.stat().st_mtime > KEEP_LOGS_S:
                shutil.rmtree(home)
    # A directory comes first and goes last: without one, nothing of that name is alive.
    for name in _names():
        if not (BASE / name).exists():
            remove(BASE / name, keep_logs=False)


def remove(home: Path, *, keep_logs: bool) -> None:
    """Take away all that the cluster of this directory made."""
    assert home.name.startswith(PREFIX), home
    _end_processes(home)
    _unmount(home)
    _remove_cgroups(home.name)
    for namespace in _namespaces(home.name):
        subprocess.run(["ip", "netns", "delete", namespace.name], check=True, timeout=60)
    _remove_files_elsewhere(home)
    if not keep_logs:
        shutil.rmtree(home, ignore_errors=True)
        return
    for entry in home.iterdir():
        if entry.suffix in {".log", ".jsonl"}:
            continue
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
    print(f"testcluster: its logs are in {home}", file=sys.__stderr__, flush=True)


def cgroups(name: str) -> list[Path]:
    """The cgroups of this name and all below them, the deepest first."""
    found = [path for top in hierarchies() for path in (top / name, *(top / name).rglob("*")) if path.is_dir()]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def hierarchies() -> Iterator[Path]:
    tops = CGROUPS.iterdir() if CGROUPS.is_dir() else ()
    return (path for path in tops if path.is_dir() and not path.is_symlink())


def _is_held(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _names() -> set[str]:
    """The clusters that have cgroups or network namespaces."""
    grouped = {cgroup.name for top in hierarchies() for cgroup in top.glob(f"{PREFIX}*")}
    return grouped | {namespace.name.rpartition("-")[0] for namespace in NAMESPACES.glob(f"{PREFIX}*")}


def _namespaces(name: str) -> list[Path]:
    return list(NAMESPACES.glob(f"{name}-*")) if NAMESPACES.is_dir() else []


def _end_processes(home: Path) -> None:
    """Kill what runs in its network namespaces or cgroups: containers and their shims outlive containerd."""
    for _ in range(50):
        pids: set[int] = set()
        for namespace in _namespaces(home.name):
            listed = subprocess.run(
                ["ip", "netns", "pids", namespace.name], capture_output=True, text=True, check=True, timeout=60
            )
            pids.update(int(pid) for pid in listed.stdout.split())
        for cgroup in cgroups(home.name):
            with contextlib.suppress(OSError):
                pids.update(int(pid) for pid in (cgroup / "cgroup.procs").read_text().split())
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _unmount(home: Path) -> None:
    for mount in reversed(_mounts(home)):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True, timeout=60)
    # What is still mounted there may be a directory of the machine: nothing must be removed through it.
    if left := _mounts(home):
        raise Broken(f"cannot unmount {left}; not removing {home}")


def _mounts(home: Path) -> list[str]:
    """Mount points below it, in the order of their making."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [point for point in points if point.startswith(f"{home}/")]


def _remove_cgroups(name: str) -> None:
    deadline = time.monotonic() + 5
    while (left := cgroups(name)) and time.monotonic() < deadline:
        for cgroup in left:
            with contextlib.suppress(OSError):  # a process of it may take a moment to be gone
                cgroup.rmdir()


def _remove_files_elsewhere(home: Path) -> None:
    """Shims have sockets in one place of the machine, CNI its results in another, kubelet links to logs in a third."""
    for task in home.glob("*/containerd/state/io.containerd.runtime.v2.task/k8s.io/*"):
        with contextlib.suppress(FileNotFoundError):
            Path((task / "address").read_text().removeprefix("unix://")).unlink(missing_ok=True)
        for result in Path("/var/lib/cni/results").glob(f"*-{task.name}-*"):
            result.unlink(missing_ok=True)
    for link in CONTAINER_LOGS.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # the kubelet of another cluster removes what is its own
            if link.is_symlink() and link.readlink().is_relative_to(home):
                link.unlink(missing_ok=True)
