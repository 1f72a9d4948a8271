"""Idle time inside runs on the bill: hour by hour as it was measured, never more than there was, and no second lost."""

import random
import sqlite3

from fairlead.cluster.ledger_tables import LedgerTables, idle_hours
from fairlead.ledger.activity import activity
from fairlead.ledger.usage import HOUR_MS, Use
from fairlead.state.snapshot import Grant, Pod, PodPhase, Progress, RankExit

BEGIN_S = 3600.0 * 1000


def life(end_s: float, *, started_s: float = 60.0, failed: bool = False) -> Pod:
    """A pod from the beginning of an hour on."""
    code = 1 if failed else 0
    return Pod(
        uid="run-0-0", workload_uid="run", attempt=0, index=0, node="node", grant=Grant(),
        phase=PodPhase.FAILED if failed else PodPhase.SUCCEEDED, created_at=BEGIN_S, started_at=BEGIN_S + started_s,
        exits=(RankExit(rank=0, exit_code=code, at=BEGIN_S + end_s),),
    )  # fmt: skip


def uses(found: tuple[tuple[Use, int, int], ...]) -> list[tuple[str, float]]:
    return [(use.value, (end - start) / 1000) for use, start, end in found]


def test_the_idle_part_of_each_hour_is_taken_from_its_productive_part() -> None:
    pod, end_ms = life(2 * 3600.0), round((BEGIN_S + 2 * 3600.0) * 1000)
    found = activity(pod, None, end_ms, {1000: 1_800_000, 1001: 600_000})
    assert uses(found) == [
        ("starting", 60.0), ("productive", 1740.0), ("idle-in-run", 1800.0), ("productive", 3000.0),
        ("idle-in-run", 600.0),
    ]  # fmt: skip


def test_without_measurements_nothing_is_idle() -> None:
    pod, end_ms = life(7200.0), round((BEGIN_S + 7200.0) * 1000)
    assert uses(activity(pod, None, end_ms)) == uses(activity(pod, None, end_ms, {})) == [
        ("starting", 60.0), ("productive", 7140.0)
    ]  # fmt: skip


def test_lost_work_stays_lost_and_takes_its_part_of_the_idle_time() -> None:
    pod, end_ms = life(1800.0, started_s=0.0, failed=True), round((BEGIN_S + 1800.0) * 1000)
    saved = Progress(checkpoint_at=BEGIN_S + 600.0)
    # Of half an hour a third was saved, so that a third of what was idle was in it.
    assert uses(activity(pod, saved, end_ms, {1000: 900_000})) == [
        ("productive", 300.0), ("idle-in-run", 300.0), ("redone", 1200.0)
    ]  # fmt: skip


def test_every_division_covers_the_life_of_a_pod_exactly() -> None:
    rng = random.Random(7)
    for _ in range(500):
        pod = life(rng.uniform(1, 20_000), started_s=rng.uniform(0, 3_000), failed=rng.random() < 0.5)
        end_ms = round(pod.exits[0].at * 1000)
        saved = Progress(checkpoint_at=BEGIN_S + rng.uniform(0, 20_000)) if rng.random() < 0.5 else None
        idle = {hour: rng.randrange(2 * HOUR_MS) for hour in range(999, 1007) if rng.random() < 0.7}
        plain, found = activity(pod, saved, end_ms), activity(pod, saved, end_ms, idle)
        ends = [start for _, start, _ in found[1:]]
        assert ends == [end for _, _, end in found[:-1]]
        assert (found[0][1], found[-1][2]) == (plain[0][1], plain[-1][2])
        assert all(end > start for _, start, end in found)
        of_work = {Use.PRODUCTIVE, Use.IDLE_IN_RUN}
        worked = sum(end - start for use, start, end in plain if use is Use.PRODUCTIVE)
        assert sum(end - start for use, start, end in found if use in of_work) == worked


def test_measurements_add_up_over_the_edge_of_an_hour() -> None:
    assert list(idle_hours(1000 * HOUR_MS - 6_000, 1000 * HOUR_MS + 4_000, 0.25)) == [(999, 4_500), (1000, 3_000)]
    assert list(idle_hours(1000 * HOUR_MS, 1000 * HOUR_MS + 4_000, 1.0)) == []
    tables = LedgerTables(sqlite3.connect(":memory:"))
    tables.create()
    for second in range(20):
        tables.add_idle("pod", 1000 * HOUR_MS + second * 1000, 1000 * HOUR_MS + (second + 1) * 1000, 0.5)
    assert tables.idle_of("pod") == {1000: 10_000}
    tables.forget_idle("pod")
    assert tables.idle_of("pod") == {}
