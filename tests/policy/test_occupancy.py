"""Holdings of runs and their ends, kept from pass to pass, are those from scratch, and nothing is left behind."""

from fairlead.policy.queue.durations import Durations
from fairlead.policy.queue.occupancy import LEAST_TIMES, Occupancy
from fairlead.state.snapshot import Completed
from tests.builders import node
from tests.policy.test_scheduling import NOW, running


def test_ends_follow_what_others_of_their_kind_took_and_leave_no_entries_behind() -> None:
    nodes = (node("n0", gpus=4),)
    there = [running(f"train-{number}", "n0", range(number, number + 1), began_s=100.0 * number) for number in range(4)]
    runs = {run.uid: run for run, _ in there}
    pods = {run.uid: [pod] for run, pod in there}
    kept, ended = Occupancy(nodes), list[Completed]()
    kept.changed(runs)
    for step in range(400):
        # Ends come from one of these, which takes turns, and moves as time passes.
        ended.append(Completed(team="default", name=f"train-{100 + step}", took_s=150.0 + 997.0 * step % 2000.0))
        durations, now = Durations(ended), NOW + step
        kept.refresh(runs, runs, pods, durations, now)
        known = [(durations.ends_at(run, pods[uid], now), uid) for uid, run in runs.items()]
        assert list(kept.ends_after(now)) == sorted(each for each in known if each[0] < float("inf"))
    assert len(kept._same_until) <= LEAST_TIMES
    kept.changed(runs)
    kept.refresh({}, runs, {}, durations, now)
    assert not kept.holdings
    assert not list(kept.ends_after(0.0))
    assert not kept._until
