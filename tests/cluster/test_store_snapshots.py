"""A store that has looked before sees what one sees that was opened just now, whoever wrote in between."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.store import LocalStore, PodObservation
from fairlead.cluster.local.tables import PodRow
from fairlead.policy.kinds.parents import submit
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep, trial_run
from fairlead.state.plan import Change, ChildIntent, CreatePod, Event, child_uid
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Grant, Intent, Phase, Pod, PodPhase, Progress

NUM_CHILDREN = 4
SWEEP = "{kind: Sweep, name: many, parameters: {x: 1..9}, trial: {run: 'true'}}"
REASON = Reason(code=Code.COMPLETED, message="it is over")
STEPS = st.tuples(
    st.sampled_from(["end", "run", "stop", "delete", "forget", "report", "ask", "new"]),
    st.integers(0, NUM_CHILDREN - 1),
    st.booleans(),
)


def read_sweep() -> Sweep:
    (sweep,) = parse(SWEEP)
    assert isinstance(sweep, Sweep)
    return sweep


def contents(store: LocalStore) -> tuple[object, ...]:
    active, pods, ended = store.active()
    return active, pods, sorted(ended, key=lambda child: child.uid)


def take(store: LocalStore, parent: AnyWorkload, what: str, number: int, now: float) -> None:
    """One step of somebody who writes: the loop, the agent or a person's command."""
    uid = child_uid(parent.uid, str(number))
    if what == "new":
        order = submit(parent, str(number), trial_run(read_sweep(), {"x": number}))
        store.apply(Change(workload_uid=parent.uid, version=store.get(parent.uid).version, submit=(order,)), now)
    if not store.has(uid):
        return
    child = store.get(uid)
    change = Change(workload_uid=uid, version=child.version)
    over = replace(child.status, phase=Phase.SUCCEEDED, reason=REASON, finished_at=now)
    if what == "end":
        store.apply(replace(change, status=over, intent=Intent.STOP), now)
    elif what == "run":
        store.apply(replace(change, create=(CreatePod(attempt=0, index=0, node="here", grant=Grant()),)), now)
    elif what in ("stop", "delete"):
        store.set_intent(uid, Intent(what))
    elif what == "forget" and child.status.phase.is_final:
        store.apply(replace(change, forget=True), now)
    elif what == "report":
        pod = Pod(
            uid=f"{uid}-0-0", workload_uid=uid, attempt=0, index=0, node="here", grant=Grant(),
            phase=PodPhase.SUCCEEDED, created_at=now,
        )  # fmt: skip
        store.observe(PodObservation(row=PodRow(pod=pod), progress=Progress(step=int(now), updated_at=now)), now)
    elif what == "ask":
        asked = (ChildIntent(uid=uid, intent=Intent.STOP),)
        store.apply(Change(workload_uid=parent.uid, version=store.get(parent.uid).version, children=asked), now)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=14))
def test_looking_again_shows_what_a_first_look_shows(steps: list[tuple[str, int, bool]]) -> None:
    with TemporaryDirectory() as name:
        home = Home.open(Path(name))
        own, other = LocalStore(home), LocalStore(home)
        own.submit("parent", read_sweep(), 1.0)
        for number in range(NUM_CHILDREN - 1):
            take(own, own.get("parent"), "new", number, 2.0)
        contents(own)
        for at, (what, number, is_own) in enumerate(steps):
            # Only the loop's own agent reports.
            take(own if is_own or what == "report" else other, own.get("parent"), what, number, 10.0 + at)
            fresh = LocalStore(home)
            assert contents(own) == contents(fresh)
            fresh.close()
        own.close()
        other.close()


def test_ended_children_that_nobody_touched_are_the_same_values_as_before(tmp_path: Path) -> None:
    store = LocalStore(Home.open(tmp_path))
    store.submit("parent", read_sweep(), 1.0)
    for number in range(NUM_CHILDREN):
        take(store, store.get("parent"), "new", number, 2.0)
        take(store, store.get("parent"), "end", number, 3.0)
    _, _, ended = store.active()
    assert len(ended) == NUM_CHILDREN
    assert store.active()[2] is ended
    take(store, store.get("parent"), "report", 0, 4.0)
    store.note("parent", event(), 4.0)
    take(store, store.get("parent"), "delete", 1, 5.0)
    after = {child.uid: child for child in store.active()[2]}
    assert [after[child.uid] is child for child in ended if child.uid in after] == [False, True, True]
    store.close()


def event() -> Event:
    return Event(type="Told", reason=REASON)
