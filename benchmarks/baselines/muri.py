"""The traces of Muri (SIGCOMM'22) and the figures published for them.

Files hold times in milliseconds; everything here is in seconds.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from fairlead.policy.gpu.stage_interleaving import StageProfile

TRACES = ("trace1", "trace1_pr", "trace3", "trace3_pr")
NUM_NODES, GPUS_PER_NODE = 8, 8

# An iteration of a job alone takes this much longer than its profile says (Muri's simulator).
ALONE = 1.015

# Seconds to checkpoint and restore, for 1, 2, 4, 8, 16 and 32 GPUs, and of any other model (Muri's simulator).
OVERHEADS_S = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}

OTHER_OVERHEAD_S = 10

# The names of policies in the published table.
PUBLISHED_AS = {
    "srtf": "SRTF",
    "srsf": "SRSF",
    "muri-s": "Muri_S",
    "muri-l": "Muri_L",
    "tiresias-l": "Tiresias_L",
    "themis": "themis",
    "antman": "antman",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job of a trace; ``work_s`` is what it takes alone, without overheads."""

    uid: str
    model: str
    num_gpus: int
    submitted_s: float
    work_s: float
    overhead_s: float
    profile: StageProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a replay comes to, in seconds."""

    average_jct_s: float
    p99_jct_s: float
    makespan_s: float


def read_trace(directory: Path, name: str) -> tuple[Submitted, ...]:
    """Jobs of a trace in the order of the file, which is that of submission."""
    with (directory / f"{name}.csv").open(newline="") as lines:
        return tuple(_submitted(row) for row in csv.DictReader(lines))


def read_published(directory: Path) -> dict[tuple[str, str], Figures]:
    """Published figures by our name of the policy and trace; none when there is no table."""
    ours = {theirs: name for name, theirs in PUBLISHED_AS.items()}
    if not (directory / "published.csv").exists():
        return {}
    with (directory / "published.csv").open(newline="") as lines:
        return {
            (ours[row["policy"]], row["trace"]): Figures(
                average_jct_s=float(row["avg_jct_s"]),
                p99_jct_s=float(row["p99_jct_s"]),
                makespan_s=float(row["makespan_s"]),
            )
            for row in csv.DictReader(lines)
            if row["policy"] in ours
        }


def _submitted(row: dict[str, str]) -> Submitted:
    num_gpus, model = int(row["num_gpu"]), row["model_name"]
    overheads_s = OVERHEADS_S.get(model, (OTHER_OVERHEAD_S,))
    iteration_s = float(row["iteration_time"]) * ALONE / 1000
    stages_s = tuple(float(row[f"resource_time_{stage}"]) / 1000 for stage in range(3))
    return Submitted(
        uid=row["job_id"],
        model=model,
        num_gpus=num_gpus,
        submitted_s=int(row["submit_time"]) / 1000,
        work_s=int(row["iterations"]) * iteration_s,
        overhead_s=float(overheads_s[min(num_gpus.bit_length(), len(overheads_s)) - 1]),
        profile=StageProfile(iteration_s=iteration_s, stages_s=(stages_s[0], stages_s[1], stages_s[2])),
    )
