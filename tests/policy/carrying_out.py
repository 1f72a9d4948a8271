"""Carries out a change in the worlds of these tests, as clusters do."""

from collections.abc import Iterable
from typing import TypeVar

from fairlead.specs.workload import WorkloadSpec
from fairlead.state.plan import Change
from fairlead.state.snapshot import AnyWorkload, Workload
from fairlead.state.transitions import Child, Transition, transition

Spec = TypeVar("Spec", bound=WorkloadSpec)


def carried_out(
    parent: Workload[Spec], change: Change, now: float, children: Iterable[AnyWorkload] = ()
) -> Transition[Spec]:
    """Return the effect of a change, which must be of the parent as it is and submit no child twice."""
    known = [Child(uid=child.uid, name=child.spec.name, intent=child.intent) for child in children]
    effect = transition(parent, change, now, children=known)
    assert effect is not None, "the change is of another version"
    assert len(effect.submitted) == len(change.submit), "a child was submitted twice"
    return effect
