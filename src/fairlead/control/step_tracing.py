"""Traces a run's own program with fake tensors, to count the memory that a rank would allocate."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from fairlead.cluster.contract import PARALLEL_PARTS
from fairlead.errors import Conflict
from fairlead.frozen import dataclass
from fairlead.runtime.launching import Fork, plan_launch
from fairlead.specs.training import Training

PROGRAM = "fairlead.runtime.parallelism.tracing"
# Of the processor, so that a crowded machine takes longer instead of giving up; and of waiting without using any.
PATIENCE_S = 300.0
STUCK_S = 300.0
# A program that waits uses some for its threads.
LEAST_CPU_S = 0.1
LOOK_EVERY_S = 0.5
# Path of this library, for programs whose environment has it only when Fairlead runs them.
LIBRARY = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStage:
    """Bytes that a rank of a pipeline stage would allocate.

    Attributes:
        stage: Index from 0.
        rank: The rank that was traced.
        peak_bytes: Peak of live allocations.
        parameters_bytes: Size of its parameters.
        optimizer_bytes: Memory that stays allocated between steps besides the parameters: states of the optimizer.
    """

    stage: int
    rank: int
    peak_bytes: int
    parameters_bytes: int
    optimizer_bytes: int


def trace(spec: Training, directory: Path) -> tuple[TracedStage, ...]:
    """Trace two steps of the program as the first rank of each stage, which needs the most memory of its stage.

    Args:
        spec: A spec with a complete split or none.
        directory: Working directory of the command.

    Raises:
        Conflict: The command is not a plain Python program, or fails with fake tensors.
    """
    env = {**os.environ, **spec.env}
    if not spec.run:
        raise Conflict("verify: the run has no command to trace")
    launch = plan_launch(spec.run, "auto", env)
    if not isinstance(launch, Fork) or launch.script is None:
        why = launch.why if not isinstance(launch, Fork) else "it starts a module"
        raise Conflict(f"verify: it traces `python program.py ...` and this cannot be traced: {why}")
    program = launch.argv[launch.argv.index(launch.script) :]
    python = (launch.interpreter, *launch.flags)
    stages = 1 if spec.parallel is None else spec.parallel.pipeline or 1
    # Ranks of a stage are consecutive, and none allocates more than the first.
    size = spec.world_size // stages
    return tuple(
        _trace(spec, directory, env, python, program, stage=stage, rank=stage * size) for stage in range(stages)
    )


def _trace(
    spec: Training,
    directory: Path,
    env: dict[str, str],
    python: tuple[str, ...],
    program: tuple[str, ...],
    *,
    stage: int,
    rank: int,
) -> TracedStage:
    with tempfile.TemporaryDirectory(prefix="fairlead-trace-") as folder:
        result = Path(folder) / "result.json"
        own = {
            "FAIRLEAD_TRACED": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % spec.ranks_on_each_node),
            "WORLD_SIZE": str(spec.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "PYTHONPATH": ":".join(filter(None, (env.get("PYTHONPATH"), LIBRARY))),
        }
        if spec.parallel is not None:
            own["FAIRLEAD_PARALLEL"] = json.dumps({name: getattr(spec.parallel, name) for name in PARALLEL_PARTS})
        stderr = Path(folder) / "stderr"
        with stderr.open("w") as errors, subprocess.Popen(
            [*python, "-m", PROGRAM, str(result), *program],
            cwd=directory, env={**env, **own}, stdout=subprocess.DEVNULL, stderr=errors,
        ) as traced:  # fmt: skip
            try:
                _await(traced, program[0])
            finally:
                traced.kill()
        if traced.returncode != 0 or not result.exists():
            lines = [line for line in stderr.read_text(errors="replace").splitlines() if line.strip()]
            where = next((line.strip() for line in reversed(lines) if program[0] in line and "line" in line), "")
            last = lines[-1].removeprefix("fairlead: ") if lines else f"it exited with {traced.returncode}"
            raise Conflict(f"verify: {program[0]} cannot be traced: {last}" + (f" ({where})" if where else ""))
        counted = json.loads(result.read_text())
    return TracedStage(
        stage=stage,
        rank=rank,
        peak_bytes=counted["peak_bytes"],
        parameters_bytes=counted["parameters_bytes"],
        optimizer_bytes=counted["optimizer_bytes"],
    )


def _await(traced: "subprocess.Popen[bytes]", program: str) -> None:
    """Wait until the program has ended.

    Raises:
        Conflict: It takes too much of the processor, or too long without using any.
    """
    used_s, since = 0.0, time.monotonic()
    while True:
        try:
            traced.wait(LOOK_EVERY_S)
            return
        except subprocess.TimeoutExpired:
            now_s = _processor_s(traced.pid)
        if now_s > PATIENCE_S:
            raise Conflict(f"verify: {program} did not come to its third step in {PATIENCE_S:g} s of the processor")
        if now_s - used_s >= LEAST_CPU_S:
            used_s, since = now_s, time.monotonic()
        elif time.monotonic() - since > STUCK_S:
            raise Conflict(f"verify: {program} did not come to its third step, and has done nothing for {STUCK_S:g} s")


def _processor_s(pid: int) -> float:
    """Return the seconds of the processor that a process has used; 0 if it is gone."""
    import psutil  # here and not above: few plans are verified

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system
