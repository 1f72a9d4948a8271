"""A cluster's ledger holds the same in SQLite and in PostgreSQL, and each pod once, whoever writes it how often."""

import threading
from collections import defaultdict
from dataclasses import replace
from itertools import zip_longest

import pytest

from fairlead.cluster.kubernetes.manifests.ledger_storage import read_place
from fairlead.cluster.kubernetes.operator.ledger.usage_ledger import Ended, HeldPod, UsageLedger
from fairlead.cluster.ledger_tables import CostGrouping, Price, holder_of, month_of
from fairlead.cluster.postgres import PostgresDatabase, check_address, translated, without_password
from fairlead.errors import ClusterError, Conflict
from fairlead.ledger.activity import ended_ms
from fairlead.ledger.bills import statement, stretches_of
from fairlead.ledger.comparison import busy_levels, pool_loads
from fairlead.ledger.usage import DAY_MS, HOUR_MS, Use, share_of
from fairlead.state.snapshot import Grant, Pod, PodPhase
from tests.ledger.months import MONTH_MS, START_MS, Life, Month, month, recount

WINDOW = (START_MS + 5 * HOUR_MS + 1, START_MS + 11 * DAY_MS + 7 * HOUR_MS)


def ended_of(world: Month, life: Life) -> Ended:
    node = next(each for each in world.nodes if each.name == life.pod.node)
    held = HeldPod(
        pod=life.pod, holder=holder_of(life.pod.workload_uid, life.spec), share=share_of(life.pod.grant, node)
    )
    return Ended(held=held, progress=life.progress, end_ms=ended_ms(life.pod, life.ended_ms / 1000))


def filled(place: str, world: Month) -> UsageLedger:
    ledger = UsageLedger(place)
    for node, changes in world.prices.items():
        for at, rate in changes:
            ledger.set_price(Price(node=node, from_ms=at, rate=rate, source="test"), f"pool-{node[-1]}")
    for life in world.lives:
        one = ended_of(world, life)
        ledger.write([one.held], [], START_MS)
        ledger.write([], [one], one.end_ms)
    return ledger


def test_a_month_is_billed_as_by_the_recount(ledger_place: str) -> None:
    world = month(7)
    ledger = filled(ledger_place, world)
    held = [each for life in world.lives for each in ledger.of_run(life.pod.workload_uid)]
    by_day = [
        each for day in range(START_MS // DAY_MS, (START_MS + 3 * MONTH_MS) // DAY_MS) for each in ledger.of_day(day)
    ]
    assert sorted(held, key=repr) == sorted(by_day, key=repr)
    stretches = stretches_of(ledger.price_changes(), held, *WINDOW, key=lambda each: each.holder, rest=lambda _: None)
    found = statement(stretches)
    rows = {(line.node, line.key.run if line.key else None, line.use): line.microusd for line in found.lines}
    exact = recount(world, *WINDOW)
    assert sum(rows.values()) == sum(exact.values()) == found.billed_microusd
    assert all(abs(rows.get(key, 0) - exact.get(key, 0)) <= 1 for key in {*rows, *exact})
    # The sums of days say the same, by whatever they are asked for.
    for by in CostGrouping:
        again = statement(ledger._tables.stretches(by, *WINDOW, []))
        assert again.billed == found.billed
        assert _by_use(again.lines) == _by_use(found.lines)
    assert ledger.open_pods() == {}
    assert ledger.pools() == {f"node-{number}": f"pool-{number}" for number in range(4)}
    ledger.close()


def test_the_loads_of_days_sum_to_the_load_of_all_pods(ledger_place: str) -> None:
    world = month(11)
    ledger = filled(ledger_place, world)
    pools = {node.name: "even" if int(node.name[-1]) % 2 == 0 else "odd" for node in world.nodes}
    spans = defaultdict[str, list[tuple[str, int, int]]](list)
    for one in (ended_of(world, life) for life in world.lives):
        if one.held.share:
            pod = one.held.pod
            spans[pools[pod.node]].append((pod.node, round(pod.created_at * 1000), one.end_ms))
    summed = defaultdict[str, list[int]](list)
    for day in range(START_MS // DAY_MS, (START_MS + 3 * MONTH_MS) // DAY_MS):
        loads = pool_loads(ledger.of_day(day), pools, day * DAY_MS, (day + 1) * DAY_MS)
        for pool, busy in loads.get(None, {}).items():
            summed[pool] = [sum(both) for both in zip_longest(summed[pool], busy, fillvalue=0)]
    ledger.close()
    assert dict(summed) == {pool: busy_levels(found) for pool, found in spans.items()}
    assert set(map(len, summed.values())) == {2}


def _by_use(lines: object) -> dict[Use, int]:
    amounts: defaultdict[Use, int] = defaultdict(int)
    for line in lines:  # type: ignore[attr-defined]
        amounts[line.use] += line.unit_ms
    return {use: amount for use, amount in amounts.items() if amount}


def test_a_pod_that_is_closed_by_two_at_once_and_again_is_charged_once(ledger_place: str) -> None:
    world = month(3)
    filled(ledger_place, world).close()
    two = [UsageLedger(ledger_place) for _ in range(2)]
    once = [two[0].of_run(life.pod.workload_uid) for life in world.lives]
    late = [replace(life, pod=replace(life.pod, uid=f"late-{life.pod.uid}")) for life in world.lives]
    errors: list[BaseException] = []

    def close_all(ledger: UsageLedger) -> None:
        try:
            for life in (*world.lives, *late):
                ledger.write([], [ended_of(world, life)], START_MS)
        except ClusterError as error:
            errors.append(error)

    threads = [threading.Thread(target=close_all, args=(ledger,)) for ledger in two]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors
    # Each late pod of a run is charged once beside the one that was there.
    for life, before in zip(world.lives, once, strict=True):
        after = two[1].of_run(life.pod.workload_uid)
        assert sorted(after, key=repr) == sorted([*before, *before], key=repr)
    for ledger in two:
        ledger.close()


def test_what_is_open_and_what_was_spent_survives_its_writer(ledger_place: str) -> None:
    world = month(5)
    ledger = UsageLedger(ledger_place)
    for node in world.nodes:
        ledger.set_price(Price(node=node.name, from_ms=0, rate=3_600_000_000, source="test"))
    first, second = (ended_of(world, life) for life in world.lives[:2])
    holder = second.held.holder
    assert holder is not None
    ledger.write([first.held, second.held], [], 17)
    ledger.write([replace(first.held, pod=replace(first.held.pod, started_at=5.0))], [second], 16)
    ledger.close()
    again = UsageLedger(ledger_place)
    assert [each.pod.started_at for each in again.open_pods().values()] == [5.0]
    assert again.closed_pods() == {holder.uid: {second.held.pod.uid}}
    assert again.seen_ms() == 17  # it does not go back
    spent = again.spent_by_run(holder.uid)
    length_ms = second.end_ms - round(second.held.pod.created_at * 1000)
    assert spent == pytest.approx(length_ms / HOUR_MS * 3.6e9 * second.held.share / 5_040_000, abs=3)
    months = {month_of(at / 1000)[0] for at in range(START_MS, START_MS + 3 * MONTH_MS, DAY_MS)}
    account = holder.team, holder.project
    assert sum(again.spent_by_account(name).get(account, 0) for name in months) == spent
    # What is charged may be forgotten once the run is gone; its costs stay.
    again.forget([holder.uid])
    assert (again.closed_pods(), again.spent_by_run(holder.uid)) == ({}, spent)
    assert not again.is_told("team", "2026-11", 50)
    again.note_told("team", "2026-11", 80)
    again.note_told("team", "2026-11", 80)
    assert again.is_told("team", "2026-11", 50)
    again.close()


def test_a_transaction_that_fails_leaves_nothing(ledger_place: str) -> None:
    world = month(3)
    ledger = UsageLedger(ledger_place)
    one = ended_of(world, world.lives[0])
    assert one.held.holder is not None
    broken = replace(one, held=replace(one.held, holder=replace(one.held.holder, team=None)))  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="ledger"):
        ledger.write([one.held], [broken], 5)
    assert (ledger.open_pods(), ledger.closed_pods(), ledger.seen_ms()) == ({}, {}, None)
    ledger.write([one.held], [], 5)
    assert list(ledger.open_pods()) == [one.held.pod.uid]
    ledger.close()


def test_a_place_that_is_not_there_is_told(tmp_path: object) -> None:
    with pytest.raises(ClusterError, match="cannot be opened"):
        UsageLedger("/proc/none/ledger.db")
    with pytest.raises(ClusterError, match="does not answer"):
        UsageLedger("postgresql://app@127.0.0.1:1/none")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:p%zzHIDDEN@127.0.0.1:1/x",
        "postgresql://app:p@HIDDEN@127.0.0.1:1/x",
        "postgresql://app:p/HIDDEN@127.0.0.1:1/x",
        "postgresql://app:1/HIDDEN@127.0.0.1:1/x",
        "postgresql://app:HIDDEN/p@127.0.0.1:1/x",
        "postgresql://app:HIDDEN#p@127.0.0.1:1/x",
        "postgresql://app:HIDDEN?p@127.0.0.1:1/x",
        "postgresql://app@127.0.0.1:1/x?password=%zzHIDDEN",
    ],
)
def test_an_address_that_cannot_be_read_is_not_repeated(url: str) -> None:
    for read in (UsageLedger, read_place):
        with pytest.raises((ClusterError, Conflict), match="%40 %2F %3F") as refused:
            read(url)
        assert "HIDDEN" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:a%40b:c@db.example.com:5433/x?sslmode=require",
        "postgresql://app@[::1]:5432/x",
        "postgres://db",
        "postgresql://one:1,two:2/x",
        "postgresql:///x?host=/run/postgresql&user=a@b",
    ],
)
def test_an_address_of_its_form_is_taken(url: str) -> None:
    check_address(url)


def test_a_server_that_is_gone_without_a_word_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr("psycopg.connect", lambda url, **options: given.update(options))
    PostgresDatabase("postgresql://app@db/x")
    assert given["connect_timeout"] == 5
    assert given["tcp_user_timeout"] == 10_000
    assert (given["keepalives_idle"], given["keepalives_interval"], given["keepalives_count"]) == (10, 2, 3)


def test_statements_are_translated() -> None:
    assert translated("SELECT max(a, :low) FROM t WHERE b = ?") == "SELECT greatest(a, %(low)s) FROM t WHERE b = %s"
    assert translated("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER) WITHOUT ROWID").endswith(
        "(id BIGSERIAL PRIMARY KEY, n BIGINT)"
    )
    assert without_password("postgresql://app:secret@db/x") == "postgresql://app:***@db/x"


def test_idle_time_is_on_the_bill_of_the_pod_once_it_is_charged(ledger_place: str) -> None:
    world = month(5)
    long_enough = (
        each
        for each in (ended_of(world, life) for life in world.lives)
        if Use.PRODUCTIVE in {interval.use for interval in each.held.intervals(each.progress, each.end_ms)}
        and each.end_ms - each.held.pod.created_at * 1000 > HOUR_MS
    )
    one = min(long_enough, key=lambda each: each.end_ms - each.held.pod.created_at * 1000)
    ledger = UsageLedger(ledger_place)
    begin, end = round(one.held.pod.created_at * 1000), one.end_ms
    ledger.add_idle([(one.held.pod.uid, begin, end, 0.75)])
    assert ledger.idle_of(one.held.pod.uid) == {}, "nobody has seen it yet"
    ledger.write([one.held], [], begin)
    for start in range(begin, end, 30_000):
        ledger.add_idle([(one.held.pod.uid, start, min(start + 30_000, end), 0.75)])
    ledger.write([], [one], end)
    ledger.add_idle([(one.held.pod.uid, begin, end, 0.0)])
    assert ledger.idle_of(one.held.pod.uid) == {}, "it is charged"
    lengths: defaultdict[Use, int] = defaultdict(int)
    for each in ledger.of_run(one.held.pod.workload_uid):
        lengths[each.use] += each.end_ms - each.start_ms
    plain: defaultdict[Use, int] = defaultdict(int)
    for each in one.held.intervals(one.progress, end):
        plain[each.use] += each.end_ms - each.start_ms
    assert lengths[Use.PRODUCTIVE] + lengths[Use.IDLE_IN_RUN] == plain[Use.PRODUCTIVE]
    assert lengths[Use.IDLE_IN_RUN] == pytest.approx(0.25 * plain[Use.PRODUCTIVE], rel=0.01)
    ledger.close()


def test_what_no_run_held_is_kept_by_its_use_and_counts_once(ledger_place: str) -> None:
    ledger = UsageLedger(ledger_place)
    pod = Pod(
        uid="agent", workload_uid="", attempt=0, index=0, node="n", grant=Grant(cpu_milli=1000),
        phase=PodPhase.RUNNING, created_at=START_MS / 1000,
    )  # fmt: skip
    held = HeldPod(pod=pod, holder=None, share=1000, use=Use.SYSTEM)
    ledger.write([held], [], START_MS)
    assert ledger.open_pods() == {"agent": held}
    end = Ended(held=held, progress=None, end_ms=START_MS + DAY_MS + HOUR_MS)
    for _ in range(2):  # as after a connection that broke
        ledger.write([], [end], START_MS + 1)
    assert (ledger.open_pods(), ledger.closed_pods()) == ({}, {"": {"agent"}})
    ledger.write([], [], START_MS + 2)
    assert ledger.closed_pods() == {}
    first = START_MS // DAY_MS
    found = [each for day in range(first, first + 3) for each in ledger.of_day(day)]
    assert sum(each.end_ms - each.start_ms for each in found) == DAY_MS + HOUR_MS
    assert {(each.holder, each.use, each.share) for each in found} == {(None, Use.SYSTEM, 1000)}
    ledger.close()
