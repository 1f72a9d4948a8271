"""The entry point of Fairlead's containers: `python runtime.pyz run` for the ranks, `... report DIRECTORY` beside them.

Needs only Python 3.9 or newer: no packages, no network, no root. `run` creates a pod's directory from its instructions,
becomes its shim, and leaves a record of its end as the container's termination message. `report` writes the reports of
the ranks to standard output, one line each, every few seconds or at the given interval; it has a twentieth of a core,
so modules are imported only where needed. `enter DIRECTORY RANK COMMAND...` becomes another command with the
environment of a rank of that directory's pod. `try PLACE` writes to an object store; `give` and `return` download the
inputs and upload the outputs of a pipeline's step. `tracker COMMAND...` starts XGBoost's tracker and becomes a command,
`mpi COMMAND...` MPI's process manager, `ray COMMAND...` a node of a Ray cluster. `export` forwards metrics, and at
`members PORT` the ranks of an `elastic: in_place` run find each other, and `data PORT` serves the data that this pod
has to the run's or endpoint's other pods; only the shim uses these three. `await FILE` and `receive FILE` upload a
working directory to a volume.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from fairlead.errors import RuntimeFault
from fairlead.runtime import podfiles, reporting, run_key, trial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

UUIDS = ("GPU-", "MIG-")
MOST_GPUS = 64
CGROUPS = "/sys/fs/cgroup"
TERMINATION_LOG = "/dev/termination-log"
# The output of the first process of a container, where a program of another process of it is to be read.
CONTAINER_OUTPUT = "/proc/1/fd/1"
COPYING_PYTHON = (3, 11)
LOOK_EVERY_S = 1.0
LOOKS_AFTER_END = 3  # a sidecar that ends before the ranks' container is restarted
OWN_VARIABLES = (
    "FAIRLEAD_INSTRUCTIONS", "FAIRLEAD_COMMAND", "FAIRLEAD_SETUP", "FAIRLEAD_INDEX", "FAIRLEAD_INDEX_BASE",
    run_key.SECRET,
)  # fmt: skip


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1] == "run":
        sys.exit(run(os.environ, os.environ.get("FAIRLEAD_TERMINATION_LOG", TERMINATION_LOG)))
    if len(sys.argv) in (3, 4) and sys.argv[1] == "report":
        report(sys.argv[2], *map(float, sys.argv[3:]))
        return
    if len(sys.argv) >= 5 and sys.argv[1] == "enter":
        enter(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    if len(sys.argv) == 3 and sys.argv[1] == "try":
        sys.exit(trial.main(sys.argv[2]))
    if (sys.argv[1:2], len(sys.argv)) in ((["give"], 4), (["return"], 5)):
        from fairlead.runtime import step_files

        sys.exit(step_files.main(sys.argv[1:]))
    if len(sys.argv) >= 3 and sys.argv[1] == "tracker":
        from fairlead.runtime import tracker

        tracker.main(sys.argv[2:])
    if len(sys.argv) >= 3 and sys.argv[1] == "mpi":
        from fairlead.runtime import process_manager

        process_manager.main(sys.argv[2:])
    if len(sys.argv) >= 3 and sys.argv[1] == "ray":
        from fairlead.runtime import ray_cluster

        ray_cluster.main(sys.argv[2:])
    if len(sys.argv) == 3 and sys.argv[1] == "members":
        from fairlead.runtime.elastic import member_server

        member_server.main(int(sys.argv[2]))
    if len(sys.argv) == 3 and sys.argv[1] == "data":
        from fairlead.runtime.data import peer_server

        peer_server.main(int(sys.argv[2]))
    if sys.argv[1:] == ["export"]:
        from fairlead.runtime.experiment_tracking import exporter

        exporter.main()
    if len(sys.argv) == 3 and sys.argv[1] in ("await", "receive"):
        sys.exit(take_in(sys.argv[1], sys.argv[2]))
    forms = (
        "run | report DIRECTORY [SECONDS] | enter DIRECTORY RANK COMMAND... | try PLACE "
        "| give PLACE DIRECTORY | return PLACE DIRECTORY NUMBER | tracker COMMAND... "
        "| mpi COMMAND... | ray COMMAND... | members PORT | data PORT | export | await FILE | receive FILE"
    )
    sys.exit(f"usage: runtime.pyz {forms}")


def run(environ: Mapping[str, str], termination_log: str) -> int:
    """Run the pod to its end and return the exit code of the rank that failed first, or 0."""
    from fairlead.runtime import shim

    # Nothing has started that would need a grace period, and a container's first process ignores unhandled signals.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    fields = json.loads(environ["FAIRLEAD_INSTRUCTIONS"])
    pod_dir, is_hosted = fields["env"]["FAIRLEAD_POD_DIR"], bool(fields.get("is_hosted"))
    try:
        pod = instructions(environ, os.getcwd())
    except RuntimeFault as error:
        ending = {"at": time.time(), "message": f"the working directory did not arrive: {error}"}
        os.makedirs(pod_dir, exist_ok=True)
        podfiles.write_json(os.path.join(pod_dir, "exit.json"), ending)
        packed = reporting.pack_exit(ending)
        return _record(ending, packed, termination_log, pod_dir if is_hosted else None)
    for directory in (pod_dir, pod["env"]["FAIRLEAD_RUN_DIR"]):
        os.makedirs(directory, exist_ok=True)
    podfiles.write_json(os.path.join(pod_dir, "pod.json"), pod)
    tell_gpus(pod_dir, environ)
    shim.run(pod_dir, None, "a container starts its ranks afresh")
    ending = podfiles.read_json(os.path.join(pod_dir, "exit.json")) or {}
    packed = reporting.pack_exit(ending, pod_dir)
    return _record(ending, packed, termination_log, pod_dir if is_hosted else None)


def tell_gpus(pod_dir: str, environ: Mapping[str, str]) -> None:
    """Record the UUIDs of the GPUs that this container was given, which are not known for certain outside it.

    The device plugin sets them in a variable. If the devices are passed in another way, nvidia-smi is queried in the
    background.
    """
    devices = [device.strip() for device in environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",")]
    uuids = [device for device in devices if device.startswith(UUIDS)]
    if uuids:
        podfiles.write_json(os.path.join(pod_dir, reporting.GPUS), {"uuids": uuids[:MOST_GPUS]})
    elif os.path.exists("/dev/nvidiactl"):
        import threading

        threading.Thread(target=_ask_driver, args=(pod_dir,), daemon=True).start()


def _ask_driver(pod_dir: str) -> None:
    import subprocess

    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):  # an image without nvidia-smi: its GPUs are not recorded
        return
    ids = [part.partition(")")[0].strip() for part in listing.split("UUID:")[1:]]
    uuids = [uuid for uuid in ids if uuid.startswith(UUIDS)]
    if uuids:
        podfiles.write_json(os.path.join(pod_dir, reporting.GPUS), {"uuids": uuids[:MOST_GPUS]})


def instructions(environ: Mapping[str, str], here: str) -> dict[str, Any]:
    """Return the content of pod.json; the working directory exists afterwards.

    Raises:
        RuntimeFault: The working directory cannot be delivered.
    """
    from fairlead.runtime import archives, ranks

    fields: dict[str, Any] = json.loads(environ["FAIRLEAD_INSTRUCTIONS"])
    if environ.get("FAIRLEAD_INDEX"):
        fields = as_member(fields, int(environ["FAIRLEAD_INDEX"]) + int(environ.get("FAIRLEAD_INDEX_BASE") or 0))
    pod_dir = fields["env"]["FAIRLEAD_POD_DIR"]
    workdir = os.path.join(here, fields["workdir"]) if fields["workdir"] else here
    if fields["parts"]:
        archives.unpack(fields["parts"], workdir, fields.get("digest"))
    if fields.get("archive"):
        archives.fetch(fields["archive"], workdir, os.path.dirname(pod_dir))
    # What the container has is added where processes start, so that no file has values of Secrets.
    env: dict[str, str] = dict(fields["env"])
    if "OMP_NUM_THREADS" not in environ:
        env.setdefault("OMP_NUM_THREADS", str(fields["threads"]))
    library = os.path.abspath(sys.argv[0])  # this zip file, which contains the package
    path = env.get("PYTHONPATH", environ.get("PYTHONPATH"))
    env["PYTHONPATH"] = f"{path}:{library}" if path else library
    if environ.get(run_key.SECRET) and env.get(run_key.FILE):
        run_key.write(env[run_key.FILE], environ[run_key.SECRET])
    home = env.get("HOME", environ.get("HOME"))
    if home:
        os.makedirs(home, exist_ok=True)
    of_ranks = [
        {"rank": rank, "local_rank": local, "env": ranks.rank_environment(rank, local, fields["env"])}
        for local, rank in enumerate(fields["ranks"])
    ]
    return {
        "uid": fields["uid"],
        "workdir": workdir,
        "command": environ["FAIRLEAD_COMMAND"],
        "setup": set_up(environ.get("FAIRLEAD_SETUP"), env),
        "trial": [library, "try"],
        "step": [library],
        "begin_by": {"xgboost": [library, "tracker"], "mpi": [library, "mpi"], "ray": [library, "ray"]},
        "export": [library, "export"],
        "members": [library, "members"],
        "data": [library, "data"],
        "memory_cgroup": memory_cgroup(),
        "setup_stamp": os.path.join(os.path.dirname(pod_dir), "setup.done"),
        "env": env,
        "inherits": OWN_VARIABLES,
        "ranks": of_ranks,
        "launch": fields["launch"],
        "grace_s": fields["grace_s"],
        "stall_timeout_s": fields.get("stall_timeout_s"),
        "metrics": fields.get("metrics"),
        "cgroup": None,
        "echo": True,
        "echo_also": CONTAINER_OUTPUT if fields.get("is_hosted") and os.access(CONTAINER_OUTPUT, os.W_OK) else None,
        "log_max_bytes": fields["log_max_bytes"],
        "log_files": fields["log_files"],
        "supervisor": None,
        "supervisor_lock": os.path.join(pod_dir, "supervisor.lock"),
    }


def set_up(setup: str | None, env: Mapping[str, str], version: tuple[int, int] = sys.version_info[:2]) -> str | None:
    """Return the commands before the ranks start: first those that copy data for programs that open files.

    Args:
        env: Variables of the commands, by which they find this zip file.
        version: Version of the container's Python.
    """
    described: dict[str, Any] = json.loads(env.get("FAIRLEAD_DATA") or "{}")
    if not any(fields["mode"] == "copy" for fields in described.values()):
        return setup
    copying = f"'{sys.executable}' -m fairlead.runtime.data.copying"
    if version < COPYING_PYTHON:
        needed, present = (".".join(map(str, numbers)) for numbers in (COPYING_PYTHON, version))
        copying = (
            f'echo "fairlead: data: mode: copy needs Python {needed} in the image, which has {present}" >&2; exit 1'
        )
    return "\n".join([copying, *([setup] if setup else [])])


def memory_cgroup() -> str | None:
    """Return the directory in which a container finds the accounting of its memory, v1 or v2; None if it has none."""
    controllers = ((CGROUPS, "memory.events"), (f"{CGROUPS}/memory", "memory.oom_control"))
    return next((place for place, name in controllers if os.path.exists(f"{place}/{name}")), None)


def as_member(fields: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return another gang member's instructions, derived from the first's: an engine has one template for many pods."""
    uid = fields["uid"].rpartition("-")[0] + f"-{index}"
    first = index * len(fields["ranks"])
    env = {**fields["env"], "FAIRLEAD_POD_UID": uid}
    env.update({name: str(index) for name in ("GROUP_RANK", "NODE_RANK") if name in env})
    return {**fields, "uid": uid, "ranks": list(range(first, first + len(fields["ranks"]))), "env": env}


def take_in(verb: str, path: str) -> int:
    """Run one side of the upload of a working directory to a volume and return the exit code."""
    from fairlead.runtime import archives

    return archives.wait_for(path) if verb == "await" else archives.receive(path, sys.stdin.buffer)


def enter(pod_dir: str, rank: int, command: list[str]) -> NoReturn:
    """Replace this process by a command with a rank's environment; exit with 125 if there is no such rank."""
    from fairlead.runtime import ranks, secret_entries

    pod = secret_entries.read_pod(pod_dir)
    env = None if pod is None else ranks.environment_beside(pod, rank)
    if pod is None or env is None:
        print(f"rank {rank} does not run here now", file=sys.stderr)
        sys.exit(125)
    ranks.become(command, env, pod["workdir"])


def _record(ending: Mapping[str, Any], packed: bytes, termination_log: str, reported_in: str | None) -> int:
    """Write the end into the termination message, or, if the container continues, for its reporter; return its code."""
    if reported_in is None:
        with open(termination_log, "wb") as file:
            file.write(packed)
    else:
        podfiles.write_json(os.path.join(reported_in, reporting.ENDING), json.loads(packed))
    return reporting.exit_code(ending)


def report(pod_dir: str, every_s: float = reporting.REPORT_EVERY_S) -> None:
    """Write one line for each change, at most every ``every_s`` seconds, until stopped; the last change then too.

    Each point of the metrics is written once, in as many lines as needed. The very last line has none.

    It also ends by itself some time after the ranks have ended, because a stop signal sent before its handler was
    installed is not repeated.
    """
    stopped: list[int] = []
    looks_since_end = 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stopped.append(number))
    last_line, said_at, offset = "", 0.0, 0
    while True:
        looks_since_end += os.path.exists(os.path.join(pod_dir, "exit.json"))
        is_last = bool(stopped) or looks_since_end >= LOOKS_AFTER_END
        has_ended = os.path.exists(os.path.join(pod_dir, reporting.ENDING))
        now = time.time()
        if is_last or has_ended or now - said_at >= every_s:
            while True:
                points, after = reporting.read_points(pod_dir, offset)
                if after == offset:
                    break
                offset = after
                print(reporting.pack_report(pod_dir, points), flush=True)
                said_at = now
            line = reporting.pack_report(pod_dir)
            if line != last_line:
                print(line, flush=True)
                last_line, said_at = line, now
        if is_last:
            return
        time.sleep(LOOK_EVERY_S)
