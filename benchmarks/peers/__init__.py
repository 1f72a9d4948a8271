"""Programs that do with other tools what a benchmark does with ours, each run in an environment of its own."""

import subprocess
import time
from pathlib import Path

from tests.frameworks.environments import find_interpreter

TIMEOUT_S = 400.0


def run(peer: str, program: str, *arguments: str, place: Path, env: dict[str, str]) -> tuple[str, float] | str:
    """The output of a program in this folder and the seconds that it took; a sentence where it cannot be run.

    Args:
        peer: The package whose environment it needs, which is made at first.
        place: An empty directory, which it may fill.
    """
    found = find_interpreter(peer)
    if isinstance(found, str):
        return f"{peer} is not measured: {found}"
    path = Path(__file__).parent / program
    began = time.perf_counter()
    try:
        ended = subprocess.run(
            [str(found), str(path), *arguments], cwd=place, env=env, capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{peer} is not measured: it took longer than {TIMEOUT_S:.0f} s"
    took_s = time.perf_counter() - began
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ended.stdout.strip().splitlines() or ["nothing said"])[-1]
        return f"{peer} is not measured: it ended with {ended.returncode}: {last}"
    return ended.stdout, took_s
