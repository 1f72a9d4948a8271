"""A sweep whose values an engine proposes: which trials it submits, how it ends, and what it says meanwhile."""

from dataclasses import replace

import pytest

from fairlead.policy.kinds.engine_search import new_proposals, read_values, say_search, search_end
from fairlead.policy.kinds.parents import families_of
from fairlead.policy.kinds.sweep import detail_of, judge
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep, values_of
from fairlead.specs.training import Training
from fairlead.state.engine_searches import EngineSearch, Proposal
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Progress, Snapshot, Workload
from tests.builders import status


def spec(**changes: str) -> Sweep:
    keys = {"parameters": "{x: 0.0..1.0, y: 1..8, z: a | 3}", "trials": "3", "parallel": "2", **changes}
    lines = "\n".join(f"{key}: {value}" for key, value in keys.items())
    (found,) = parse(f"kind: Sweep\nname: rates\nobjective: loss\nengine: katib\ntrial: {{run: train}}\n{lines}")
    assert isinstance(found, Sweep)
    return found


def proposal(name: str, x: str = "0.5") -> Proposal:
    return Proposal(name=name, values={"x": x, "y": "4.0", "z": "3"})


def a_sweep(spec: Sweep) -> Workload[Sweep]:
    return Workload(uid="parent", spec=spec, intent=Intent.RUN, status=status(Phase.PENDING), version=1, created_at=0.0)


def judged(sweep: Workload[Sweep], search: EngineSearch | None, *children: Workload) -> Change | None:
    searches = {} if search is None else {"parent": search}
    ended = tuple(each for each in children if each.status.phase.is_final)
    going = tuple(each for each in children if not each.status.phase.is_final)
    snapshot = Snapshot(
        nodes=(), workloads=going, pods=(), parents=(sweep,), ended=ended, engine_searches=searches
    )  # fmt: skip
    return judge(sweep, families_of(snapshot)["parent"], 1.0)


def child(sweep: Workload[Sweep], change: Change, index: int, loss: float) -> Workload:
    order = change.submit[index]
    assert isinstance(order.spec, Training)
    return Workload(
        uid=f"child-{order.name}", spec=order.spec, intent=Intent.RUN, status=status(Phase.SUCCEEDED), version=1,
        created_at=1.0 + index, parent=sweep.uid, progress=Progress(loss=loss, updated_at=1.0),
    )  # fmt: skip


def test_a_trial_is_submitted_for_each_proposal_once_with_its_values() -> None:
    sweep = a_sweep(spec())
    change = judged(sweep, EngineSearch(proposals=(proposal("k-1"), proposal("k-2", "0.25"))))
    assert change is not None
    assert change.status is not None
    assert [order.name for order in change.submit] == ["0", "1"]
    runs = [order.spec for order in change.submit]
    assert [values_of(run) for run in runs if isinstance(run, Training)] == [
        {"x": 0.5, "y": 4, "z": 3},
        {"x": 0.25, "y": 4, "z": 3},
    ]
    sweep = replace(sweep, status=change.status)
    assert detail_of(sweep).proposed == ("k-1", "k-2")
    again = judged(sweep, EngineSearch(proposals=(proposal("k-1"), proposal("k-2", "0.25"))))
    assert again is None or not again.submit


def test_a_proposal_waits_while_as_many_trials_run_as_may_after_a_resumption() -> None:
    sweep = a_sweep(spec())
    first = judged(sweep, EngineSearch(proposals=(proposal("k-1"), proposal("k-2"))))
    assert first is not None
    assert first.status is not None
    resumed = replace(sweep, status=replace(first.status, attempt=1))
    running = [replace(child(sweep, first, index, 0.5), status=status(Phase.RUNNING)) for index in range(2)]
    search = EngineSearch(proposals=(proposal("l-1"), proposal("l-2")))
    waits = judged(resumed, search, *running)
    assert waits is None or not waits.submit
    goes_on = judged(resumed, search, running[0], child(sweep, first, 1, 0.5))
    assert goes_on is not None
    assert [order.name for order in goes_on.submit] == ["2"]
    assert goes_on.status is not None
    assert detail_of(replace(sweep, status=goes_on.status)).proposed == ("k-1", "k-2", "l-1")


def test_a_sweep_ends_with_its_last_trial_whatever_the_engine_still_proposes() -> None:
    sweep = a_sweep(spec(trials="2"))
    search = EngineSearch(proposals=(proposal("k-1"), proposal("k-2"), proposal("k-3")))
    change = judged(sweep, search)
    assert change is not None
    assert change.status is not None
    assert len(change.submit) == 2
    ended = judged(
        replace(sweep, status=change.status), search, child(sweep, change, 0, 0.2), child(sweep, change, 1, 0.1)
    )
    assert ended is not None
    assert ended.status is not None
    assert ended.status.phase is Phase.SUCCEEDED
    assert "2 of 2 trials are over; best loss 0.1 by rates-1" in ended.status.reason.message


def test_a_sweep_says_what_it_waits_for() -> None:
    sweep = a_sweep(spec())
    change = judged(sweep, EngineSearch(message="the pod of rates-0-tpe is refused"))
    assert change is not None
    assert change.status is not None
    assert change.status.reason.message == (
        "0 of 3 trials are over; waits for values that Katib proposes: the pod of rates-0-tpe is refused"
    )


def test_what_is_proposed_when_the_engine_was_not_read_yet_is_nothing() -> None:
    assert new_proposals(None, (), 5) == ()
    assert new_proposals(EngineSearch(proposals=(proposal("a"), proposal("b"))), ("a",), 0) == ()
    assert say_search(spec(), None, 0) == "; waits for values that Katib proposes"
    assert say_search(spec(), None, 1) == ""
    assert say_search(replace(spec(), engine=None), None, 0) == ""


def test_an_engine_that_gives_up_fails_the_sweep_once_no_trial_runs() -> None:
    search = EngineSearch(is_over=True, has_failed=True, message="Suggestion has failed")
    assert search_end(spec(), search, 1, "1 of 3 trials are over") is None
    end = search_end(spec(), search, 0, "1 of 3 trials are over")
    assert end is not None
    assert (end[0], end[1].code) == (Phase.FAILED, Code.START_FAILED)
    assert end[1].message == "Katib gave the search up: Suggestion has failed; 1 of 3 trials are over"
    done = search_end(spec(), replace(search, has_failed=False), 0, "1 of 3 trials are over")
    assert done is not None
    assert done[0] is Phase.SUCCEEDED


@pytest.mark.parametrize(("text", "value"), [("4", 4), ("4.0", 4), ("nan", None), ("words", "words")])
def test_values_are_read_as_the_parameter_has_them(text: str, value: object) -> None:
    found = read_values(spec().space, {"x": "1e-3", "y": text, "z": "a", "other": "1"})
    assert (found["x"], found["z"]) == (0.001, "a")
    assert set(found) == {"x", "y", "z"}
    if value is not None:
        assert found["y"] == value
