"""Runs that read from a store through shared caches: how long they take, and how much leaves the store."""

import random
from pathlib import Path

import pytest

from fairlead.cluster.simulated.data_reads import DataReads
from fairlead.control.outcomes import Outcome, summary
from fairlead.control.simulation import simulate
from fairlead.errors import InvalidSpec
from fairlead.policy.data.caching import CachedVersion, ReadDemand, StoreReader, store_rates, targets_gb
from fairlead.specs.simulation import Failures, Interference, Programs, Store
from fairlead.traces.arrivals import Arrival
from fairlead.traces.reading import read_trace
from fairlead.traces.writing import write_trace
from tests.simulation.worlds import parts, pool, run, world

GB = 10**9
TEN = ReadDemand(version="ten", size_gb=10.0, gb_s=0.1)


def replayed(*arrivals: Arrival, rate: float = 1.0, cache: float = 0.0, nodes: int = 2) -> Outcome:
    store = Store(rate=round(rate * GB), cache=round(cache * GB))
    return simulate(arrivals, (pool(nodes=nodes),), world(store=store))


def ended(outcome: Outcome) -> list[float | None]:
    return [run.completion_s for run in outcome.runs]


def test_a_run_reads_its_data_each_epoch_without_a_cache() -> None:
    outcome = replayed(run("a", 0.0, 1000.0, reads=TEN))
    assert ended(outcome) == [1000.0]
    assert outcome.store_gb == pytest.approx(100.0)


def test_data_that_fit_leave_the_store_once() -> None:
    outcome = replayed(run("a", 0.0, 1000.0, reads=TEN), run("b", 2000.0, 1000.0, reads=TEN), cache=5.0)
    assert outcome.store_gb == pytest.approx(10.0)


def test_half_a_cache_serves_half_of_each_later_epoch() -> None:
    outcome = replayed(run("a", 0.0, 1000.0, reads=TEN), cache=2.5)
    assert outcome.store_gb == pytest.approx(10.0 + 9 * 5.0)


def test_a_store_that_is_too_slow_slows_the_run_down_and_not_longer_than_it_has_to_read() -> None:
    slow = replayed(run("a", 0.0, 1000.0, reads=TEN), rate=0.05, cache=5.0)
    assert ended(slow) == [pytest.approx(100.0 / 0.5 + 900.0)]
    assert all(pod.slowed_s == pytest.approx(100.0) for pod in slow.pods)
    assert all(parts(pod) == pytest.approx(pod.ended_at - pod.created_at) for pod in slow.pods)
    assert summary(slow).whole.goodput == pytest.approx(1000.0 / 1100.0)


def test_runs_without_data_are_not_slowed() -> None:
    outcome = replayed(run("a", 0.0, 1000.0, reads=TEN), run("b", 0.0, 1000.0), rate=0.01)
    assert ended(outcome)[1] == 1000.0


def test_a_gang_reads_once_for_all_its_pods() -> None:
    outcome = replayed(run("a", 0.0, 1000.0, nodes=2, reads=TEN), rate=0.05, cache=5.0)
    assert outcome.store_gb == pytest.approx(10.0)
    assert ended(outcome) == [pytest.approx(1100.0)]


def test_a_lost_node_takes_its_part_of_the_cache_with_it() -> None:
    reads = DataReads(1.0, 100.0, 4, at=0.0)
    reads.begin("a", TEN, 0.0, 1e6, 0.0)
    reads.proceed(100.0)
    assert reads.store_gb == pytest.approx(10.0)
    reads.nodes_are(3, 100.0)
    reads.nodes_are(4, 100.0)
    reads.proceed(200.0)
    assert reads.store_gb == pytest.approx(12.5)


def test_a_run_that_starts_again_goes_on_within_its_epoch() -> None:
    reads = DataReads(1.0, 100.0, 1, at=0.0)
    reads.begin("a", TEN, 0.0, 1e6, 0.0)
    reads.end("a", 50.0)
    reads.begin("a", TEN, 50.0, 1e6 - 50.0, 60.0)
    reads.proceed(reads.next_at)
    assert reads.at == pytest.approx(110.0)


def test_nodes_that_fail_slow_nothing_for_ever() -> None:
    arrivals = [run(f"r{number}", 100.0 * number, 4000.0, every_s=300.0, reads=TEN) for number in range(6)]
    weather = world(
        store=Store(rate=GB // 10, cache=4 * GB),
        failures=Failures(mtbf_s=4000.0, repair_s=600.0),
        programs=Programs(checkpoint_s=5.0),
        seed=5,
    )
    outcome = simulate(arrivals, (pool(nodes=3),), weather)
    assert summary(outcome).whole.unfinished == 0
    assert sum(run.num_failures for run in outcome.runs) > 3
    assert all(parts(pod) == pytest.approx(pod.ended_at - pod.created_at) for pod in outcome.pods)


def bundle_by_bundle(
    readers: list[tuple[float, ReadDemand, float]], limit_gb_s: float, capacity_gb: float, until_s: float, seed: int
) -> float:
    """Return the GB that leave the store when each bundle of .1 GB is read by itself, of (start, demand, work)."""
    chance, bundle_gb, step_s = random.Random(seed), 0.1, 5.0
    cached: dict[str, set[int]] = {}
    going: dict[str, tuple[ReadDemand, list[int], float]] = {}
    store_gb = now = 0.0
    waiting = sorted(readers, key=lambda reader: reader[0])

    def epoch(demand: ReadDemand) -> list[int]:
        return chance.sample(range(round(demand.size_gb / bundle_gb)), round(demand.size_gb / bundle_gb))

    credit: dict[str, tuple[float, float]] = {}
    while now < until_s:
        while waiting and waiting[0][0] <= now:
            _, demand, work_s = waiting.pop(0)
            going[str(len(credit))] = (demand, epoch(demand), work_s * demand.gb_s)
            credit[str(len(credit))] = (0.0, 0.0)
        misses = {
            uid: sum(bundle not in cached.get(demand.version, ()) for bundle in order) / len(order)
            for uid, (demand, order, _) in going.items()
        }
        rates = store_rates(
            [
                StoreReader(uid=uid, wanted_gb_s=demand.gb_s * misses[uid], left_gb=left * misses[uid])
                for uid, (demand, _, left) in going.items()
            ],
            limit_gb_s,
        )
        taken = {demand.version: 0.0 for demand, _, _ in going.values()}
        for demand, _, _ in going.values():
            taken[demand.version] += demand.gb_s
        sizes = {demand.version: demand.size_gb for _, demand, _ in readers}
        targets = targets_gb(
            [
                CachedVersion(
                    version=version,
                    size_gb=sizes[version],
                    cached_gb=len(cached.get(version, ())) * bundle_gb,
                    gb_s=taken.get(version, 0.0),
                )
                for version in sizes
            ],
            capacity_gb,
        )
        for uid, (demand, order, left) in list(going.items()):
            time_gb, egress_gb = credit[uid]
            time_gb, egress_gb = time_gb + demand.gb_s * step_s, egress_gb + rates[uid] * step_s
            held = cached.setdefault(demand.version, set())
            while time_gb >= bundle_gb and left > 0.0:
                if order[-1] not in held:
                    if egress_gb < bundle_gb:
                        break
                    egress_gb -= bundle_gb
                    store_gb += bundle_gb
                    if len(held) * bundle_gb < targets[demand.version]:
                        held.add(order[-1])
                order.pop()
                time_gb, left = time_gb - bundle_gb, left - bundle_gb
                if not order:
                    order = epoch(demand)
            credit[uid] = (min(time_gb, 2 * demand.gb_s * step_s), egress_gb)
            going[uid] = (demand, order, left)
            if left <= 0.0:
                del going[uid]
        over = round(sum(map(len, cached.values())) - capacity_gb / bundle_gb)
        for version, held in cached.items():
            surplus = min(over, len(held) - round(targets[version] / bundle_gb))
            if surplus > 0:
                held.difference_update(chance.sample(sorted(held), surplus))
                over -= surplus
        now += step_s
    return store_gb


@pytest.mark.parametrize("seed", range(4))
def test_rates_give_what_reading_bundle_by_bundle_gives(seed: int) -> None:
    chance = random.Random(seed)
    demands = [ReadDemand(version=f"v{n}", size_gb=chance.choice((20.0, 30.0, 50.0)), gb_s=0.05) for n in range(3)]
    readers = [(300.0 * number, chance.choice(demands), 6_000.0) for number in range(5)]
    capacity_gb, until_s = chance.choice((25.0, 45.0, 70.0)), 20_000.0
    exact_gb = bundle_by_bundle(readers, 0.12, capacity_gb, until_s, seed)
    reads = DataReads(0.12, capacity_gb, 1, at=0.0)
    work = {str(number): demand.gb_s * work_s for number, (_, demand, work_s) in enumerate(readers)}
    waiting = list(enumerate(readers))
    while reads.at < until_s:
        if waiting and waiting[0][1][0] <= reads.at:
            number, (at, demand, work_s) = waiting.pop(0)
            reads.begin(str(number), demand, 0.0, work_s, at)
            continue
        before, speeds = reads.at, reads.speeds()
        reads.proceed(min(reads.next_at, waiting[0][1][0] if waiting else until_s, until_s))
        for uid, speed in speeds.items():
            work[uid] -= 0.05 * speed * (reads.at - before)
            if work[uid] <= 1e-6:
                reads.end(uid, reads.at)
    assert reads.store_gb == pytest.approx(exact_gb, rel=0.04)


def test_data_of_a_trace_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submit_s,duration_s,gpu,data,data_gb,data_mb_s\n0,10,1,imagenet,150,115\n5,10,1,,,\n")
    first, second = read_trace(path)
    assert first.reads == ReadDemand(version="imagenet", size_gb=150.0, gb_s=0.115)
    assert second.reads is None
    path.write_text(write_trace((first, second)))
    assert read_trace(path) == (first, second)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("0,10,imagenet,150,\n", "data, data_gb and data_mb_s: give all three"),
        ("0,10,imagenet,0,5\n", "two numbers above 0"),
        ("0,10,imagenet,150,5\n0,10,imagenet,140,5\n", "imagenet has 150 GB in one row and 140 in another"),
        ("0,10,imagenet,many,5\n", "data_gb: 'many' is not a number"),
    ],
)
def test_incomplete_data_of_a_trace_are_refused(tmp_path: Path, rows: str, problem: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submit_s,duration_s,data,data_gb,data_mb_s\n" + rows)
    with pytest.raises(InvalidSpec, match=problem):
        read_trace(path)


def test_a_store_beside_interference_is_refused() -> None:
    both = world(store=Store(rate=GB), interference=Interference(two=1.3))
    with pytest.raises(InvalidSpec, match="not simulated together with `store`"):
        simulate([run("a", 0.0, 10.0)], (pool(),), both)
