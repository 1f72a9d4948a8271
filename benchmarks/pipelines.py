"""Overhead of pipelines beyond the work of their steps: forty chained steps of 10 ms, and a thousand cached ones.

    python -m benchmarks.pipelines [--rounds 5] [--peers] [--json]

The driver runs as in a run: a process for each step, a line of the journal before and after it, its result in the
database. ``whole`` is `fairlead run` from the command to its end, with a running supervisor. Published figures of
others for forty durable steps on two cores: Hatchet 1.22 s, Temporal 2.97 s, Prefect 4.87 s, Airflow 116 s. The bars
are 1 s each. ``--peers`` runs Prefect, Metaflow and Flyte's local execution here, each in its own environment, with the
same forty steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import peers
from benchmarks.bytecode import keep_compiled
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.specs.formats.rendering import to_yaml
from fairlead.specs.formats.serialization import to_json
from fairlead.specs.pipeline import Cache, Pipeline, Step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured (default 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--peers", action="store_true", help="Prefect, Metaflow and Flyte too, once each")
    arguments = parser.parse_args()
    keep_compiled()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory), arguments.rounds)
        if arguments.peers:
            figures |= beside(Path(directory))
    figures["load"] = {"median_s": os.getloadavg()[0]}
    if arguments.json:
        print(json.dumps(figures))
        return
    print(f"{'':<34}{'median s':>10}{'best s':>10}{'CPU s':>10}")
    for name, values in figures.items():
        if name == "load":
            print(f"load of the machine: {values['median_s']:.1f} on {os.cpu_count()} cores")
        else:
            print(f"{name:<34}" + "".join(f"{values[key]:>10.2f}" for key in ("median_s", "best_s", "cpu_s")))


def measure(place: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Every figure, in seconds."""
    forty, thousand = chain(40, "sleep 0.01", off=True), chain(1000, "true", off=False)
    figures = {"forty steps of 10 ms, driver": _driven(place / "a", forty, rounds)}
    figures["a thousand that all hit, driver"] = _driven(place / "b", thousand, rounds)
    with _supervised(place / "home") as environ:
        figures["forty steps of 10 ms, whole"] = _whole(place / "c", forty, rounds, environ)
        figures["a thousand that all hit, whole"] = _whole(place / "d", thousand, rounds, environ)
    return figures


def beside(place: Path) -> dict[str, dict[str, float]]:
    """Seconds of forty steps of 10 ms in other tools that can be installed; the others are told."""
    figures = {}
    for peer in ("prefect", "metaflow", "flyte"):
        own = place / peer
        own.mkdir()
        env = {
            **os.environ,
            "HOME": str(own), "USER": "benchmark", "PREFECT_HOME": str(own / "home"), "PREFECT_LOGGING_LEVEL": "ERROR",
            "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        }  # fmt: skip
        before = _cpu_s()
        found = peers.run(peer, f"{peer}_chain.py", "40", place=own, env=env)
        if isinstance(found, str):
            print(found)
            continue
        took_s = float(found[0].split()[-1])
        figures[f"forty steps of 10 ms, {peer}"] = {"median_s": took_s, "best_s": took_s, "cpu_s": _cpu_s() - before}
    return figures


def chain(length: int, command: str, *, off: bool) -> Pipeline:
    """Steps each of which needs the one before."""
    steps = {f"s{n}": Step(run=command, needs=(f"s{n - 1}",) if n else (), cache=Cache(off=off)) for n in range(length)}
    return Pipeline(name=f"chain-{length}", steps=steps)


def _driven(place: Path, pipeline: Pipeline, rounds: int) -> dict[str, float]:
    work = place / "work"
    work.mkdir(parents=True, exist_ok=True)
    (place / "spec.json").write_text(to_json(pipeline))
    argv = [sys.executable, "-m", "fairlead.control.pipelines.driver", str(place / "spec.json"), str(place / "store")]

    def once(number: int) -> None:
        files = Path(tempfile.mkdtemp(dir=place))
        own = {"FAIRLEAD_RUN_DIR": str(files), "FAIRLEAD_POD_DIR": str(files), "FAIRLEAD_RUN_UID": f"r{number}"}
        subprocess.run(argv, cwd=work, env={**os.environ, **own}, stdout=subprocess.DEVNULL, check=True)

    return _timed(once, rounds)


def _whole(place: Path, pipeline: Pipeline, rounds: int, environ: dict[str, str]) -> dict[str, float]:
    place.mkdir(parents=True)
    (place / "chain.yaml").write_text(to_yaml(pipeline, form="short"))
    argv = [sys.executable, "-m", "fairlead.cli.start", "run", "chain.yaml"]
    quiet = subprocess.DEVNULL
    return _timed(
        lambda _: subprocess.run(argv, cwd=place, env=environ, stdout=quiet, stderr=quiet, check=True), rounds
    )


def _timed(once: "object", rounds: int) -> dict[str, float]:
    assert callable(once)
    took, cpu = [], []
    once(rounds)  # compiles what is new, and fills the cache
    for number in range(rounds):
        began, before = time.perf_counter(), _cpu_s()
        once(number)
        took.append(time.perf_counter() - began)
        cpu.append(_cpu_s() - before)
    return {"median_s": statistics.median(took), "best_s": min(took), "cpu_s": statistics.median(cpu)}


def _cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


@contextmanager
def _supervised(home: Path) -> Iterator[dict[str, str]]:
    """A state directory whose supervisor runs."""
    environ = {**os.environ, "FAIRLEAD_HOME": str(home)}
    argv = [sys.executable, "-m", "fairlead.cli.start", "run", "--", "true"]
    subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    yield environ
    cluster = LocalCluster.open(home)
    pid = cluster.supervisor_pid()
    if pid is not None:
        os.kill(pid, 15)
    cluster.close()


if __name__ == "__main__":
    main()
