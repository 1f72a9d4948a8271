"""Compares estimates of memory and step time with what one GPU of this machine needs, and times checkpoints.

    python -m benchmarks.on_gpu [--json]

Everything goes through commands: `doctor --gpu` measures the GPU, `plan` estimates and traces each model by it, `run`
trains the model on the GPU. Checkpoints of a model and its optimizer stand beside PyTorch's asynchronous ones.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.home import end_everything

ROOT = Path(__file__).parents[1]
GIB = 1 << 30
CHANGES = 1  # what `plan` ends with when there is something to do


class Case(NamedTuple):
    """A model and its split on one GPU."""

    layers: int
    hidden: int
    heads: int
    width: int
    vocabulary: int
    sequence: int
    batch: int
    micro_batch: int
    recompute: str = "none"


CASES = {
    "125M": Case(12, 768, 12, 2048, 32000, 1024, 16, 16),
    "350M": Case(24, 1024, 16, 2816, 32000, 2048, 8, 8),
    "1.1B": Case(16, 2048, 16, 5632, 32000, 2048, 4, 4),
    "1.1B two micro-batches": Case(16, 2048, 16, 5632, 32000, 2048, 8, 4),
    "1.1B recomputed": Case(16, 2048, 16, 5632, 32000, 2048, 16, 16, "full"),
    "1.1B long": Case(16, 2048, 16, 5632, 32000, 8192, 1, 1),
    "2.8B recomputed": Case(32, 2560, 20, 6912, 32000, 2048, 8, 8, "full"),
}
SAVED = Case(8, 1536, 12, 4096, 32000, 512, 4, 4)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cases", default=",".join(CASES), help="names, divided by commas (default: all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-gpu-") as directory:
        desk = Desk(Path(directory))
        try:
            gpu = json.loads(desk.call("doctor", "--gpu", "--json"))
            names = [name for name in options.cases.split(",") if name]
            # All plans before all runs, whose steps correct later estimates of the same layers.
            planned = {name: desk.plan(slug(name), CASES[name], gpu["name"]) for name in names}
            rows = []
            for name in names:
                rows.append({"case": name, **desk.compared(slug(name), CASES[name], gpu["name"], planned[name])})
                print(f"{rows[-1]}", file=sys.stderr, flush=True)
            saves = desk.train("checkpoints", SAVED, gpu["name"], "--checkpoints")["saves"]
        finally:
            end_everything(desk.home)
    if options.json:
        print(json.dumps({"gpu": gpu, "rows": rows, "saves": saves}))
        return
    print(
        f"{gpu['name']}: {gpu['tflops']:.0f} TFLOP/s, {gpu['memory_gb_s']:.0f} GB/s, {gpu['launch_ms']:.3f} ms a layer"
    )
    print(f"{'':<26}{'GiB':>8}{'estimate':>10}{'traced':>10}{'ms':>10}{'estimate':>10}{'reports':>10}")
    for row in rows:
        print(
            f"{row['case']:<26}{row['allocated_gib']:>8.2f}{row['estimated_error']:>+10.2%}{row['traced_error']:>+10.2%}"
            f"{row['step_ms']:>10.1f}{row['step_error']:>+10.1%}{row['reports_cost']:>+10.2%}"
        )
    for name, times in saves.items():
        first, *blocked = times["blocked"]
        middle, complete = statistics.median(blocked), statistics.median(times["complete"])
        print(
            f"a save of {name} keeps the training {middle:.0f} ms, the first {first:.0f}, and takes {complete:.0f} ms"
        )


class Desk:
    """A directory with a state directory of its own, and commands in it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.home = directory, directory / "home"
        paths = os.pathsep.join((str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._env = {**os.environ, "FAIRLEAD_HOME": str(self.home), "PYTHONPATH": paths, "PATH": path}

    def call(self, *arguments: str) -> str:
        """Return what a command prints."""
        ended = subprocess.run(
            [sys.executable, "-m", "fairlead.cli.main", *arguments],
            cwd=self.directory, env=self._env, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        if ended.returncode > CHANGES:
            raise SystemExit(
                f"fairlead {' '.join(arguments)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
            )
        return ended.stdout

    def spec(self, name: str, case: Case, gpu: str, *options: str) -> Path:
        """Write the spec file of a case, whose program writes its result beside it."""
        sizes = ("layers", "hidden", "heads", "width", "vocabulary", "sequence")
        numbers = " ".join(str(getattr(case, size)) for size in sizes)
        result = self.directory / f"{name}.json"
        spec = {
            "name": name,
            "workdir": str(ROOT / "benchmarks"),
            "run": f"python on_gpu_program.py {result} {numbers} {' '.join(options)}".strip(),
            "resources": {"gpu": f"{gpu.removeprefix('NVIDIA ').partition(' ')[0]}:1"},
            "model": {size: getattr(case, size) for size in sizes},
            "parallel": {"batch": case.batch, "micro_batch": case.micro_batch, "recompute": case.recompute},
            "env": {"PYTHONPATH": self._env["PYTHONPATH"]},
        }
        path = self.directory / f"{name}.yaml"
        path.write_text(json.dumps(spec))  # which is YAML
        return path

    def train(self, name: str, case: Case, gpu: str, *options: str) -> dict[str, Any]:
        """Run a case to its end, and return what its program measured."""
        path = self.spec(name, case, gpu, *options)
        self.call("run", str(path))
        found: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
        return found

    def plan(self, name: str, case: Case, gpu: str) -> dict[str, Any]:
        """Return what `plan` estimates and traces."""
        planned: dict[str, Any] = json.loads(self.call("plan", str(self.spec(name, case, gpu)), "--verify", "--json"))
        return planned

    def compared(self, name: str, case: Case, gpu: str, planned: dict[str, Any]) -> dict[str, Any]:
        """Return what a case needs beside its estimates."""
        found, (traced,), split = self.train(name, case, gpu), planned["traced"], planned["split"]
        allocated, step_ms = found["allocated_bytes"], found["step_ms"]
        return {
            **found,
            "allocated_gib": allocated / GIB,
            "estimated_error": traced["estimated_bytes"] / allocated - 1,
            "traced_error": traced["peak_bytes"] / allocated - 1,
            "needed_gib": split["needed_gib"],
            "estimated_step_ms": split["step_ms"],
            "step_error": split["step_ms"] / step_ms - 1,
            "reports_cost": found["reports_ms"] / step_ms,
        }


def slug(case: str) -> str:
    """Return the name of a case's run."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in case.lower()).split())


if __name__ == "__main__":
    main()
