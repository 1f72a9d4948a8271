"""The half of the contract about what is kept: workloads, intents, changes, events."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from fairlead.errors import ClusterError, Conflict, FairleadError, NameTaken, NotFound
from fairlead.policy.kinds.spec_updates import CHANGEABLE
from fairlead.policy.kinds.table import leaf
from fairlead.specs.training import Checkpoint, Retry
from fairlead.state.plan import Plan
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import (
    AfterStop,
    ElasticSize,
    FailureHistory,
    Grant,
    Intent,
    Migration,
    Phase,
    QueueHistory,
    Reservation,
    Status,
)
from tests.builders import BECAUSE, change, event, members, notices, plan, status
from tests.cluster.harness import (
    Harness,
    apply,
    await_end,
    freeze,
    only,
    pods,
    see,
    shown,
    start,
)

UNKNOWN = "ffffffff"


class KeepingContract:
    """Workloads, intents, changes, events: what is kept, and when a change is dropped."""

    def test_a_submitted_workload_is_pending_and_wanted_and_says_why(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        assert (run.status.phase, run.intent, run.status.reason.code) == (Phase.PENDING, Intent.RUN, Code.SUBMITTED)
        assert run.status.since == run.created_at == pytest.approx(harness.now(), abs=harness.moment_s)
        assert [(e.type, e.run, e.reason) for e in harness.cluster.events(run.uid)] == [
            ("Submitted", run.spec.name, run.status.reason)
        ]

    def test_a_spec_reads_back_as_it_was(self, harness: Harness) -> None:
        spec = replace(harness.program(), env={"A": "b c\n"}, nodes=3, most_nodes=5)
        spec = replace(spec, retry=Retry(program=2), checkpoint=Checkpoint(every_steps=5))
        run = harness.cluster.submit(spec)
        assert run.spec == see(harness, run).spec == harness.cluster.snapshot().workloads[0].spec == spec

    def test_a_name_is_taken_while_its_workload_is_unfinished(self, harness: Harness) -> None:
        spec = harness.program()
        run = harness.cluster.submit(spec)
        with pytest.raises(NameTaken, match=spec.name):
            harness.cluster.submit(spec)
        apply(harness, run, status=status(Phase.STOPPED), intent=Intent.STOP)
        assert harness.cluster.submit(spec).uid != run.uid

    def test_a_refused_submission_leaves_nothing_behind(self, harness: Harness) -> None:
        spec = harness.program()
        harness.cluster.submit(spec)
        before = freeze((harness.cluster.workloads(), harness.cluster.events(), harness.cluster.snapshot()))
        with pytest.raises(NameTaken):
            harness.cluster.submit(spec)
        assert freeze((harness.cluster.workloads(), harness.cluster.events(), harness.cluster.snapshot())) == before

    def test_teams_have_names_of_their_own(self, harness: Harness) -> None:
        spec = harness.program()
        runs = {harness.cluster.submit(replace(spec, team=team)).uid for team in ("vision", "speech")}
        assert runs == shown(harness)
        assert len(runs) == 2

    @pytest.mark.parametrize("intent", [Intent.SUSPEND, Intent.STOP, Intent.DELETE])
    def test_an_intent_is_kept_and_raises_the_version(self, harness: Harness, intent: Intent) -> None:
        run = harness.cluster.submit(harness.program())
        wanted = harness.cluster.set_intent(run.uid, intent)
        assert wanted == see(harness, run)
        assert wanted.intent is intent
        assert wanted.version > run.version

    def test_the_same_intent_again_changes_nothing(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        first = harness.cluster.set_intent(run.uid, Intent.SUSPEND)
        assert harness.cluster.set_intent(run.uid, Intent.SUSPEND) == first

    @pytest.mark.parametrize("intent", list(Intent))
    def test_an_intent_for_nothing_is_not_found(self, harness: Harness, intent: Intent) -> None:
        with pytest.raises(NotFound):
            harness.cluster.set_intent(UNKNOWN, intent)

    @pytest.mark.parametrize("phase", CHANGEABLE)
    def test_a_spec_changes_while_no_pod_is_of_it_and_an_event_tells(self, harness: Harness, phase: Phase) -> None:
        run = harness.cluster.submit(replace(harness.program(), retry=Retry(program=2)))
        failed = status(phase, program_failures=2, disruptions=1, last_failure=BECAUSE, failed_step=7)
        apply(harness, run, status=failed, intent=Intent.STOP)
        before = see(harness, run)
        spec = replace(before.spec, retry=Retry(program=5), max_duration_s=90.0)
        updated = harness.cluster.update(run.uid, spec, version=before.version)
        assert (updated.spec, updated.intent, updated.status.phase) == (spec, Intent.STOP, phase)
        assert updated.version > before.version
        assert (updated.status.failures.program, updated.status.failures.disruptions) == (0, 0)
        assert (updated.status.failures.last, updated.status.failures.step) == (None, None)
        told = "retry.program: 2 -> 5, max_duration: none -> 1m30s"
        harness.until(lambda: any(each.type == "Changed" for each in harness.cluster.events(run.uid)))
        assert [e.reason.message for e in harness.cluster.events(run.uid) if e.type == "Changed"] == [told]
        harness.crash()
        assert see(harness, run).spec == spec
        assert see(harness, run).status == updated.status

    @pytest.mark.parametrize("phase", sorted(set(Phase) - set(CHANGEABLE)))
    def test_a_spec_does_not_change_while_pods_may_be_of_it(self, harness: Harness, phase: Phase) -> None:
        run = harness.cluster.submit(harness.program())
        apply(harness, run, status=status(phase))
        before = see(harness, run)
        with pytest.raises(Conflict, match=phase.value.lower() if phase.is_final else phase.value):
            harness.cluster.update(run.uid, replace(before.spec, nodes=3), version=before.version)
        assert see(harness, run) == before
        assert all(each.type != "Changed" for each in harness.cluster.events(run.uid))

    def test_a_spec_made_for_an_earlier_version_is_refused(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        apply(harness, run, status=status(Phase.SUSPENDED))
        with pytest.raises(Conflict, match="has changed"):
            harness.cluster.update(run.uid, replace(run.spec, nodes=3), version=run.version)
        assert see(harness, run).spec == run.spec

    def test_a_change_decided_on_the_spec_before_is_dropped(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        apply(harness, run, status=status(Phase.PENDING))
        before = see(harness, run)
        harness.cluster.update(run.uid, replace(before.spec, nodes=3), version=before.version)
        late = change(before, status=status(Phase.STARTING), create=members(before.spec, "anywhere"))
        assert harness.cluster.apply(plan(late)) == (False,)
        assert see(harness, run).status.phase is Phase.PENDING

    def test_the_spec_that_is_there_changes_nothing(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        apply(harness, run, status=status(Phase.RUNNING))
        before = see(harness, run)
        assert harness.cluster.update(run.uid, before.spec, version=before.version) == before

    @pytest.mark.parametrize("key", ["name", "team"])
    def test_name_and_team_stay(self, harness: Harness, key: str) -> None:
        run = harness.cluster.submit(harness.program())
        apply(harness, run, status=status(Phase.FAILED), intent=Intent.STOP)
        before = see(harness, run)
        other = replace(before.spec, name="speech") if key == "name" else replace(before.spec, team="speech")
        with pytest.raises(Conflict, match=f"{key} cannot change"):
            harness.cluster.update(run.uid, other, version=before.version)
        assert see(harness, run) == before

    def test_a_spec_for_nothing_is_not_found(self, harness: Harness) -> None:
        with pytest.raises(NotFound):
            harness.cluster.update(UNKNOWN, harness.program(), version=1)

    def test_a_finished_workload_is_not_resumed_while_another_has_its_name(self, harness: Harness) -> None:
        spec = harness.program()
        run = harness.cluster.submit(spec)
        apply(harness, run, status=status(Phase.FAILED), intent=Intent.STOP)
        harness.cluster.submit(spec)
        ended = see(harness, run)
        with pytest.raises(NameTaken):
            harness.cluster.set_intent(run.uid, Intent.RUN)
        assert see(harness, run) == ended
        assert harness.cluster.set_intent(run.uid, Intent.DELETE).intent is Intent.DELETE

    def test_a_snapshot_shows_nodes_that_hold_something(self, harness: Harness) -> None:
        nodes = harness.cluster.snapshot().nodes
        assert nodes
        assert all(node.name and node.cpu_milli > 0 and node.memory_bytes > 0 for node in nodes)
        assert any(node.ready for node in nodes)
        assert len({node.name for node in nodes}) == len(nodes)

    @pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.is_final])
    @pytest.mark.parametrize("intent", [Intent.RUN, Intent.SUSPEND])
    def test_a_snapshot_shows_what_is_unfinished(self, harness: Harness, phase: Phase, intent: Intent) -> None:
        run = harness.cluster.submit(harness.program())
        apply(harness, run, status=status(phase), intent=intent)
        (seen,) = harness.cluster.snapshot().workloads
        assert seen == see(harness, run)
        assert (seen.status.phase, seen.intent) == (phase, intent)

    @pytest.mark.parametrize("intent", list(Intent))
    def test_a_snapshot_shows_a_finished_workload_only_when_it_is_to_run_or_to_go(
        self, harness: Harness, intent: Intent
    ) -> None:
        run = harness.cluster.submit(harness.program())
        apply(harness, run, status=status(Phase.SUCCEEDED), intent=intent)
        assert shown(harness) == ({run.uid} if intent in (Intent.RUN, Intent.DELETE) else set())

    def test_a_snapshot_shows_a_finished_workload_while_a_pod_of_it_lives(self, harness: Harness) -> None:
        run = start(harness, harness.program())
        apply(harness, run, status=status(Phase.FAILED), intent=Intent.STOP)
        assert shown(harness) == {run.uid}
        apply(harness, run, terminate=notices(only(harness, run).uid, grace_s=0.0))
        harness.until(lambda: shown(harness) == set())
        assert not harness.cluster.snapshot().pods

    def test_a_snapshot_shows_ended_pods_of_the_current_start_and_live_pods_of_all(self, harness: Harness) -> None:
        run = start(harness, replace(harness.program(), nodes=2))
        first, second = pods(harness, run).values()
        apply(harness, run, terminate=notices(first.uid, grace_s=0.0))
        harness.until(lambda: pods(harness, run)["0-0"].phase.is_final)
        assert set(pods(harness, run)) == {"0-0", "0-1"}
        apply(harness, run, status=status(Phase.RESTARTING, attempt=1))
        assert set(pods(harness, run)) == {"0-0", "0-1"}
        apply(harness, run, status=status(Phase.PENDING, attempt=1))
        assert set(pods(harness, run)) == {"0-1"}
        apply(harness, run, terminate=notices(second.uid, grace_s=0.0))
        harness.until(lambda: not pods(harness, run))

    def test_what_was_handed_out_never_changes(self, harness: Harness) -> None:
        run = start(harness, harness.program(harness.moment_s / 4))
        kept = harness.cluster.snapshot(), harness.cluster.workloads(), harness.cluster.events()
        before = freeze(kept)
        await_end(harness, run)
        apply(harness, run, status=status(Phase.SUCCEEDED), event=event())
        assert freeze(kept) == before

    def test_values_are_frozen(self, harness: Harness) -> None:
        run = start(harness, harness.program())
        snapshot = harness.cluster.snapshot()
        (pod,) = snapshot.pods
        handed_out: tuple[object, ...] = (run, run.spec, run.status, snapshot, *snapshot.nodes, pod)
        for value in (*handed_out, *harness.cluster.events()):
            name = next(iter(value.__slots__))  # type: ignore[attr-defined]  # all of them are slotted
            with pytest.raises(FrozenInstanceError):
                setattr(value, name, getattr(value, name))

    @pytest.mark.parametrize("what", ["status", "intent", "event", "create", "terminate", "nothing"])
    def test_every_applied_change_raises_the_version(self, harness: Harness, what: str) -> None:
        run = harness.cluster.submit(harness.program())
        node = harness.cluster.snapshot().nodes[0].name
        changes: dict[str, dict[str, Any]] = {
            "status": {"status": status()},
            "intent": {"intent": Intent.SUSPEND},
            "event": {"event": event()},
            "create": {"create": members(run.spec, node)},
            "terminate": {"terminate": notices(f"{run.uid}-0-0", grace_s=1.0)},
            "nothing": {},
        }
        assert apply(harness, run, **changes[what])
        assert see(harness, run).version > run.version

    def test_a_plan_applied_twice_does_nothing_the_second_time(self, harness: Harness) -> None:
        runs = [harness.cluster.submit(harness.program()) for _ in range(2)]
        node = harness.cluster.snapshot().nodes[0].name
        twice = plan(
            change(runs[0], status=status(Phase.STARTING), event=event(), create=members(runs[0].spec, node)),
            change(runs[1], event=event()),
        )
        assert harness.cluster.apply(twice) == (True, True)
        before = harness.cluster.workloads(), harness.cluster.events()
        assert harness.cluster.apply(twice) == (False, False)
        assert (harness.cluster.workloads(), harness.cluster.events()) == before

    def test_a_stale_change_is_dropped_whole(self, harness: Harness) -> None:
        run = start(harness, harness.program())
        pod = only(harness, run)
        stale = change(
            run,
            status=status(Phase.FAILED, attempt=7),
            intent=Intent.DELETE,
            event=event(),
            create=members(run.spec, pod.node, attempt=1),
            terminate=notices(pod.uid, grace_s=0.0),
        )
        harness.cluster.set_intent(run.uid, Intent.SUSPEND)
        before = see(harness, run), harness.cluster.events()
        assert harness.cluster.apply(plan(stale)) == (False,)
        harness.advance(harness.moment_s)
        assert (see(harness, run), harness.cluster.events()) == before
        assert only(harness, run).terminating_since is None

    def test_a_change_decided_on_a_version_to_come_is_dropped(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        assert harness.cluster.apply(plan(change(replace(run, version=run.version + 1), event=event()))) == (False,)
        assert see(harness, run) == run

    def test_a_change_of_nothing_known_is_dropped_and_holds_up_no_other(self, harness: Harness) -> None:
        first, last = (harness.cluster.submit(harness.program()) for _ in range(2))
        unknown = replace(first, uid=UNKNOWN)
        changes = plan(change(first, event=event()), change(unknown, event=event()), change(last, event=event()))
        assert harness.cluster.apply(changes) == (True, False, True)

    def test_two_changes_of_one_version_are_one_too_many(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        both = plan(change(run, event=event("First")), change(run, event=event("Second")))
        assert harness.cluster.apply(both) == (True, False)
        assert [e.type for e in harness.cluster.events(run.uid)] == ["Submitted", "First"]

    def test_an_empty_plan_does_nothing(self, harness: Harness) -> None:
        assert harness.cluster.apply(Plan()) == ()

    def test_a_status_is_kept_to_the_last_field(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        reason = Reason(code=Code.KILLED, message="why\u2026", remedy="do", detail=("one", "two"))
        full = Status(
            phase=Phase.STOPPING,
            reason=reason,
            since=1.5,
            attempt=3,
            started_at=1.25,
            finished_at=2.75,
            after_stop=AfterStop(phase=Phase.FAILED, reason=reason),
            failures=FailureHistory(
                program=1, disruptions=2, last=reason, step=40, retry_at=9.5, refusals=4, avoided_nodes=("n1", "n2")
            ),
            migration=Migration(
                seats=(Reservation(node="n", grant=Grant(cpu_milli=1, gpu_uuids=("a", "b"), gpu_milli=1000)),),
                decided_at=3.5,
                cost_s=0.25,
            ),
            size=ElasticSize(nodes=3, room_since=7.5),
            queue=QueueHistory(spot_has_room=True, spot_since=4.5),
        )
        apply(harness, run, status=full)
        assert see(harness, run).status == full

    def test_what_a_change_leaves_out_stays(self, harness: Harness) -> None:
        run = leaf(harness.cluster.set_intent(harness.cluster.submit(harness.program()).uid, Intent.SUSPEND))
        apply(harness, run, event=event())
        after = see(harness, run)
        assert (after.status, after.intent, after.spec) == (run.status, run.intent, run.spec)

    def test_a_finished_workload_does_not_come_back_under_a_name_that_is_taken(self, harness: Harness) -> None:
        spec = harness.program()
        run = harness.cluster.submit(spec)
        apply(harness, run, status=status(Phase.FAILED), intent=Intent.RUN)
        other = harness.cluster.submit(spec)
        before = see(harness, run), harness.cluster.events()
        node = harness.cluster.snapshot().nodes[0].name
        assert not apply(
            harness, run, status=status(Phase.STARTING), event=event(), create=members(spec, node, attempt=1)
        )
        assert (see(harness, run), harness.cluster.events()) == before
        assert shown(harness) == {run.uid, other.uid}
        assert not harness.cluster.snapshot().pods

    def test_workloads_are_listed_newest_first_and_finished_ones_too(self, harness: Harness) -> None:
        runs: list[str] = []
        for _ in range(3):
            runs.insert(0, harness.cluster.submit(harness.program()).uid)
            harness.advance(harness.moment_s / 20)
        oldest = leaf(next(w for w in harness.cluster.workloads() if w.uid == runs[-1]))
        apply(harness, oldest, status=status(Phase.SUCCEEDED), intent=Intent.STOP)
        assert [w.uid for w in harness.cluster.workloads()] == runs
        assert [w.uid for w in harness.cluster.workloads(limit=2)] == runs[:2]
        assert harness.cluster.workloads(limit=0) == ()

    def test_events_are_kept_in_the_order_in_which_they_were_recorded(self, harness: Harness) -> None:
        runs = [harness.cluster.submit(harness.program()) for _ in range(2)]
        for number in range(3):
            for run in runs:
                apply(harness, run, event=event("Noted", str(number)))
        told = harness.cluster.events()
        ids = [e.id for e in told]
        assert ids == sorted(set(ids))
        assert min(ids) > 0
        assert [(e.workload_uid, e.reason.message) for e in told if e.type == "Noted"] == [
            (run.uid, str(number)) for number in range(3) for run in runs
        ]
        assert harness.cluster.events(runs[0].uid) == tuple(e for e in told if e.workload_uid == runs[0].uid)

    def test_events_after_an_id_are_those_that_came_later(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        for number in range(3):
            apply(harness, run, event=event("Noted", str(number)))
        told = harness.cluster.events()
        for index, known in enumerate(told):
            assert harness.cluster.events(after=known.id) == told[index + 1 :]
            assert harness.cluster.events(run.uid, after=known.id) == told[index + 1 :]

    def test_an_event_says_when_and_of_what(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        harness.advance(harness.moment_s)
        reason = replace(BECAUSE, remedy="none", detail=("a", "b"))
        apply(harness, run, event=replace(event("Odd"), reason=reason))
        told = harness.cluster.events(run.uid)[-1]
        assert (told.workload_uid, told.run, told.type, told.reason) == (run.uid, run.spec.name, "Odd", reason)
        assert told.at == pytest.approx(harness.now(), abs=harness.moment_s)

    def test_nothing_unknown_has_events(self, harness: Harness) -> None:
        harness.cluster.submit(harness.program())
        assert harness.cluster.events(UNKNOWN) == ()

    def test_a_forgotten_workload_leaves_nothing_and_its_name(self, harness: Harness) -> None:
        run, other = (harness.cluster.submit(harness.program()) for _ in range(2))
        last = harness.cluster.events()[-1].id
        assert apply(harness, run, forget=True)
        assert [w.uid for w in harness.cluster.workloads()] == [other.uid]
        assert harness.cluster.events(run.uid) == ()
        assert {e.workload_uid for e in harness.cluster.events()} == {other.uid}
        with pytest.raises(NotFound):
            harness.cluster.set_intent(run.uid, Intent.RUN)
        again = harness.cluster.submit(run.spec)
        assert again.uid != run.uid
        assert harness.cluster.events(again.uid)[0].id > last

    def test_a_workload_is_not_forgotten_while_a_pod_of_it_lives(self, harness: Harness) -> None:
        run = start(harness, harness.program())
        apply(harness, run, status=status(Phase.STOPPED), intent=Intent.DELETE)
        before = see(harness, run)
        assert not apply(harness, run, forget=True)
        assert see(harness, run) == before
        apply(harness, run, terminate=notices(only(harness, run).uid, grace_s=0.0))
        await_end(harness, run)
        assert apply(harness, run, forget=True)
        assert harness.cluster.snapshot().pods == ()

    def test_waiting_for_nothing_takes_its_time(self, harness: Harness) -> None:
        harness.cluster.wait(0.0)
        before = harness.now()
        harness.cluster.wait(harness.moment_s)
        assert harness.now() - before >= harness.moment_s * 0.9

    @pytest.mark.parametrize("what", ["submit", "intent", "apply"])
    def test_waiting_does_not_miss_what_changed_since_the_last_wait(self, harness: Harness, what: str) -> None:
        run = harness.cluster.submit(harness.program())
        harness.cluster.wait(0.0)
        harness.cluster.snapshot()
        if what == "submit":
            harness.cluster.submit(harness.program())
        elif what == "intent":
            harness.cluster.set_intent(run.uid, Intent.SUSPEND)
        else:
            apply(harness, run, event=event())
        before = harness.now()
        harness.cluster.wait(100 * harness.moment_s)
        assert harness.now() - before < 50 * harness.moment_s

    def test_a_crash_loses_nothing_that_was_kept(self, harness: Harness) -> None:
        run, gone, ended = (harness.cluster.submit(harness.program()) for _ in range(3))
        apply(harness, run, status=status(Phase.RESTARTING, attempt=2, retry_at=5.0), event=event())
        apply(harness, ended, status=status(Phase.FAILED), intent=Intent.STOP)
        apply(harness, gone, forget=True)
        harness.cluster.set_intent(run.uid, Intent.SUSPEND)
        before = harness.cluster.workloads(), harness.cluster.events(), harness.cluster.snapshot()
        harness.crash()
        assert (harness.cluster.workloads(), harness.cluster.events(), harness.cluster.snapshot()) == before
        apply(harness, run, event=event())
        assert harness.cluster.events()[-1].id > before[1][-1].id

    def test_errors_of_what_lies_below_never_come_through(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program())
        other = harness.program()
        harness.break_down()
        cluster = harness.cluster
        calls: dict[str, Callable[[], object]] = {
            "snapshot": cluster.snapshot,
            "apply": lambda: cluster.apply(plan(change(run, event=event()))),
            "submit": lambda: cluster.submit(other),
            "set_intent": lambda: cluster.set_intent(run.uid, Intent.STOP),
            "workloads": cluster.workloads,
            "events": cluster.events,
            "wait": lambda: cluster.wait(0.0),
        }
        raised: dict[str, FairleadError] = {}
        for name, call in calls.items():
            try:
                call()
            except FairleadError as error:
                raised[name] = error
        assert raised
        assert all(isinstance(error, ClusterError) and str(error) for error in raised.values())
