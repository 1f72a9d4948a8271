"""Time of a cost listing over many intervals.

    python -m benchmarks.ledger [--intervals 1000000]

A month of one machine with that many pods, of 2,000 runs and 20 teams, in a separate database; then each listing as the
command makes it, within this process. On a busy machine the processor time is more reliable.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fairlead.cluster.ledger_tables import CostGrouping, LedgerTables, Price
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.ledger.usage import DAY_MS, WHOLE, Holder, UsageInterval, Use

NUM_RUNS, NUM_TEAMS = 2_000, 20
BATCH = 10_000


def intervals(number: int, now_ms: int) -> Iterator[UsageInterval]:
    """So many intervals of the last thirty days, an eighth of the machine each."""
    draw = random.Random(1)
    holders = [
        Holder(uid=f"uid-{n}", run=f"run-{n}", team=f"team-{n % NUM_TEAMS}", model=f"model-{n % 50}", user="ann")
        for n in range(NUM_RUNS)
    ]
    uses = (Use.PRODUCTIVE, Use.STARTING, Use.SAVING, Use.REDONE)
    length_ms = 8 * 30 * DAY_MS // number
    for n in range(number):
        start = now_ms - 30 * DAY_MS + n * (30 * DAY_MS - length_ms) // number
        yield UsageInterval(
            node="localhost",
            holder=draw.choice(holders),
            use=draw.choice(uses),
            start_ms=start,
            end_ms=start + length_ms,
            share=WHOLE // 8,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--intervals", type=int, default=1_000_000)
    number = parser.parse_args().intervals
    with tempfile.TemporaryDirectory() as home:
        now = time.time()
        cluster = LocalCluster.open(Path(home))
        cluster.set_price(Price(node="localhost", from_ms=0, rate=2_500_000, source="benchmark"))
        began = time.perf_counter()
        ledger: LedgerTables = cluster.store._ledger
        made = intervals(number, round(now * 1000))
        for _ in range(-(-number // BATCH)):
            with cluster.store._transaction():
                ledger.add(each for _, each in zip(range(BATCH), made, strict=False))
        took_s, size = time.perf_counter() - began, cluster.home.database.stat().st_size >> 20
        print(f"{number:,} intervals written in {took_s:.1f} s, {size} MiB", flush=True)
        for by in CostGrouping:
            began, began_cpu = time.perf_counter(), time.process_time()
            found = cluster.costs(by, since=now - 30 * DAY_MS / 1000, until=now)
            took_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
            assert sum(line.microusd for line in found.lines) == found.billed_microusd
            print(f"cost --by {by:<8} --since 30d  {took_s * 1000:8.1f} ms, of the processor {cpu_s * 1000:8.1f} ms")
        cluster.close()


if __name__ == "__main__":
    main()
