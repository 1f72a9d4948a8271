"""The supervisor's cost: resident memory and CPU, with nothing to do and with one quiet run.

    python -m benchmarks.supervisor [--seconds 20] [--endpoints N] [--json]

Plain torchrun stays in the foreground, so there is no peer; the bars are 60 MB and 1 % of a core. `--endpoints`
instead measures that many endpoints that have scaled to zero, each after its first replica was ready: the supervisor,
the gateway and its standby. For 1,000 endpoints the bars are 200 MB and 1 % of a core for all three. It also says how
much CPU time the supervisor took until all slept.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.specs.resources import Resources
from fairlead.specs.serving import Scale, Serving
from fairlead.specs.training import Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Workload

SERVER = """
import os, socket
listening = socket.create_server((os.environ["HOST"], int(os.environ["PORT"])))
while True:
    connection, _ = listening.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each state is watched (default 20)")
    parser.add_argument("--endpoints", type=int, help="measure so many endpoints without replicas instead")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    bars = "60 MB, 1 %" if arguments.endpoints is None else "200 MB, 1 %"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if arguments.endpoints is None:
            figures = measure_both(Path(directory), arguments.seconds)
        else:
            figures = measure_idle_endpoints(Path(directory), arguments.seconds, arguments.endpoints)
    if arguments.json:
        print(json.dumps(figures))
        return
    print(f"{'supervisor':<20}{'resident MB':>12}{'% of a core':>14}{'bars':>16}")
    for state, values in figures.items():
        print(f"{state:<20}{values['resident_mb']:>12.1f}{values['core_percent']:>14.2f}{bars:>16}")
        if "cpu_s_before" in values:
            print(f"{'':<20}{values['cpu_s_before']:>12.1f} s of CPU until all slept")


def measure_both(home: Path, seconds: float) -> dict[str, dict[str, float]]:
    """Figures with a run that does nothing, and after it."""
    cluster = LocalCluster.open(home)
    run = cluster.submit(Training(name="quiet", run="sleep 1000", workdir=str(home), ranks_per_node=2))
    cluster.nudge()
    while (pid := cluster.supervisor_pid()) is None or cluster.store.get(run.uid).status.phase != "Running":
        time.sleep(0.05)
    process = psutil.Process(pid)
    try:
        time.sleep(1.0)
        with_run = measure(process, seconds)
        cluster.set_intent(run.uid, Intent.STOP)
        cluster.nudge()
        while not cluster.store.get(run.uid).status.phase.is_final:
            time.sleep(0.05)
        time.sleep(1.0)
        return {"one quiet run": with_run, "nothing to do": measure(process, seconds)}
    finally:
        process.terminate()
        process.wait(10)
        cluster.close()


def measure_idle_endpoints(home: Path, seconds: float, num: int) -> dict[str, dict[str, float]]:
    """Figures of each process and of all, once no endpoint has a replica."""
    cluster = LocalCluster.open(home)
    (home / "server.py").write_text(SERVER)
    run = f"{sys.executable} -S server.py"
    made = [
        cluster.submit(
            Serving(
                name=f"idle-{number}", run=run, workdir=str(home), replicas=0, most_replicas=1, snapshot=False,
                scale=Scale(idle_s=1.0), resources=Resources(cpu_milli=100),
            )
        )
        for number in range(num)
    ]  # fmt: skip
    left = {each.uid for each in made}
    cluster.nudge()
    submitted_at = time.monotonic()
    while left := {uid for uid in left if not _sleeps(cluster.store.get(uid))}:
        if time.monotonic() - submitted_at > 60 + 5 * num:
            raise SystemExit(f"{len(left)} endpoints have not scaled to zero")
        time.sleep(1.0)
    supervisor = psutil.Process(cluster.supervisor_pid())
    gateway = psutil.Process(int((cluster.home.serving / "gateway.lock").read_text()))
    try:
        begun = supervisor.cpu_times()
        time.sleep(5.0)
        processes = {"supervisor": supervisor, "gateway": gateway, "standby": gateway.children()[0]}
        figures = measure_all(processes, seconds)
        figures["supervisor"]["cpu_s_before"] = begun.user + begun.system
        every = {key: sum(each[key] for each in figures.values()) for key in ("resident_mb", "core_percent")}
        return {**figures, f"{num} idle endpoints": every}
    finally:
        supervisor.kill()  # it would go on as long as there are endpoints
        gateway.terminate()
        gateway.wait(30)
        cluster.close()


def _sleeps(endpoint: Workload) -> bool:
    reason = endpoint.status.reason
    return reason is not None and reason.code is Code.ASLEEP


def measure(process: psutil.Process, seconds: float) -> dict[str, float]:
    """Memory and share of a core over a time."""
    return measure_all({"": process}, seconds)[""]


def measure_all(processes: Mapping[str, psutil.Process], seconds: float) -> dict[str, dict[str, float]]:
    """The same of several processes at the same time."""
    before = {name: process.cpu_times() for name, process in processes.items()}
    time.sleep(seconds)
    found = {}
    for name, process in processes.items():
        after = process.cpu_times()
        used = after.user + after.system - before[name].user - before[name].system
        found[name] = {"resident_mb": process.memory_info().rss / 1e6, "core_percent": 100 * used / seconds}
    return found


if __name__ == "__main__":
    main()
