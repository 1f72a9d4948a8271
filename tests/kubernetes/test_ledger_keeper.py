"""Prices of nodes as an operator sees them come, change and go, from caches that are fed by hand."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.pods import REPORTER_CPU_MILLI
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.operator.ledger import ledger_keeper
from fairlead.cluster.kubernetes.operator.ledger.cost_publisher import CostPublisher
from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.operator.ledger.usage_ledger import UsageLedger
from fairlead.cluster.ledger_tables import holder_of
from fairlead.errors import ClusterError
from fairlead.ledger.usage import Use
from fairlead.policy.decide import decide
from fairlead.policy.placement.node_eligibility import PRICE_LABEL
from fairlead.specs.team import Budget, Team
from fairlead.specs.training import Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Spending, Workload
from tests.builders import node, status, training
from tests.kubernetes.turns import a_turn

BORN = "2026-11-01T00:00:00Z"
NOW = seconds("2026-11-20T00:00:00Z")


def a_node(version: int, price: str) -> dict[str, Any]:
    metadata = {"name": "n", "resourceVersion": str(version), "creationTimestamp": BORN, "labels": {PRICE_LABEL: price}}
    ready = {"type": "Ready", "status": "True"}
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    return {"metadata": metadata, "spec": {}, "status": {"allocatable": allocatable, "conditions": [ready]}}


def no_nodes() -> Informers:
    client = Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous()))
    return Informers(client, namespace="kube-system")


def test_a_node_costs_from_its_creation_until_it_goes_at_the_price_of_each_time(tmp_path: Path) -> None:
    view = no_nodes()
    place = str(tmp_path / "ledger.db")
    first = LedgerKeeper(view, place)
    view.nodes.put(a_node(1, "2.5"))
    first.prepare(NOW)
    view.nodes.put(a_node(2, "3"))
    first.prepare(NOW + 10)
    first.prepare(NOW + 11)
    first.rest()
    # While nobody led the node went; it is billed until it was seen last.
    view.nodes.drop("n", 3)
    second = LedgerKeeper(view, place)
    second.prepare(NOW + 60)
    assert second.trouble is None
    second.rest()
    ledger = UsageLedger(place)
    changes = [(each.from_ms / 1000, each.rate) for each in ledger.price_changes()["n"]]
    ledger.close()
    assert changes[:2] == [(seconds(BORN), 2_500_000), (NOW + 10, 3_000_000)]
    assert changes[2][1] is None
    assert NOW + 10 <= changes[2][0] <= NOW + 11
    assert len(changes) == 3


def test_a_node_that_changes_and_goes_while_the_ledger_is_out_is_billed_for_each_price_and_up_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, place = no_nodes(), str(tmp_path / "ledger.db")
    keeper = LedgerKeeper(view, place)
    view.nodes.put(a_node(1, "2.5"))
    keeper.prepare(NOW)

    def out(*_: object) -> UsageLedger:
        raise ClusterError("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(UsageLedger, "set_prices", out)
        patch.setattr(ledger_keeper, "UsageLedger", out)
        view.nodes.put(a_node(2, "3"))
        keeper.prepare(NOW + 10)
        told = keeper.trouble
        assert told is not None
        view.nodes.drop("n", 3)
        keeper.prepare(NOW + 20)
    keeper.prepare(NOW + 40)
    assert keeper.trouble is None
    keeper.rest()
    ledger = UsageLedger(place)
    changes = [(each.from_ms / 1000, each.rate) for each in ledger.price_changes()["n"]]
    ledger.close()
    assert changes == [(seconds(BORN), 2_500_000), (NOW + 10, 3_000_000), (NOW + 20, None)]


def test_a_database_that_is_slow_to_fail_takes_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tried = [0.0], list[float]()

    def connect(place: str) -> UsageLedger:
        tried.append(clock[0])
        clock[0] += 5.0
        raise ClusterError("it does not answer")

    monkeypatch.setattr(ledger_keeper, "time", SimpleNamespace(monotonic=lambda: clock[0], time=lambda: clock[0]))
    monkeypatch.setattr(ledger_keeper, "UsageLedger", connect)
    keeper = LedgerKeeper(no_nodes(), "postgresql://app@db/x")
    while clock[0] < 200.0:
        keeper.prepare(NOW + clock[0])
        clock[0] += 1.0
    assert len(tried) == 4
    assert all(later - earlier >= 50.0 for earlier, later in pairwise(tried))


def test_limits_are_kept_by_what_was_known_last_while_the_ledger_is_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = no_nodes()
    keeper = LedgerKeeper(view, str(tmp_path / "ledger.db"))
    view.nodes.put(a_node(1, "8"))
    keeper.prepare(NOW)
    dear = training("dear", team="vision", max_cost=10.0, grace_s=0.0, labels={"project": "search"})
    runs = tuple(
        Workload(
            uid=uid, spec=replace(dear, name=uid), intent=Intent.RUN, version=1, created_at=NOW,
            status=status(Phase.RUNNING, since=NOW, started_at=NOW),
        )
        for uid in ("old", "new")
    )  # fmt: skip
    own = node("n", cpu_milli=8000, gpus=0, price_per_hour=8.0)
    old, new = (
        Pod(
            uid=f"{uid}-0-0", workload_uid=uid, attempt=0, index=0, node="n", phase=PodPhase.RUNNING,
            grant=Grant(cpu_milli=4000), created_at=at, started_at=at,
        )
        for uid, at in (("old", NOW), ("new", NOW + 1800))
    )  # fmt: skip
    team = Team(name="vision", budget=Budget(monthly=100))

    def seen(*pods: Pod) -> Snapshot:
        return Snapshot(nodes=(own,), workloads=runs, pods=pods, teams=(team,))

    assert keeper.spending(seen(old), NOW) == Spending(by_run={"old": 0, "new": 0})

    def out(place: str) -> UsageLedger:
        raise ClusterError("it does not answer")

    keeper.rest()
    monkeypatch.setattr(ledger_keeper, "UsageLedger", out)
    keeper.prepare(NOW + 1)
    assert keeper.trouble is not None
    # Half of a node of eight dollars an hour, for the time that each holds it.
    for at, pods, spent in ((1800, (old,), (2, 0)), (3600, (old, new), (4, 2)), (7200, (new,), (4, 6))):
        found = keeper.spending(seen(*pods), NOW + at)
        assert found is not None
        assert found.by_run == {"old": spent[0] * 10**6, "new": spent[1] * 10**6}
        assert found.by_team == {"vision": sum(spent) * 10**6}
        assert found.by_project == {("vision", "search"): sum(spent) * 10**6}
    # It has cost six of its ten dollars, and two hours later it would have cost more than all.
    over = seen(new)
    over = replace(over, spending=keeper.spending(over, NOW + 10_800))
    (stopped,) = (each for each in decide(over, NOW + 10_800).changes if each.workload_uid == "new")
    assert stopped.status is not None
    assert stopped.status.reason.code is Code.OVER_BUDGET
    # Whoever began without it knows nothing, and says so.
    assert LedgerKeeper(view, "elsewhere").spending(seen(new), NOW) is None


def test_a_clock_that_was_ahead_does_not_have_a_node_paid_for_beyond_now(tmp_path: Path) -> None:
    view, place = no_nodes(), str(tmp_path / "ledger.db")
    first = LedgerKeeper(view, place)
    view.nodes.put(a_node(1, "2.5"))
    first.prepare(NOW + 86_400)
    first.rest()
    view.nodes.drop("n", 2)
    second = LedgerKeeper(view, place)
    second.prepare(NOW)
    second.rest()
    ledger = UsageLedger(place)
    assert [each.from_ms / 1000 for each in ledger.price_changes()["n"]] == [seconds(BORN), NOW]
    ledger.close()


class Requests:
    """What was given out, to be done by hand."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, run: str, name: str, job: Callable[[], None]) -> None:
        self.jobs.append(job)


class Kept:
    """An API server that keeps objects, or refuses them."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.at: dict[str, float] = {}

    def apply(self, path: str, content: dict[str, Any]) -> None:
        if self.status is not None:
            raise ApiError("apply", self.status, "", "no")
        self.at[content["metadata"]["name"]] = float(content["data"]["at"])


def published(tmp_path: Path) -> tuple[Callable[[float], int], Kept]:
    """Have costs looked at, and what is given out done; how much that was."""
    view, requests, server = no_nodes(), Requests(), Kept()
    keeper = LedgerKeeper(view, str(tmp_path / "ledger.db"))
    view.nodes.put(a_node(1, "2.5"))
    publisher = CostPublisher(cast("Client", server), keeper, "fairlead")

    def look(now: float) -> int:
        keeper.prepare(now)
        publisher.act(a_turn(requests, now))
        jobs, requests.jobs = requests.jobs, []
        for job in jobs:
            with suppress(ApiError):
                job()
        return len(jobs)

    return look, server


def test_a_pod_is_charged_from_when_its_object_came_however_late_that_was(tmp_path: Path) -> None:
    view = no_nodes()
    view.nodes.put(a_node(1, "2.5"))
    keeper, holder = LedgerKeeper(view, str(tmp_path / "ledger.db")), holder_of("u", training("a"))
    placed = Pod(
        uid="u-0-0", workload_uid="u", attempt=0, index=0, node="n", grant=Grant(),
        phase=PodPhase.CREATED, created_at=NOW,
    )  # fmt: skip
    first = keeper._held(placed, holder, None)
    there = keeper._held(replace(placed, phase=PodPhase.RUNNING, created_at=NOW + 1.2), holder, first)
    # Of one whose object is gone again nobody but the ledger knows it.
    lost = replace(placed, phase=PodPhase.LOST, created_at=NOW + 90.0)
    gone = keeper._held(lost, holder, there)
    assert [each.pod.created_at for each in (first, there, gone) if each is not None] == [NOW, NOW + 1.2, NOW + 1.2]
    # An operator that has just begun knows it from the ledger alone, as one that may have no object yet.
    inherited = keeper._held(lost, holder, first)
    assert inherited is not None
    assert inherited.pod.created_at == NOW


def test_the_last_seconds_of_a_day_are_shown_when_it_is_over(tmp_path: Path) -> None:
    look, server = published(tmp_path)
    look(NOW + 86_400 - 31)
    look(NOW + 86_400 + 29)
    assert server.at["fairlead-costs-2026-11-20"] == NOW + 86_400
    assert server.at["fairlead-costs-2026-11-21"] == NOW + 86_400 + 29


def test_costs_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    look, server = published(tmp_path)
    look(NOW + 86_400 - 31)
    server.status = 500
    look(NOW + 86_400 + 29)
    server.status = None
    look(NOW + 86_400 + 89)
    assert server.at["fairlead-costs-2026-11-20"] == NOW + 86_400
    assert look(NOW + 86_400 + 149) == 1  # today's alone


def test_costs_that_are_too_large_are_given_up(tmp_path: Path) -> None:
    look, server = published(tmp_path)
    look(NOW + 86_400 - 31)
    server.status = 413
    assert look(NOW + 86_400 + 29) == 2
    assert look(NOW + 86_400 + 89) == 1  # today's, which are others now


def a_pod(version: int, name: str, cpu: str, bound: str, owner: str = "") -> dict[str, Any]:
    """A pod of no run; of a Pool's or a run's placeholder with that kind of owner."""
    metadata: dict[str, Any] = {
        "name": name, "namespace": "kube-system", "uid": name, "resourceVersion": str(version),
        "creationTimestamp": BORN,
    }  # fmt: skip
    if owner:
        api = f"{names.DOMAIN}/v1alpha1"
        metadata["ownerReferences"] = [{"apiVersion": api, "kind": owner, "name": "x", "uid": "x", "controller": True}]
        metadata["labels"] = {names.ROOM_FOR: "x", names.INDEX: "0"}
        metadata["name"] = names.placeholder_name_of(names.standby_name("x") if owner == "Pool" else "x", 0)
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}
    spec: dict[str, Any] = {"nodeName": "n", "containers": [container]}
    if owner:
        spec |= {"priorityClassName": names.PLACEHOLDER_CLASS, "terminationGracePeriodSeconds": 0}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "conditions": [scheduled]}}


def test_what_no_run_holds_is_billed_as_what_it_is_for_from_when_it_was_bound(tmp_path: Path) -> None:
    view, place = no_nodes(), str(tmp_path / "ledger.db")
    keeper = LedgerKeeper(view, place)
    view.nodes.put(a_node(1, "8"))
    view.pods.put(a_pod(2, "agent", "2", "2026-11-20T00:00:00Z"))
    view.pods.put(a_pod(3, "ahead", "1", "2026-11-20T01:00:00Z", "Pool"))
    view.pods.put(a_pod(4, "coming", "3", "2026-11-20T02:00:00Z", "Training"))
    run = write_object(Training(name="x", team="kube-system", run="work"))
    about = {"namespace": "kube-system", "uid": "x", "resourceVersion": "5", "creationTimestamp": BORN}
    view.trainings.put({**run, "metadata": {**run["metadata"], **about}})
    keeper.prepare(NOW + 2 * 3600 + 1)
    view.pods.drop("kube-system/x-room-0", 5)
    keeper.prepare(NOW + 4 * 3600)
    keeper.rest()
    # While nobody led one went; it is billed until it was seen last.
    view.pods.drop("kube-system/pool-x-room-0", 6)
    second = LedgerKeeper(view, place)
    second.prepare(NOW + 9 * 3600)
    second.prepare(NOW + 10 * 3600)
    costs = second.costs_of(int(NOW) // 86400, NOW + 10 * 3600)
    second.rest()
    assert costs is not None
    bill = costs.statement
    # The node's cores are 8 less what a run's reporter takes there.
    cores = 8.0 - REPORTER_CPU_MILLI / 1000
    hours = {line.use: line.microusd / 8e6 * cores for line in bill.lines}
    assert hours[Use.SYSTEM] == pytest.approx(2 * 10, rel=1e-4)
    assert hours[Use.KEPT_FREE] == pytest.approx(1 * 3, rel=1e-4)
    assert hours[Use.PLACEHOLDER] == pytest.approx(3 * 2, rel=1e-4)
    assert {line.key for line in bill.lines} == {None}
    assert sum(line.microusd for line in bill.lines) == bill.billed_microusd == 80_000_000


def test_an_operator_of_one_namespace_bills_nothing_of_others(tmp_path: Path) -> None:
    view = no_nodes()
    keeper = LedgerKeeper(view, str(tmp_path / "ledger.db"), namespace="team")
    view.nodes.put(a_node(1, "8"))
    view.pods.put(a_pod(2, "agent", "2", "2026-11-20T00:00:00Z"))
    keeper.prepare(NOW)
    costs = keeper.costs_of(int(NOW) // 86400, NOW + 3600)
    keeper.rest()
    assert costs is not None
    assert {line.use for line in costs.statement.lines} == {Use.IDLE}
