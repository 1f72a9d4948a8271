"""Wrong moves, at least one for each property of them: what is replaced, and what has to happen for it to show."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.policy.disruption.preemption import Victim
from fairlead.specs.resources import Resources
from fairlead.state.snapshot import Workload
from tests.builders import node, training
from tests.policy import move_properties as properties
from tests.policy.world import Job, Move, Scenario, Sleep, Submit, Wait

NOW = Wait(0.0)
SAVING = SimulatedProgram(duration_s=100_000.0, step_s=1.0, checkpoint_s=5.0, on_term=OnTerm.CHECKPOINT, save_s=3.0)
SILENT = SimulatedProgram(duration_s=100_000.0)
SHORT = SimulatedProgram(duration_s=20.0)


def spend_without_end(workloads: Any, rules: Any, now: float) -> float:
    return math.inf


def take_it_on_trust(workload: Workload) -> bool:
    return True


def keep_nothing(workloads: Any, free: Any) -> dict[str, Any]:
    return {}


def gain_without_end(wanting: Workload, spared_s: float, whole: Any) -> float:
    return math.inf


def move_all(shape: Any, count: int, offered: Sequence[Victim], rooms: Any) -> tuple[Victim, ...]:
    return tuple(offered)


def _job(name: str, cpu_milli: int, program: SimulatedProgram, **changes: Any) -> Job:
    spec = training(name, run=name, resources=Resources(cpu_milli=cpu_milli), **{"grace_s": 5.0, **changes})
    return Job(spec=spec, programs=(program,))


def _story(
    *moves: Move, program: SimulatedProgram = SAVING, age_s: float = 30.0, cpu_milli: int = 1500, **changes: Any
) -> Scenario:
    """Two nodes of 4000 thousandths of a core, on each of which one runs and half and more is free."""
    jobs = (
        _job("one", cpu_milli, program, **changes),
        _job("filler", 4000 - cpu_milli, SHORT),
        _job("two", cpu_milli, program, **changes),
        _job("wide", 4000, SILENT),
        _job("other", 2500, SILENT),
    )
    begun = (Submit(0), NOW, Submit(1), NOW, Submit(2), NOW, Sleep(25.0), NOW, Sleep(age_s), NOW)
    return Scenario(nodes=(node("node-0"), node("node-1")), jobs=jobs, moves=(*begun, *moves))


# Saved once, and about as long ago as it can be.
DEAR = _story(Submit(3), NOW, program=replace(SAVING, checkpoint_s=1990.0), age_s=3940.0)
UNSAVED = _story(Submit(3), NOW, program=SILENT)
CROWDED = _story(Submit(3), NOW, Sleep(1.0), Submit(4), NOW)
NEARLY_DONE = _story(
    *(Submit(3), NOW), program=replace(SAVING, checkpoint_s=720.0), age_s=1400.0, max_duration_s=1580.0
)
ROOMY = _story(Submit(3), NOW, cpu_milli=1000)

MOVE_MUTANTS = (
    (properties.moves_are_bounded, "budget", spend_without_end, DEAR),
    (properties.only_what_resumes_moves, "can_resume", take_it_on_trust, UNSAVED),
    (properties.nobody_moved_waits, "keep", keep_nothing, CROWDED),
    (properties.moves_pay, "gain", gain_without_end, NEARLY_DONE),
    (properties.moves_pay, "enough", move_all, ROOMY),
)
