"""Response times of `fairlead ui` with many runs: a whole server process, over loopback.

    python -m benchmarks.ui [--runs 100000] [--calls 15] [--playwright PYTHON] [--json]

`first` is from a request until the last byte of the page of runs, which needs no script to be painted; an event is
timed from its commit until the page that shows it has arrived by the stream that an open page listens to. `cpu` is the
server's processor time a call, which a busy machine changes least. Memory is its resident set after all of that, idle
processor time that of 10 seconds with one page open and nothing to tell. With a Python that has Playwright, and
Chromium on PATH, the first contentful paint is timed too, each in a new context as a newcomer's browser has it.
Bars: a first page within 150 ms, an event within 200 ms, less than 60 MB.
"""

import argparse
import fcntl
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.store import LocalStore
from fairlead.cluster.records import dump
from fairlead.specs.formats.serialization import to_json
from fairlead.specs.training import Training
from fairlead.state.plan import Event
from fairlead.state.reasons import JUST_SUBMITTED, Code, Reason
from fairlead.state.snapshot import Intent, Phase, Progress, Status

VIEWS = {
    "runs": "/",
    "runs that failed": "/?state=Failed",
    "runs by a name of few": "/?q=run-4711",
    "runs by a name of none": "/?q=nothing",
    "sweeps, of which there are none": "/?kind=Sweep",
    "one run": "/runs/{uid}",
    "queue": "/queue",
    "cluster": "/cluster",
    "teams": "/teams",
    "cost": "/cost",
}
BARS = {"first_ms": 150.0, "event_ms": 200.0, "memory_mb": 60.0}
IDLE_S = 10.0
PATIENCE_S = 60.0
RUNNING_UID = "a0000000000"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000, help="finished runs in the store (default 100000)")
    parser.add_argument("--calls", type=int, default=15, help="calls of each view, and events (default 15)")
    parser.add_argument(
        "--playwright", metavar="PYTHON", help="a Python with Playwright, to time Chromium's first paint"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-") as directory:
        home = Path(directory)
        fill(home, arguments.runs)
        told = measure(home, arguments.calls, arguments.playwright)
    told = {"runs": arguments.runs, "load": os.getloadavg()[0], **told, "bars": BARS}
    if arguments.json:
        print(json.dumps(told))
        return
    print(f"{arguments.runs:,} runs kept, load {told['load']:.1f}")
    print(f"{'milliseconds':<36}{'first':>8}{'median':>8}{'most':>8}{'cpu':>8}")
    for name, took in told["views_ms"].items():
        cpu = told["views_cpu_ms"][name]
        print(f"{name:<36}{took[0]:>8.0f}{median(took[1:]):>8.0f}{max(took[1:]):>8.0f}{cpu:>8.0f}")
    for path, took in told["paint_ms"].items():
        print(f"{'first paint of ' + path:<36}{took[0]:>8.0f}{median(took):>8.0f}{max(took):>8.0f}")
    events = told["events_ms"]
    print(f"{'an event, until it has arrived':<36}{events[0]:>8.0f}{median(events):>8.0f}{max(events):>8.0f}")
    print(f"memory {told['memory_mb']:.1f} MB, idle {told['idle_percent']:.2f} % of a core with one page open")


def fill(home: Path, runs: int) -> None:
    """A store with finished runs and one that runs."""
    cluster = LocalCluster.open(home)
    now = time.time()
    ended = Reason(code=Code.COMPLETED, message="all ranks succeeded after 1000 steps in 1h 2m")
    rows = []
    statuses = {
        phase: dump(
            Status(phase=phase, reason=ended, since=now, started_at=now, finished_at=now if phase.is_final else None)
        )
        for phase in (Phase.RUNNING, Phase.FAILED, Phase.SUCCEEDED)
    }
    # Written once and named anew: what is measured is reading.
    template = to_json(Training(name="run-x", team="team-x", run="python train.py --lr 0.1", workdir="/"))
    progress = dump(Progress(step=1000, total_steps=1000, loss=0.5))
    for number in range(runs + 1):
        is_over, at = number < runs, now - 60 * (runs - number)
        phase = Phase.RUNNING if not is_over else Phase.FAILED if number % 10 == 0 else Phase.SUCCEEDED
        uid, name, team = f"{number:011x}" if is_over else RUNNING_UID, f"run-{number}", f"team-{number % 7}"
        spec = template.replace("run-x", name).replace("team-x", team)
        intent = Intent.STOP if is_over else Intent.RUN
        rows.append((uid, team, name, spec, intent, 3, phase, int(is_over), 0, statuses[phase], progress, at))
    database = cluster.store._db
    database.execute("BEGIN")
    database.executemany(
        "INSERT INTO workloads (uid, team, name, spec, intent, version, phase, final, attempt, status, progress, "
        "created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    database.executemany(
        "INSERT INTO events (at, workload_uid, run, type, reason) VALUES (?, ?, ?, 'Submitted', ?)",
        [(row[11], row[0], row[2], dump(JUST_SUBMITTED)) for row in rows],
    )
    database.execute("COMMIT")
    cluster.close()


def measure(home: Path, calls: int, playwright: str | None) -> dict[str, Any]:
    """What a server of its own takes."""
    argv = [sys.executable, "-m", "fairlead.cli.main", "ui", "--port", "0", "--json"]
    # A lock that is held keeps a supervisor away, which would find a run without pods and start it again.
    cluster = LocalCluster.open(home)
    held = os.open(cluster.home.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    environ = {**os.environ, "FAIRLEAD_HOME": str(home)}
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(json.loads(process.stdout.readline())["url"].rsplit(":", 1)[1].strip("/"))
            views, processor = dict[str, list[float]](), dict[str, float]()
            for name, path in VIEWS.items():
                before = cpu_s(process.pid)
                views[name] = [call(port, path.format(uid=RUNNING_UID)) for _ in range(calls)]
                processor[name] = 1000 * (cpu_s(process.pid) - before) / calls
            paint = {} if playwright is None else painted(playwright, port, calls)
            events, idle = stream(port, cluster.store, process.pid, calls)
            memory = resident_mb(process.pid)
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    cluster.close()
    os.close(held)
    first = views["runs"][0]
    return {
        "first_ms": first, "views_ms": views, "views_cpu_ms": processor, "paint_ms": paint, "events_ms": events,
        "memory_mb": memory, "idle_percent": idle,
    }  # fmt: skip


def painted(playwright: str, port: int, calls: int) -> dict[str, list[float]]:
    """Milliseconds until Chromium has painted something, for some addresses."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("There is no chromium on PATH; Debian's package of that name has it.")
    paths = ["/", "/queue", f"/runs/{RUNNING_UID}"]
    argv = [playwright, str(Path(__file__).with_name("painting.py")), chromium, str(calls), f"http://127.0.0.1:{port}"]
    ended = subprocess.run([*argv, *paths], capture_output=True, text=True, timeout=10 * PATIENCE_S, check=True)
    found: dict[str, list[float]] = json.loads(ended.stdout)
    return found


def call(port: int, path: str) -> float:
    """Milliseconds until a page is there, over a connection of its own."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    took = time.perf_counter() - began
    connection.close()
    assert answer.status == 200, content
    return 1000 * took


def stream(port: int, store: LocalStore, pid: int, calls: int) -> tuple[list[float], float]:
    """Milliseconds from an event to its arrival, and the share of a core that is used while nothing happens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", f"/live?view=/runs/{RUNNING_UID}")
    answer = connection.getresponse()
    _read(answer, "Submitted")
    took = []
    for number in range(calls):
        time.sleep(1.0)  # what was shown just now is not shown anew at once
        word = f"it happened for the {number}. time."
        store.note(RUNNING_UID, Event(type="Noted", reason=Reason(code=Code.REPORTED, message=word)), time.time())
        began = time.perf_counter()
        _read(answer, word)
        took.append(1000 * (time.perf_counter() - began))
    connection.close()
    quiet = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    quiet.request("GET", "/live?view=/")
    _read(quiet.getresponse(), "run-")
    time.sleep(2.0)
    before = cpu_s(pid)
    time.sleep(IDLE_S)
    idle = 100 * (cpu_s(pid) - before) / IDLE_S
    quiet.close()
    return took, idle


def _read(answer: http.client.HTTPResponse, word: str) -> None:
    """Read lines until one has the word."""
    while line := answer.readline():
        if line.startswith(b"data: ") and word.encode() in line:
            return
    raise AssertionError(f"the stream ended before {word!r}")


def cpu_s(pid: int) -> float:
    """Seconds of a processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """The resident set of a process, in millions of bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmRSS"))
    return int(kib) * 1024 / 1e6


if __name__ == "__main__":
    main()
