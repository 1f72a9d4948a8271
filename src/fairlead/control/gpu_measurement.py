"""Measures this machine's GPUs for estimates of training steps, and stores the results in the state directory."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.json_records import read_records, write_records
from fairlead.errors import Conflict
from fairlead.policy.strategy.gpus import MeasuredGpu
from fairlead.policy.strategy.step_time import TILE_COLUMNS, TILE_ROWS, waves_of
from fairlead.runtime.podfiles import read_json

PROGRAM = "fairlead.runtime.parallelism.measuring"
ASK_S, PATIENCE_S = 60.0, 300.0
LIBRARY = str(Path(__file__).resolve().parents[2])
ASK = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
Device = Literal["cuda", "cpu"]


def read_measured(home: Home | None = None) -> tuple[MeasuredGpu, ...]:
    """Return the measurements in the state directory of this machine; empty if there are none.

    Raises:
        ClusterError: The file cannot be read.
    """
    path = Home.at().gpus if home is None else home.gpus
    return read_records(path, "gpus", MeasuredGpu, "Remove it and measure again.")


def measure(home: Home, env: Mapping[str, str], now: float) -> MeasuredGpu:
    """Measure all of this machine's GPUs at once, and replace the stored measurement of the same GPU model.

    Raises:
        Conflict: The Python that runs use has no torch, torch finds no GPU, or the measurement failed.
    """
    python = shutil.which("python", path=env.get("PATH")) or sys.executable
    ended = _run([python, "-c", ASK], env, ASK_S)
    if "No module named 'torch'" in ended.stderr:
        raise Conflict(f"gpu: torch is not in {python}, the Python that runs use; `pip install torch` there")
    if ended.returncode != 0:
        raise Conflict(f"gpu: torch cannot be used in {python}: {_last(ended.stderr)}")
    count = int(ended.stdout)
    if not count:
        raise Conflict(f"gpu: the torch of {python} finds no GPU on this machine; measure where there is one")
    measured = measured_on(python, "cuda", count, env, now)
    others = [other for other in read_measured(home) if other.name != measured.name]
    write_records(home.gpus, "gpus", (*others, measured))
    return measured


def measured_on(python: str, device: Device, ranks: int, env: Mapping[str, str], now: float) -> MeasuredGpu:
    """Measure with a number of ranks.

    Raises:
        Conflict: A rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="fairlead-measure-") as folder:
        result, rendezvous = Path(folder) / "result.json", str(Path(folder) / "rendezvous")
        own = {**env, "PYTHONPATH": ":".join(filter(None, (env.get("PYTHONPATH"), LIBRARY)))}
        processes = [
            subprocess.Popen(
                [python, "-m", PROGRAM, str(result), rendezvous, str(rank), str(ranks), device],
                env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            errors = [process.communicate(timeout=PATIENCE_S)[1] for process in processes]
        except subprocess.TimeoutExpired:
            raise Conflict(f"gpu: measuring did not end in {PATIENCE_S:.0f} s") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for child, error in zip(processes, errors, strict=True):
            if child.returncode != 0:
                raise Conflict(f"gpu: measuring failed: {_last(error)}")
        return _of(read_json(result) or {}, now)


def _of(fields: Mapping[str, Any], now: float) -> MeasuredGpu:
    """Return the measurement, with the speed computed from the same waves of tiles as estimates use."""
    processors = fields["processors"]
    waves = waves_of(fields["rows"], fields["columns"], processors)
    flops = 2 * processors * TILE_ROWS * TILE_COLUMNS * waves
    return MeasuredGpu(
        name=fields["name"],
        memory_bytes=fields["memory_bytes"],
        processors=processors,
        tflops=flops / fields["seconds_per_depth"] / 1e12,
        depth=fields["depth"],
        memory_gb_s=fields["memory_gb_s"],
        launch_ms=fields["launch_ms"],
        link_gb_s=fields.get("link_gb_s"),
        latency_ms=fields.get("latency_ms"),
        at=now,
    )


def _run(argv: list[str], env: Mapping[str, str], patience_s: float) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=patience_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Conflict(f"gpu: {argv[0]} did not answer: {error}") from error


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
