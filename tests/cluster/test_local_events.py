"""Events of one run, found without a look at those of all others."""

from pathlib import Path

from fairlead.cluster.local.cluster import LocalCluster

STEPS_AT_ONCE = 100


def test_events_of_a_run_are_found_however_many_others_there_are(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path / "home")
    try:
        database = cluster.store._db
        reason = '{"code": "Reported", "message": "said"}'
        rows = [(float(number), f"{number % 1000:04}", "x", "Said", reason) for number in range(20_000)]
        database.executemany("INSERT INTO events (at, workload_uid, run, type, reason) VALUES (?, ?, ?, ?, ?)", rows)
        steps = list[int]()

        def count() -> int:
            steps.append(STEPS_AT_ONCE)
            return 0

        database.set_progress_handler(count, STEPS_AT_ONCE)
        found = cluster.events("0007")
        assert [each.at for each in found] == [float(number) for number in range(7, 20_000, 1000)]
        assert sum(steps) < 2_000
        assert [each.at for each in cluster.events("0007", after=found[-2].id)] == [found[-1].at]
        assert sum(steps) < 2_000
        database.set_progress_handler(None, 0)
        assert len(cluster.events()) == 20_000
        assert [each.at for each in cluster.events(after=found[-1].id)] == [float(n) for n in range(19_008, 20_000)]
    finally:
        cluster.close()
