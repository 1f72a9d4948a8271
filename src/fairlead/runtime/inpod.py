"""What a container of Fairlead's runs: `python runtime.pyz run` for the ranks, `... report DIRECTORY` beside them.

Needs nothing but a Python from 3.9 on: no package, no network, no root. `run` makes a pod's directory out of its
instructions, becomes its shim, and leaves a record of the end as the container's termination message. `report` writes
what the ranks say of themselves to its standard output, one line each. `enter DIRECTORY RANK COMMAND...` becomes
another command with what a rank of that directory's pod was given.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tarfile
import time

from fairlead.runtime import podfiles, reporting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

TERMINATION_LOG = "/dev/termination-log"
LOOK_EVERY_S = 1.0
OWN_VARIABLES = ("FAIRLEAD_INSTRUCTIONS", "FAIRLEAD_COMMAND", "FAIRLEAD_SETUP")


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1] == "run":
        sys.exit(run(os.environ, os.environ.get("FAIRLEAD_TERMINATION_LOG", TERMINATION_LOG)))
    if len(sys.argv) == 3 and sys.argv[1] == "report":
        report(sys.argv[2])
        return
    if len(sys.argv) >= 5 and sys.argv[1] == "enter":
        enter(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    sys.exit("usage: runtime.pyz run | report DIRECTORY | enter DIRECTORY RANK COMMAND...")


def run(environ: Mapping[str, str], termination_log: str) -> int:
    """Runs the pod to its end; the exit code is that of the rank that failed first, or 0."""
    from fairlead.runtime import shim

    given = instructions(environ, os.getcwd())
    pod_dir = given["env"]["FAIRLEAD_POD_DIR"]
    for directory in (pod_dir, given["env"]["FAIRLEAD_RUN_DIR"]):
        os.makedirs(directory, exist_ok=True)
    podfiles.write_json(os.path.join(pod_dir, "pod.json"), given)
    shim.run(pod_dir, None, "a container starts its ranks afresh")
    record: dict[str, Any] = podfiles.read_json(os.path.join(pod_dir, "exit.json")) or {}
    with open(termination_log, "wb") as file:
        file.write(reporting.pack_exit(record))
    return reporting.exit_code(record)


def instructions(environ: Mapping[str, str], here: str) -> dict[str, Any]:
    """The content of pod.json; unpacks the working directory when there is one to unpack."""
    told: dict[str, Any] = json.loads(environ["FAIRLEAD_INSTRUCTIONS"])
    pod_dir = told["env"]["FAIRLEAD_POD_DIR"]
    workdir = os.path.join(here, told["workdir"]) if told["workdir"] else here
    if told["parts"]:
        unpack(told["parts"], workdir)
    env = {name: value for name, value in environ.items() if name not in OWN_VARIABLES}
    env.update(told["env"])
    env.setdefault("OMP_NUM_THREADS", str(told["threads"]))
    library = os.path.abspath(sys.argv[0])  # this very file, which has the package in it
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{library}" if env.get("PYTHONPATH") else library
    if env.get("HOME"):
        os.makedirs(env["HOME"], exist_ok=True)
    ranks = [
        {
            "rank": rank,
            "local_rank": local,
            "env": {"RANK": str(rank), "LOCAL_RANK": str(local), "ROLE_RANK": str(rank)},
        }
        for local, rank in enumerate(told["ranks"])
    ]
    return {
        "uid": told["uid"],
        "workdir": workdir,
        "command": environ["FAIRLEAD_COMMAND"],
        "setup": environ.get("FAIRLEAD_SETUP"),
        "setup_stamp": os.path.join(os.path.dirname(pod_dir), "setup.done"),
        "env": env,
        "ranks": ranks,
        "launch": told["launch"],
        "grace_s": told["grace_s"],
        "cgroup": None,
        "echo": True,
        "log_max_bytes": told["log_max_bytes"],
        "log_files": told["log_files"],
        "supervisor": None,
        "supervisor_lock": os.path.join(pod_dir, "supervisor.lock"),
    }


def unpack(parts: str, directory: str) -> None:
    """The archive whose pieces lie in a directory, in the order of their names."""
    pieces = []
    for name in sorted(os.listdir(parts)):
        path = os.path.join(parts, name)
        if not name.startswith(".") and os.path.isfile(path):
            with open(path, "rb") as file:
                pieces.append(file.read())
    os.makedirs(directory, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces)), mode="r:*") as archive:
        for member in archive:
            _extract(archive, member, directory)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, directory: str) -> None:
    """One file, below the directory and nowhere else; older Pythons have no filter that would see to it."""
    root = os.path.realpath(directory)
    place = os.path.realpath(os.path.join(root, member.name))
    if not (member.isfile() or member.isdir()) or os.path.commonpath((root, place)) != root:
        raise ValueError(f"the working directory's archive holds {member.name!r}, which is no file below it")
    if member.isdir():
        os.makedirs(place, exist_ok=True)
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    content = archive.extractfile(member)
    assert content is not None
    with open(place, "wb") as file:
        file.write(content.read())
    os.chmod(place, 0o755 if member.mode & 0o100 else 0o644)


def enter(pod_dir: str, rank: int, command: list[str]) -> NoReturn:
    """Becomes a command with what a rank was given, the way ranks begin; 125 if there is no such rank."""
    from fairlead.runtime import ranks

    given: dict[str, Any] | None = podfiles.read_json(os.path.join(pod_dir, "pod.json"))
    env = None if given is None else ranks.environment_beside(given, rank)
    if given is None or env is None:
        print(f"rank {rank} does not run here now", file=sys.stderr)
        sys.exit(125)
    ranks.become(command, env, given["workdir"])


def report(pod_dir: str) -> None:
    """One line whenever there is news, at most every few seconds, until told to stop; the last news then too."""
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stopped.append(number))
    said, said_at = "", 0.0
    while True:
        is_last = bool(stopped)
        now = time.time()
        if is_last or now - said_at >= reporting.REPORT_EVERY_S:
            line = reporting.pack_report(pod_dir)
            if line != said:
                print(line, flush=True)
                said, said_at = line, now
        if is_last:
            return
        time.sleep(LOOK_EVERY_S)
