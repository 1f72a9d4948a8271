"""Room is held only for a run that may come: not behind endpoints, nor for closed nodes, nor where rules say so."""

from dataclasses import replace

import pytest

from fairlead.policy.decide import decide
from fairlead.specs.serving import Replica
from fairlead.state.snapshot import Node, Pod, Snapshot, Workload
from tests.policy.test_scheduling import NODES, NOW, decided, look, running, told, waiting


def replica(name: str, on: str, gpus: range) -> tuple[Workload, Pod]:
    run, pod = running(name, on, gpus)
    spec = run.spec
    return replace(
        run, spec=Replica(name=name, service="hello", run=spec.run, resources=spec.resources, grace_s=spec.grace_s)
    ), pod


def test_a_run_of_the_whole_cluster_behind_an_endpoint_holds_nothing_and_names_the_endpoint() -> None:
    snapshot = look(
        (replica("hello-r1-1", "n0", range(1)), replica("hello-r1-2", "n0", range(1, 2))),
        waiting("whole", 4, nodes=2, age_s=9),
        waiting("short", 1),
    )
    assert decided(snapshot) == {"whole": "waits", "short": "starts"}
    reason = told(snapshot, "whole").reason
    assert (
        "; held by hello; start unknown: hello is an endpoint, which has no end; other runs pass it" in reason.message
    )
    assert reason.remedy is not None
    assert "`fairlead suspend hello` would free it now" in reason.remedy


def test_where_the_run_fits_beside_the_endpoint_room_is_held_until_the_other_runs_end() -> None:
    held = (replica("hello-r1-1", "n0", range(1)), running("open", "n1", range(2)))
    snapshot = look(held, waiting("wide", 3, nodes=2, age_s=9), waiting("short", 1))
    assert decided(snapshot) == {"wide": "waits", "short": "behind"}


def test_nothing_is_held_for_a_gang_whose_nodes_are_cordoned_but_for_one_whose_node_is_away() -> None:
    def at(**away: object) -> Snapshot:
        nodes: tuple[Node, ...] = (replace(NODES[0], **away), NODES[1])  # type: ignore[arg-type]
        return look(
            (running("open", "n1", range(1)),), waiting("wide", 4, nodes=2, age_s=9), waiting("short", 1), nodes=nodes
        )

    assert decided(at(closed="cordoned")) == {"wide": "waits", "short": "starts"}
    assert decided(at(ready=False)) == {"wide": "waits", "short": "behind"}


@pytest.mark.parametrize(("policy", "becomes"), [("default", "behind"), ("best-effort", "starts")])
def test_by_best_effort_others_pass_the_first_while_its_start_is_unknown(policy: str, becomes: str) -> None:
    snapshot = look((running("open", "n0", range(4)),), waiting("wide", 4, nodes=2, age_s=9), waiting("short", 1))
    assert decided(snapshot, policy) == {"wide": "waits", "short": becomes}


@pytest.mark.parametrize("policy", ["default", "best-effort"])
def test_nobody_delays_the_first_whose_start_is_known(policy: str) -> None:
    held = (running("ends", "n0", range(4), max_duration_s=4000.0),)
    snapshot = look(held, waiting("wide", 4, nodes=2, age_s=9), waiting("short", 1))
    assert decided(snapshot, policy) == {"wide": "waits", "short": "behind"}


def test_by_best_effort_the_first_with_a_known_start_is_promised_it() -> None:
    held = (running("open", "n0", range(4)), running("ends", "n1", range(2), max_duration_s=4000.0))
    snapshot = look(
        held, waiting("unknown", 4, nodes=2, age_s=9), waiting("known", 4, age_s=8), waiting("late", 1, age_s=7)
    )
    assert decided(snapshot, "best-effort") == {"unknown": "waits", "known": "waits", "late": "behind"}


def test_a_plan_says_what_is_held_free_and_for_which_run() -> None:
    held = (running("open", "n0", range(4)),)
    plan = decide(look(held, waiting("wide", 4, nodes=2, age_s=9), waiting("short", 1)), NOW)
    assert [(each.name, each.team, each.gpu_milli, each.start) for each in plan.held] == [
        ("wide", "default", 4000, None)
    ]
    assert decide(look(held, waiting("short", 1)), NOW).held == ()
