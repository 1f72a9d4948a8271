"""Refuses a state directory that another machine uses by a network file system, as where home directories are shared.

SQLite's write-ahead log, sockets and process ids are those of one machine: two would damage the database, and one would
take the other's runs for its own. A directory on a disk may be that of a container, or of a machine that was renamed.
"""

import contextlib
import os
import socket
from pathlib import Path

from fairlead.errors import ClusterError

MARK = "machine"
MOST_CHARACTERS = 400
MACHINE_ID = Path("/etc/machine-id")
NETWORK_FILE_SYSTEMS = frozenset(
    (
        "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
        "orangefs", "panfs", "smb3", "smbfs", "weka", "wekafs", "fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs",
        "fuse.juicefs", "fuse.sshfs",
    )
)  # fmt: skip
"""Types of file systems that several machines mount, as Linux and macOS name them."""


def check_machine(directory: Path) -> None:
    """Mark a state directory as that of this machine.

    Raises:
        ClusterError: It is that of another machine, and on a network file system.
        OSError: The mark cannot be read.
    """
    mark, own = directory / MARK, f"{socket.gethostname()} {_machine_id()}".rstrip()
    try:
        with mark.open(encoding="utf-8", errors="replace") as file:
            known = file.read(MOST_CHARACTERS).strip()
    except FileNotFoundError:
        known = ""
    if known == own:
        return
    if known and (kind := file_system_of(directory)) in NETWORK_FILE_SYSTEMS:
        host, here = known.partition(" ")[0], own.partition(" ")[0]
        raise ClusterError(
            f"{directory} is the state of {host}, and this is {here}: both see it by {kind}, and two machines cannot "
            f"share one. Give this machine its own, as with `export FAIRLEAD_HOME={directory}-{here}`, or work on "
            f"{host}. If {host} is this machine, renamed or made anew, `rm {mark}`."
        )
    temporary = directory / f".{MARK}-{os.getpid()}"
    with contextlib.suppress(OSError):  # a full disk, on which runs can still be stopped
        temporary.write_text(f"{own}\n", encoding="utf-8")
        temporary.replace(mark)


def file_system_of(path: Path) -> str:
    """Return the type of the file system of a path; empty where it is not known."""
    import psutil  # imported here because the directory is nearly always that of this machine

    real = os.path.realpath(path)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if Path(real).is_relative_to(mount.mountpoint)]
    # The last of several at one place hides those before it.
    return str(max(enumerate(mounts), key=lambda pair: (len(pair[1].mountpoint), pair[0]))[1].fstype) if mounts else ""


def _machine_id() -> str:
    try:
        return MACHINE_ID.read_text(encoding="ascii", errors="replace").strip()[:64]
    except OSError:
        return ""
