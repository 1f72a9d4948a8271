"""The queue keeps traits from pass to pass: they follow the spec, and are equal for runs that ask for the same."""

from dataclasses import replace

from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.dominant_shares import Amounts
from fairlead.policy.queue.spec_traits import SpecTraits
from fairlead.specs.network import FabricChoice, Network
from fairlead.specs.resources import Resources
from fairlead.state.snapshot import Intent, Workload
from tests.builders import node, status, training


def run(uid: str, *, cpu: int = 1000, nodes: int = 1) -> Workload:
    spec = training(uid, resources=Resources(cpu_milli=cpu), nodes=nodes)
    return Workload(uid=uid, spec=spec, intent=Intent.RUN, status=status(), version=1, created_at=0.0)


def test_a_run_whose_spec_was_changed_is_looked_at_anew() -> None:
    traits, before = SpecTraits((node("n0"),)), run("a", nodes=2)
    assert traits.of(before).asks == Amounts(cpu_milli=2000)
    after = replace(before, spec=replace(before.spec, resources=Resources(cpu_milli=3000)))
    found = traits.of(after)
    assert (found.shape, found.asks) == (Shape(cpu_milli=3000), Amounts(cpu_milli=6000))
    assert found.alike != traits.of(before).alike


def test_runs_that_ask_for_the_same_are_alike_and_others_are_not() -> None:
    traits = SpecTraits((node("n0"),))
    first, second, larger = (traits.of(each).alike for each in (run("a"), run("b"), run("c", cpu=2000)))
    assert first == second != larger


def test_runs_that_need_different_networks_are_not_alike() -> None:
    traits, plain = SpecTraits((node("n0"),)), run("a")
    fast = replace(run("b"), spec=replace(plain.spec, network=Network(profile=FabricChoice.RDMA)))
    assert traits.of(plain).alike != traits.of(fast).alike


def test_a_run_that_is_over_leaves_nothing_behind() -> None:
    traits = SpecTraits((node("n0"),))
    traits.of(run("a"))
    traits.forget("a")
    assert not traits._of
