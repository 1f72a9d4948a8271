"""The half of the contract about pods: that they start once, end as told, and are seen as they are."""

import signal
from dataclasses import replace

import pytest

from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import LostPod, Phase, PodPhase
from tests.builders import change, members, notices, plan, status
from tests.cluster.harness import (
    Harness,
    apply,
    await_end,
    await_running,
    only,
    place,
    pods,
    see,
    start,
)

ORDER = [PodPhase.CREATED, PodPhase.STARTING, PodPhase.RUNNING]


class PodContract:
    """Pods: that they start once, end as told, and are seen as they are."""

    def test_a_gang_is_created_whole(self, harness: Harness) -> None:
        before = harness.now()
        run = start(harness, replace(harness.program(), nodes=3))
        seen = pods(harness, run)
        assert set(seen) == {"0-0", "0-1", "0-2"}
        for index, pod in enumerate(seen.values()):
            (wanted,) = (m for m in members(run.spec, pod.node) if m.index == index)
            assert (pod.uid, pod.workload_uid) == (f"{run.uid}-0-{index}", run.uid)
            assert (pod.grant, pod.terminating_since, pod.exits) == (wanted.grant, None, ())
            assert before - 1.0 <= pod.created_at <= harness.now()  # a cluster may tell whole seconds

    def test_each_start_of_an_elastic_gang_has_a_size_of_its_own(self, harness: Harness) -> None:
        spec = replace(harness.program(), nodes=1, most_nodes=3)
        run = place(harness, harness.cluster.submit(spec), num_nodes=3)
        await_running(harness, run)
        apply(harness, run, terminate=notices(*(pod.uid for pod in pods(harness, run).values()), grace_s=0.0))
        await_end(harness, run)
        run = place(harness, run, attempt=1, num_nodes=2)
        await_running(harness, run)
        assert set(pods(harness, run)) == {"1-0", "1-1"}
        assert (see(harness, run).spec, see(harness, run).gang.world_size) == (spec, 2)

    def test_a_pod_goes_through_its_phases_forwards_only(self, harness: Harness) -> None:
        run = start(harness, harness.program(harness.moment_s))
        seen = [only(harness, run).phase]

        def ended() -> bool:
            phase = only(harness, run).phase
            if phase is not seen[-1]:
                seen.append(phase)
            return phase.is_final

        harness.until(ended)
        assert seen == [*sorted(seen[:-1], key=ORDER.index), PodPhase.SUCCEEDED]
        assert seen[0] is PodPhase.CREATED
        assert PodPhase.RUNNING in seen

    def test_a_pod_that_ends_well_says_so_of_every_rank(self, harness: Harness) -> None:
        run = start(harness, replace(harness.program(harness.moment_s / 4), nodes=2, ranks_per_node=2))
        await_end(harness, run)
        seen = pods(harness, run)
        assert [pod.phase for pod in seen.values()] == [PodPhase.SUCCEEDED] * 2
        assert [sorted(e.rank for e in pod.exits) for pod in seen.values()] == [[0, 1], [2, 3]]
        for pod in seen.values():
            assert all((e.exit_code, e.signal, e.ok) == (0, None, True) for e in pod.exits)
            assert pod.started_at is not None
            assert pod.created_at <= pod.started_at <= min(e.at for e in pod.exits) <= harness.now()

    @pytest.mark.parametrize("exit_code", [1, 3, 127])
    def test_a_pod_that_fails_says_with_which_exit_code(self, harness: Harness, exit_code: int) -> None:
        run = start(harness, harness.program(0.0, exit_code=exit_code))
        await_end(harness, run)
        pod = only(harness, run)
        assert (pod.phase, [(e.exit_code, e.signal) for e in pod.exits]) == (PodPhase.FAILED, [(exit_code, None)])

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
    def test_a_pod_that_is_killed_says_by_which_signal(self, harness: Harness, number: int) -> None:
        run = start(harness, harness.program(0.0, signal=number))
        await_end(harness, run)
        pod = only(harness, run)
        assert (pod.phase, [(e.exit_code, e.signal) for e in pod.exits]) == (PodPhase.FAILED, [(None, number)])

    def test_a_pod_that_is_over_before_it_was_seen_has_run_nevertheless(self, harness: Harness) -> None:
        run = start(harness, harness.program(0.0))
        await_end(harness, run)
        pod = only(harness, run)
        assert (pod.phase, harness.num_starts(pod.uid)) == (PodPhase.SUCCEEDED, 1)
        assert pod.started_at is not None

    def test_a_pod_that_is_over_never_changes_again(self, harness: Harness) -> None:
        run = start(harness, harness.program(0.0, exit_code=4))
        await_end(harness, run)
        pod = only(harness, run)
        apply(harness, run, terminate=notices(pod.uid, grace_s=0.0), create=members(run.spec, pod.node))
        harness.advance(harness.moment_s)
        harness.crash()
        harness.advance(harness.moment_s)
        assert only(harness, run) == pod
        assert harness.num_starts(pod.uid) == 1

    def test_creating_a_pod_again_does_nothing(self, harness: Harness) -> None:
        run = start(harness, harness.program())
        await_running(harness, run)
        before = only(harness, run)
        other = tuple(replace(m, grant=replace(m.grant, cpu_milli=77)) for m in members(run.spec, before.node))
        assert apply(harness, run, create=other)
        harness.advance(harness.moment_s)
        after = only(harness, run)
        assert (after.grant, after.created_at, after.started_at) == (before.grant, before.created_at, before.started_at)
        assert harness.num_starts(after.uid) == 1

    def test_the_next_start_has_pods_of_its_own(self, harness: Harness) -> None:
        run = start(harness, harness.program(0.0, exit_code=1))
        await_end(harness, run)
        place(harness, see(harness, run), attempt=1)
        assert set(pods(harness, run)) == {"1-0"}
        await_end(harness, run)
        assert [harness.num_starts(f"{run.uid}-{attempt}-0") for attempt in range(2)] == [1, 1]

    def test_the_stop_notice_is_seen_at_once_and_ends_the_pod(self, harness: Harness) -> None:
        run = start(harness, harness.program())
        await_running(harness, run)
        pod = only(harness, run)
        apply(harness, run, terminate=notices(pod.uid, grace_s=60 * harness.moment_s))
        noticed = only(harness, run).terminating_since
        assert noticed == pytest.approx(harness.now(), abs=harness.moment_s)
        await_end(harness, run)
        ended = only(harness, run)
        assert (ended.phase, ended.terminating_since) == (PodPhase.FAILED, noticed)
        assert [e.signal for e in ended.exits] == [signal.SIGTERM]
        assert harness.now() < ended.exits[0].at + 30 * harness.moment_s

    def test_the_grace_is_kept_and_then_it_is_over(self, harness: Harness) -> None:
        run = start(harness, harness.program(ignores_term=True))
        await_running(harness, run)
        grace_s = 3 * harness.moment_s
        apply(harness, run, terminate=notices(only(harness, run).uid, grace_s=grace_s))
        await_end(harness, run)
        pod = only(harness, run)
        assert (pod.phase, [e.signal for e in pod.exits]) == (PodPhase.FAILED, [signal.SIGKILL])
        assert pod.terminating_since is not None
        assert grace_s * 0.9 <= pod.exits[0].at - pod.terminating_since < grace_s + 3 * harness.moment_s

    def test_a_second_notice_shortens_the_grace(self, harness: Harness) -> None:
        run = start(harness, harness.program(ignores_term=True))
        await_running(harness, run)
        uid = only(harness, run).uid
        apply(harness, run, terminate=notices(uid, grace_s=1000 * harness.moment_s))
        first = only(harness, run).terminating_since
        harness.advance(harness.moment_s)
        assert not only(harness, run).phase.is_final
        apply(harness, run, terminate=notices(uid, grace_s=harness.moment_s))
        asked = harness.now()
        await_end(harness, run)
        pod = only(harness, run)
        assert pod.terminating_since == first
        assert pod.exits[0].at < asked + 4 * harness.moment_s

    def test_a_second_notice_never_lengthens_the_grace(self, harness: Harness) -> None:
        run = start(harness, harness.program(ignores_term=True))
        await_running(harness, run)
        uid = only(harness, run).uid
        apply(harness, run, terminate=notices(uid, grace_s=2 * harness.moment_s))
        apply(harness, run, terminate=notices(uid, grace_s=1000 * harness.moment_s))
        asked = harness.now()
        await_end(harness, run)
        assert only(harness, run).exits[0].at < asked + 5 * harness.moment_s

    def test_without_grace_a_pod_is_killed(self, harness: Harness) -> None:
        run = start(harness, harness.program(ignores_term=True))
        await_running(harness, run)
        apply(harness, run, terminate=notices(only(harness, run).uid, grace_s=0.0))
        asked = harness.now()
        await_end(harness, run)
        pod = only(harness, run)
        assert [e.signal for e in pod.exits] == [signal.SIGKILL]
        assert pod.exits[0].at < asked + 2 * harness.moment_s

    def test_a_notice_is_for_the_pod_that_it_names(self, harness: Harness) -> None:
        run = start(harness, replace(harness.program(), nodes=2))
        await_running(harness, run)
        apply(harness, run, terminate=notices(f"{run.uid}-0-0", grace_s=0.0))
        harness.until(lambda: pods(harness, run)["0-0"].phase.is_final)
        harness.advance(harness.moment_s)
        other = pods(harness, run)["0-1"]
        assert (other.phase, other.terminating_since) == (PodPhase.RUNNING, None)

    @pytest.mark.parametrize("grace_moments", [0, 10])
    def test_a_pod_that_is_stopped_before_it_started_never_runs(self, harness: Harness, grace_moments: int) -> None:
        run = start(harness, harness.program())
        pod = only(harness, run)
        apply(harness, run, terminate=notices(pod.uid, grace_s=grace_moments * harness.moment_s))
        await_end(harness, run)
        harness.advance(harness.moment_s)
        assert only(harness, run).phase is PodPhase.FAILED
        assert harness.num_starts(pod.uid) == 0

    def test_a_notice_for_nobody_does_nothing(self, harness: Harness) -> None:
        run = harness.cluster.submit(harness.program(harness.moment_s / 4))
        assert apply(harness, run, terminate=notices(f"{run.uid}-0-0", grace_s=0.0))
        place(harness, run)
        await_end(harness, run)
        pod = only(harness, run)
        assert (pod.phase, pod.terminating_since) == (PodPhase.SUCCEEDED, None)

    def test_a_notice_that_comes_after_the_end_does_nothing(self, harness: Harness) -> None:
        run = start(harness, harness.program(harness.moment_s / 4))
        pod = only(harness, run)
        harness.until(lambda: only(harness, run).phase.is_final)
        assert apply(harness, run, terminate=notices(pod.uid, grace_s=5.0))
        harness.advance(harness.moment_s)
        ended = only(harness, run)
        assert (ended.phase, ended.terminating_since) == (PodPhase.SUCCEEDED, None)

    def test_the_end_of_a_pod_ends_the_wait(self, harness: Harness) -> None:
        run = start(harness, harness.program(2 * harness.moment_s))
        await_running(harness, run)
        # It ends while nobody looks: what has been seen is no change any more.
        harness.advance(10 * harness.moment_s)
        before = harness.now()
        harness.cluster.wait(100 * harness.moment_s)
        assert harness.now() - before < 50 * harness.moment_s

    def test_a_lost_pod_is_lost_with_all_its_ranks(self, harness: Harness) -> None:
        run = start(harness, replace(harness.program(), nodes=2))
        await_running(harness, run)
        harness.lose(f"{run.uid}-0-1")
        harness.until(lambda: pods(harness, run)["0-1"].phase.is_final)
        lost, other = pods(harness, run)["0-1"], pods(harness, run)["0-0"]
        assert (lost.phase, lost.exits) == (PodPhase.LOST, ())
        assert lost.message
        assert other.phase is PodPhase.RUNNING

    def test_a_lost_pod_is_replaced_by_one_of_its_own_uid_which_starts_once(self, harness: Harness) -> None:
        run = start(harness, replace(harness.program(), nodes=2))
        await_running(harness, run)
        harness.lose(f"{run.uid}-0-1")
        harness.until(lambda: pods(harness, run)["0-1"].phase.is_final)
        old = pods(harness, run)["0-1"]
        lost = LostPod(index=1, times=1, in_a_row=1, steps=(0,), retry_at=0.0, replaced_at=harness.now())
        again = CreatePod(attempt=0, index=1, node=old.node, grant=old.grant, replacement=1)
        before = see(harness, run)
        seen = status(Phase.RUNNING, attempt=0, lost=(lost,))
        assert apply(harness, run, status=seen, create=(again,))
        assert not harness.cluster.apply(plan(change(before, status=seen, create=(again,))))[0]
        harness.crash()
        harness.until(lambda: harness.num_starts(f"{run.uid}-0-1r1") == 1)
        harness.until(lambda: pods(harness, run)["0-1"].phase is PodPhase.RUNNING)
        new = pods(harness, run)["0-1"]
        assert (new.uid, new.replacement, new.index, new.attempt) == (f"{run.uid}-0-1r1", 1, 1, 0)
        assert pods(harness, run)["0-0"].phase is PodPhase.RUNNING
        harness.advance(2 * harness.moment_s)
        assert [harness.num_starts(f"{run.uid}-{name}") for name in ("0-0", "0-1", "0-1r1")] == [1, 1, 1]
        assert see(harness, run).status.failures.lost_pods == (lost,)
        harness.lose(new.uid)
        harness.until(lambda: pods(harness, run)["0-1"].phase is PodPhase.LOST)
        assert pods(harness, run)["0-1"].uid == new.uid

    def test_a_pod_that_is_lost_while_nobody_looks_is_found_lost(self, harness: Harness) -> None:
        run = start(harness, harness.program())
        await_running(harness, run)
        harness.lose(only(harness, run).uid)
        harness.crash()
        await_end(harness, run)
        harness.advance(harness.moment_s)
        assert only(harness, run).phase is PodPhase.LOST
        assert harness.num_starts(only(harness, run).uid) == 1

    def test_a_pod_that_is_lost_while_it_stops_is_over(self, harness: Harness) -> None:
        run = start(harness, harness.program(ignores_term=True))
        await_running(harness, run)
        pod = only(harness, run)
        apply(harness, run, terminate=notices(pod.uid, grace_s=1000 * harness.moment_s))
        harness.advance(harness.moment_s)
        harness.lose(pod.uid)
        await_end(harness, run)
        assert only(harness, run).phase is PodPhase.LOST

    def test_a_pod_that_was_created_before_a_crash_starts_once(self, harness: Harness) -> None:
        run = start(harness, harness.program())
        harness.crash()
        await_running(harness, run)
        harness.advance(harness.moment_s)
        assert harness.num_starts(only(harness, run).uid) == 1

    @pytest.mark.parametrize("pause_moments", [0.02, 0.1, 0.3])
    def test_crashes_while_a_pod_starts_do_not_start_it_twice(self, harness: Harness, pause_moments: float) -> None:
        run = start(harness, replace(harness.program(), nodes=2))
        for _ in range(4):
            harness.advance(pause_moments * harness.moment_s)
            harness.crash()
        await_running(harness, run)
        harness.advance(harness.moment_s)
        assert [harness.num_starts(pod.uid) for pod in pods(harness, run).values()] == [1, 1]

    def test_a_pod_runs_on_through_a_crash(self, harness: Harness) -> None:
        run = start(harness, harness.program(3 * harness.moment_s, exit_code=9))
        await_running(harness, run)
        before = only(harness, run)
        harness.crash()
        assert only(harness, run).uid == before.uid
        await_end(harness, run)
        pod = only(harness, run)
        assert ([e.exit_code for e in pod.exits], pod.started_at) == ([9], before.started_at)
        assert harness.num_starts(pod.uid) == 1

    def test_a_stop_notice_outlives_a_crash(self, harness: Harness) -> None:
        run = start(harness, harness.program(ignores_term=True))
        await_running(harness, run)
        apply(harness, run, terminate=notices(only(harness, run).uid, grace_s=2 * harness.moment_s))
        harness.crash()
        asked = harness.now()
        await_end(harness, run)
        pod = only(harness, run)
        assert [e.signal for e in pod.exits] == [signal.SIGKILL]
        assert pod.exits[0].at < asked + 5 * harness.moment_s

    def test_a_shortened_grace_outlives_a_crash(self, harness: Harness) -> None:
        run = start(harness, harness.program(ignores_term=True))
        await_running(harness, run)
        uid = only(harness, run).uid
        apply(harness, run, terminate=notices(uid, grace_s=1000 * harness.moment_s))
        harness.advance(harness.moment_s / 2)
        apply(harness, run, terminate=notices(uid, grace_s=harness.moment_s))
        harness.crash()
        asked = harness.now()
        await_end(harness, run)
        assert only(harness, run).exits[0].at < asked + 4 * harness.moment_s

    def test_reported_steps_are_seen_and_move_no_version(self, harness: Harness) -> None:
        run = start(harness, harness.program(4 * harness.moment_s, steps=4))
        await_running(harness, run)
        version = see(harness, run).version
        steps: list[int] = []
        active: list[float] = []

        def ended() -> bool:
            seen, pod = see(harness, run), only(harness, run)
            steps.append(-1 if seen.progress is None or seen.progress.step is None else seen.progress.step)
            active.append(pod.active_at or 0.0)
            return pod.phase.is_final

        harness.until(ended)
        assert steps == sorted(steps)
        assert steps[-1] == 4
        assert len(set(steps)) > 2
        assert active == sorted(active)
        assert active[-1] > 0
        assert see(harness, run).version == version

    def test_output_is_kept_line_by_line(self, harness: Harness) -> None:
        run = start(harness, harness.program(0.0, output=("one", "two words", "", "three\u00e9")))
        await_end(harness, run)
        lines = [line for line in harness.logs(run.uid) if line.rank == 0 and line.stream == "o"]
        assert [line.text for line in lines] == ["one", "two words", "", "three\u00e9"]
        assert {line.attempt for line in lines} == {0}
        assert [line.at for line in lines] == sorted(line.at for line in lines)

    def test_output_of_every_start_is_kept_in_order(self, harness: Harness) -> None:
        run = start(harness, harness.program(0.0, exit_code=1, output=("hello",)))
        await_end(harness, run)
        place(harness, see(harness, run), attempt=1)
        await_end(harness, run)
        lines = [line for line in harness.logs(run.uid) if line.stream == "o"]
        assert [(line.attempt, line.text) for line in lines] == [(0, "hello"), (1, "hello")]
