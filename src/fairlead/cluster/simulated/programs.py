"""Describes how the programs of workloads behave in a simulation."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.policy.data.caching import ReadDemand
from fairlead.policy.gpu.stage_interleaving import StageProfile
from fairlead.specs.training import Training


class OnTerm(StrEnum):
    """The reaction of the ranks to the stop notice."""

    EXIT = "exit"
    CHECKPOINT = "checkpoint"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProgram:
    """The behaviour of one attempt of a gang without interference; all its pods behave the same.

    Attributes:
        duration_s: Total seconds of work; work held by a checkpoint is not repeated by the next attempt. May be
            infinite.
        exit_code: Exit code of every rank when the work is done.
        signal: Signal that ends every rank instead.
        tail: Last lines of error output of every rank.
        start_s: Seconds from the creation of a pod until its ranks run; work begins then. Infinite if it hangs.
        start_error: The pod fails after ``start_s`` with this message and runs nothing; None when it starts.
        step_s: Seconds of work for each reported step; None reports no progress.
        checkpoint_s: Seconds of work between checkpoints; None saves none.
        checkpoint_cost_s: Seconds for which the work pauses for each checkpoint.
        hangs_after_s: Seconds of work after which it hangs without ending, unless it is done by then; None never hangs.
        on_term: Reaction to the stop notice.
        save_s: Seconds that the checkpoint at the stop notice takes.
        profile: Measured stages of its iterations; None where not measured.
        reads: What the whole gang reads; None when it reads nothing from a store.
    """

    duration_s: float = 60.0
    exit_code: int = 0
    signal: int | None = None
    tail: tuple[str, ...] = ()
    start_s: float = 0.0
    start_error: str | None = None
    step_s: float | None = None
    checkpoint_s: float | None = None
    checkpoint_cost_s: float = 0.0
    hangs_after_s: float | None = None
    on_term: OnTerm = OnTerm.EXIT
    save_s: float = 0.0
    profile: StageProfile | None = None
    reads: ReadDemand | None = None

    @property
    def hangs(self) -> bool:
        """Return whether it never ends by itself although its work is finite."""
        return self.hangs_after_s is not None and self.hangs_after_s < self.duration_s

    def __post_init__(self) -> None:
        for name in ("duration_s", "start_s", "save_s", "checkpoint_cost_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more")
        for name in ("step_s", "checkpoint_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0")


def at_speed(program: SimulatedProgram, times: float) -> SimulatedProgram:
    """Return the same program, so many times as fast; checkpoints are as frequent as before."""
    step_s = None if program.step_s is None else program.step_s / times
    hangs_after_s = None if program.hangs_after_s is None else program.hangs_after_s / times
    reads = None if program.reads is None else replace(program.reads, gb_s=program.reads.gb_s * times)
    duration_s = program.duration_s / times
    return replace(program, duration_s=duration_s, step_s=step_s, hangs_after_s=hangs_after_s, reads=reads)


Behaviour = Callable[[Training, int], SimulatedProgram]
"""Returns the program of an attempt of a workload; called once per pod, so that it must be deterministic."""


def by_command(table: Mapping[str, SimulatedProgram], default: SimulatedProgram | None = None) -> Behaviour:
    """Return programs by the text of ``run``. Without a default, an unknown command fails to start, as in a shell."""

    def behave(spec: Training, attempt: int) -> SimulatedProgram:
        known = table.get(spec.run, default)
        if known is not None:
            return known
        return SimulatedProgram(duration_s=0.0, exit_code=127, tail=(f"{spec.run}: command not found",))

    return behave


def seeded(seed: int, draw: Callable[[random.Random, Training, int], SimulatedProgram]) -> Behaviour:
    """Return programs drawn at random, with a separate stream for each attempt of each name."""

    def behave(spec: Training, attempt: int) -> SimulatedProgram:
        return draw(random.Random(f"{seed}/{spec.team}/{spec.name}/{attempt}"), spec, attempt)

    return behave
