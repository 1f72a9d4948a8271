"""Sentences of those that wait: what they ask for, and whose end nobody knows."""

import math

import pytest

from fairlead.policy.queue.pending_reasons import needs, promised
from fairlead.policy.queue.run_names import Reader, name_of
from fairlead.policy.queue.timeline import Claim, Timeline
from fairlead.specs.resources import Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Intent, Phase, Workload
from fairlead.text.quantities import describe_need, describe_of_each
from tests.builders import node, status, training

NOW = 2_000_000_000.0


def workload(name: str, phase: Phase, **spec: object) -> Workload:
    kept = training(name, **spec)
    return Workload(uid=name, spec=kept, intent=Intent.RUN, status=status(phase), version=1, created_at=NOW)


@pytest.mark.parametrize(
    ("holders", "says"),
    [
        ((("x1", {}), ("x2", {})), "start unknown: x1, x2 have no `max_duration`"),
        ((("x1", {}), ("x2", {"max_duration_s": 60.0})), "start unknown: x1 has no `max_duration`"),
        ((("x1", {"max_duration_s": 60.0}),), "start unknown"),
        (tuple((f"x{n}", {}) for n in range(7)), "start unknown: x0, x1, x2, x3, x4 and 2 more have no `max_duration`"),
    ],
)
def test_an_unknown_start_names_those_whose_end_is_not_known(
    holders: tuple[tuple[str, dict[str, float]], ...], says: str
) -> None:
    waiting = workload("late", Phase.PENDING, resources=Resources(cpu_milli=2000))
    running = [workload(name, Phase.RUNNING, **spec) for name, spec in holders]
    never = Claim(start=math.inf, end=math.inf)
    timeline = Timeline.of((node(),), (), {}, NOW)
    reader = Reader("default")
    needed = needs(waiting, timeline, {name_of(each.spec) for each in running}, reader)
    message = promised(needed, waiting, never, None, running, (), reader, is_owed=False).message
    assert message.startswith("needs 1 node with 2 CPU; ")
    assert message.endswith(f"; {says}")


@pytest.mark.parametrize(
    ("sizes", "need", "each"),
    [
        ({"nodes": 1}, "1 node with 2 CPU", ""),
        ({"nodes": 4}, "4 nodes with 2 CPU each", " for each of 4 nodes"),
        ({"nodes": 1, "most_nodes": 4}, "1..4 nodes with 2 CPU each", " for each of 1..4 nodes"),
    ],
)
def test_each_is_said_of_several_nodes_only(sizes: dict[str, int], need: str, each: str) -> None:
    spec = Training(name="a", run="x", resources=Resources(cpu_milli=2000), **sizes)  # type: ignore[arg-type]
    assert (describe_need(spec), describe_of_each(spec)) == (need, each)
