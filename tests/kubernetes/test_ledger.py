"""The operator charges each pod once for what it held, whoever led when, and tells what it cost."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from fairlead.cli.main import group
from fairlead.cluster.cost_rows import cost_rows
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.client.published_costs import days_before, read_published, remove_days
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.manifests import cost_objects
from fairlead.cluster.kubernetes.manifests.cost_objects import TEAM, DayCosts, render_costs
from fairlead.cluster.kubernetes.operator.ledger import month_costs
from fairlead.cluster.kubernetes.operator.ledger.usage_ledger import UsageLedger
from fairlead.cluster.kubernetes.operator.runs import gpu_telemetry
from fairlead.cluster.kubernetes.system_namespaces import SystemNamespaces
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.cluster.ledger_tables import CostGrouping
from fairlead.errors import NotFound
from fairlead.ledger.bills import PriceChange, cost_of
from fairlead.ledger.comparison import busy_levels
from fairlead.ledger.usage import WHOLE, UsageInterval, Use
from fairlead.policy.placement.node_eligibility import PRICE_LABEL
from fairlead.specs.training import Idle
from fairlead.state.snapshot import Intent, Phase
from fairlead.text.money import MICROUSD
from tests.kubernetes.operating import GPUS, HARMLESS, comes_to, gang, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

DOLLARS = 36.0  # an hour of a node: a cent a second


@pytest.fixture
def place(cluster: WorkloadApi, tmp_path: Path) -> str:
    """Of a ledger; the nodes have a price."""
    for node in cluster.client.items("/api/v1/nodes"):
        name = node["metadata"]["name"]
        cluster.client.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": {PRICE_LABEL: str(DOLLARS)}}})
    return str(tmp_path / "ledger.db")


def intervals(place: str, uid: str) -> list[UsageInterval]:
    ledger = UsageLedger(place)
    try:
        assert ledger.open_pods() == {}
        found = ledger.of_run(uid)
        changes = ledger.price_changes()
        spent = cost_of(found, changes)
        assert spent is not None
        assert abs(spent - ledger.spent_by_run(uid)) <= len(found)
    finally:
        ledger.close()
    return sorted(found, key=lambda each: (each.node, each.start_ms))


@pytest.mark.slow
def test_a_gang_is_charged_for_what_its_pods_held(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, place: str
) -> None:
    cluster.submit(gang(namespace, gpus=GPUS // 4, run="1s"))
    with operating(access, namespace, ledger=place):
        run = comes_to(cluster, "train", Phase.SUCCEEDED)
        # The status follows what is held by one look.
        until(lambda: not held_now(place) and status_of(cluster, namespace).get("cost", {}).get("microusdPerHour") == 0)
        cost = status_of(cluster, namespace)["cost"]
    found = intervals(place, run.uid)
    assert {each.share for each in found} == {WHOLE // 4}
    assert {each.use for each in found} <= {Use.STARTING, Use.PRODUCTIVE}
    assert {each.holder.team for each in found if each.holder} == {namespace}
    pods = cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
    for pod in pods:
        own = [each for each in found if each.holder]
        assert min(each.start_ms for each in own) <= moment_ms(pod["metadata"]["creationTimestamp"]) + 1000
    assert cost["microusd"] == cost_of(found, {each.node: _changes() for each in found})
    assert cost["goodput"] == pytest.approx(
        sum(length(each) for each in found if each.use is Use.PRODUCTIVE) / sum(map(length, found)), abs=1e-5
    )


def _changes() -> list[PriceChange]:
    return [PriceChange(0, round(DOLLARS * 1_000_000))]


def length(each: UsageInterval) -> int:
    return each.end_ms - each.start_ms


def moment_ms(text: str) -> int:
    return round(seconds(text) * 1000)


def status_of(cluster: WorkloadApi, namespace: str, name: str = "train") -> dict[str, Any]:
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings/{name}"
    return cluster.client.get(path).get("status") or {}


def held_now(place: str) -> set[str]:
    ledger = UsageLedger(place)
    try:
        return set(ledger.open_pods())
    finally:
        ledger.close()


@pytest.mark.slow
def test_a_pod_that_disappears_while_no_operator_runs_is_charged_up_to_when_it_was_seen(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, place: str
) -> None:
    cluster.submit(gang(namespace, nodes=2, gpus=GPUS))  # each pod has a node to itself
    with operating(access, namespace, ledger=place):
        run = comes_to(cluster, "train", Phase.RUNNING)
        until(lambda: len(held_now(place)) == 2)
        (node,) = (pod["spec"]["nodeName"] for pod in pods_of(cluster, namespace) if pod["metadata"]["name"] == GONE)
    stopped_ms = round(time.time() * 1000)
    cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/{GONE}", {"gracePeriodSeconds": 0})
    time.sleep(3.0)  # what nobody saw is not charged
    begun_ms = round(time.time() * 1000)
    with operating(access, namespace, ledger=place):
        comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        cluster.set_intent(run.uid, Intent.STOP)
        comes_to(cluster, "train", Phase.STOPPED)
        until(lambda: not held_now(place))
    found = intervals(place, run.uid)
    first = [each for each in found if each.node == node and each.start_ms < stopped_ms]
    assert first
    assert max(each.end_ms for each in first) <= stopped_ms
    # The other one was there all the time, and its rank goes on until the operator is back and stops it.
    others = [each for each in found if each.node != node and each.start_ms < stopped_ms]
    assert max(each.end_ms for each in others) >= begun_ms
    assert {each.use for each in first} <= {Use.STARTING, Use.REDONE}


GONE = "train-0-1"


def pods_of(cluster: WorkloadApi, namespace: str) -> list[dict[str, Any]]:
    return list(cluster.client.items(f"/api/v1/namespaces/{namespace}/pods"))


@pytest.mark.slow
def test_leaders_that_change_charge_each_pod_once(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, place: str
) -> None:
    for number in range(3):
        cluster.submit(gang(namespace, f"r{number}", nodes=2, gpus=1, run="2s"))
    uids = {f"r{number}": cluster.named(f"r{number}", namespace).uid for number in range(3)}
    for _ in range(4):
        with operating(access, namespace, ledger=place):
            time.sleep(1.0)  # any moment will do
    with operating(access, namespace, ledger=place):
        for name in uids:
            comes_to(cluster, name, Phase.SUCCEEDED)
        until(lambda: not held_now(place))
    for uid in uids.values():
        spans: dict[tuple[str, int], int] = {}
        for each in intervals(place, uid):
            key = each.node, each.start_ms
            spans[key] = spans.get(key, 0) + 1
        ledger = UsageLedger(place)
        charged = ledger.closed_pods()[uid]
        ledger.close()
        assert len(charged) == 2
        # Two pods: each has as many intervals as it had uses, and none twice.
        assert sum(spans.values()) <= 2 * 2


def test_a_run_is_ended_before_it_costs_more_than_it_may(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, place: str
) -> None:
    cluster.submit(replace(gang(namespace, nodes=1, gpus=GPUS), max_cost=0.05, grace_s=1.0))
    with operating(access, namespace, ledger=place):
        run = comes_to(cluster, "train", Phase.FAILED)
    assert "max_cost" in run.status.reason.message
    assert intervals(place, run.uid)


def test_costs_are_read_with_the_rights_of_the_person(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, place: str
) -> None:
    cluster.submit(gang(namespace, nodes=1, gpus=GPUS // 2, run="1s"))
    with operating(access, namespace, ledger=place, costs_s=0.5):
        run = comes_to(cluster, "train", Phase.SUCCEEDED)
        until(lambda: not held_now(place))
        spent = cost_of(intervals(place, run.uid), {each.node: _changes() for each in intervals(place, run.uid)})
        now = time.time()

        def told() -> dict[str | None, int]:
            # Those of the team are the only ones here: the operator's namespace is another one's.
            person = UserClient(Client(access), namespace=namespace, is_told=True)
            try:
                found = person.costs(CostGrouping.RUN, since=now, until=now)
            except NotFound:
                return {}
            return {row["uid"]: row["microusd"] for row in cost_rows(found, CostGrouping.RUN)}

        until(lambda: told().get(run.uid) == spent, told)
    person = UserClient(Client(access), namespace=namespace, is_told=True)
    assert person.cost_of(cluster.named("train", namespace)) == spent
    whole = read_published(
        Client(access), namespace=namespace, system=namespace, first_day=int(now // 86400),
        last_day=int(now // 86400), only_team=False,
    )  # fmt: skip
    bill = whole.statement(CostGrouping.RUN)
    assert {line.key for line in bill.lines} == {("train", run.uid), None}
    # All nodes are billed from their beginning, whoever held them.
    assert bill.billed_microusd == sum(line.microusd for line in bill.lines)
    assert set(bill.billed) >= {"a-gpu-0", "a-gpu-1"}


@pytest.mark.slow
def test_ways_to_pay_are_compared_for_the_load_that_the_operator_recorded(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig(namespace=namespace)))

    def compared(*arguments: str) -> Result:
        given = ["cost", "compare", "--on-demand", "2", "--reserved", "1", *arguments]
        return CliRunner().invoke(group, given, catch_exceptions=True)

    def load() -> dict[str, Any]:
        # Those of the team are the only ones here: the operator's namespace is another one's.
        told = compared("-n", namespace, "--json")
        return json.loads(told.stdout) if told.exit_code == 0 else {}

    # Both pods of the first are on nodes of their own, and the second is beside one of them.
    cluster.submit(gang(namespace, "wide", nodes=2, gpus=GPUS // 2 + 1, run="3s"))
    cluster.submit(gang(namespace, "beside", nodes=1, gpus=1, run="1s"))
    with operating(access, namespace, ledger=place, costs_s=0.5):
        uids = [comes_to(cluster, name, Phase.SUCCEEDED).uid for name in ("wide", "beside")]
        until(lambda: not held_now(place))
        spans = [(each.node, each.start_ms, each.end_ms) for uid in uids for each in intervals(place, uid)]
        expected = busy_levels(spans)
        until(lambda: load().get("busy_s") == [each / 1000 for each in expected], load)
    assert len(expected) == 2
    told = load()
    assert told["load"].startswith(f"namespace {namespace} on ")
    assert told["microusd_alone"]["on-demand"] == pytest.approx(sum(expected) * 2_000_000 / 3_600_000, abs=2)
    assert expected[0] / 1000 <= told["length_s"] <= 2 * 86_400  # the whole day so far
    refused = compared("-n", namespace, "--pool", "nothing")
    assert refused.exit_code == 2
    assert "They held nodes of: " in refused.stderr


def test_metrics_have_what_a_run_and_its_team_cost(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(month_costs, "TODAY_S", 0.0)
    cluster.submit(gang(namespace, nodes=1, gpus=GPUS // 2, run="3s"))
    with operating(access, namespace, ledger=place) as operator:

        def told(name: str, **labels: str) -> list[float]:
            families = text_string_to_metric_families(operator._metrics())
            samples = [each for family in families for each in family.samples]
            return [each.value for each in samples if each.name == name and labels.items() <= each.labels.items()]

        comes_to(cluster, "train", Phase.RUNNING)
        until(lambda: told("fairlead_run_cost_dollars", run="train", team=namespace), operator._metrics)
        assert 0 < told("fairlead_run_cost_dollars", run="train")[0] < DOLLARS
        assert 0 <= told("fairlead_run_goodput_ratio", run="train")[0] <= 1
        run = comes_to(cluster, "train", Phase.SUCCEEDED)
        until(lambda: not held_now(place))
        spent = cost_of(intervals(place, run.uid), {each.node: _changes() for each in intervals(place, run.uid)})
        assert spent is not None
        of_team = told("fairlead_month_cost_dollars", team=namespace)
        assert sum(of_team) == pytest.approx(spent / MICROUSD, abs=len(of_team) / MICROUSD)
        assert told("fairlead_model_month_cost_dollars", model="train") == [pytest.approx(sum(of_team))]
        assert told("fairlead_month_cost_dollars", team="", use="idle")[0] > 0


def test_days_of_costs_that_are_old_are_removed_and_nothing_else(access: ClusterAccess, namespace: str) -> None:
    client, now = Client(access), 20_000 * 86_400.0 + 100.0
    empty = DayCosts(day=0, at=now, lines=(), pools={})
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for day, kind in (
        (19_000, cost_objects.WHOLE),
        (19_599, cost_objects.WHOLE),
        (19_599, TEAM),
        (19_600, TEAM),
        (20_000, cost_objects.WHOLE),
    ):
        client.create(path, render_costs(replace(empty, day=day), kind, namespace))
    client.create(path, {"metadata": {"name": "fairlead-cost-2001-01-01", "namespace": namespace}})
    found = days_before(client, namespace, now - 400 * 86_400)
    assert found == [
        (namespace, "fairlead-costs-2022-01-08"),
        (namespace, "fairlead-cost-2023-08-30"),
        (namespace, "fairlead-costs-2023-08-30"),
    ]
    assert set(found) <= set(days_before(client, None, now - 400 * 86_400))
    assert remove_days(client, found[:2]) == 2
    assert remove_days(client, found) == 1  # somebody else was there
    left = {each["metadata"]["name"] for each in client.items(path)}
    assert {"fairlead-cost-2023-08-31", "fairlead-costs-2024-10-04", "fairlead-cost-2001-01-01"} <= left
    assert not left & {name for _, name in found}


@pytest.mark.slow
def test_gpus_that_a_gang_leaves_idle_are_told_and_on_its_bill(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"app": "nvidia-dcgm-exporter"}
    container = {"name": "exporter", "image": "exporter", "securityContext": HARMLESS}
    exporters = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "exporter", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]},
            },
        },
    }
    cluster.client.create(f"/apis/apps/v1/namespaces/{namespace}/daemonsets", exporters)
    asked: list[str] = []

    def exposition(url: str) -> str:
        """Every node's exporter answers the same: a quarter busy, for a pod that it remembers from before."""
        asked.append(url)
        labels = 'modelName="NVIDIA A100",namespace="old",pod="gone"'
        lines = (f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",UUID="GPU-{n}",{labels}}} 25' for n in range(GPUS))
        return "\n".join(lines) + "\n"

    monkeypatch.setattr(gpu_telemetry, "_fetch", exposition)
    spec = replace(gang(namespace, run="600s"), idle=Idle(for_s=10.0))
    run = cluster.submit(spec)
    administrators = SystemNamespaces(names=(namespace,))
    with operating(access, namespace, ledger=place, gpus_s=1.0, system=administrators) as operator:
        comes_to(cluster, "train", Phase.RUNNING)
        until(lambda: any(each.type == "Idle" for each in cluster.events(run.uid)), timeout_s=60.0)
        told = next(each for each in cluster.events(run.uid) if each.type == "Idle")
        told_metrics = operator._metrics()
        ledger = UsageLedger(place)
        idle_ms = {uid: sum(ledger.idle_of(uid).values()) for uid in ledger.open_pods()}
        ledger.close()
        cluster.set_intent(run.uid, Intent.STOP)
        comes_to(cluster, "train", Phase.STOPPED)
        until(lambda: not held_now(place))
    assert all(url.startswith("http://") and url.endswith(":9400/metrics") for url in asked)
    assert told.reason.message.startswith("its GPUs were 25% busy in the last 10s")
    assert f"what is idle costs ${2 * DOLLARS * 0.75:.2f} an hour" in told.reason.message
    assert told_metrics.count("fairlead_gpu_utilization_ratio{") == 2 * GPUS
    assert told_metrics.count("fairlead_run_gpu_share{") == 2 * GPUS
    # Ten seconds at a quarter are seven and a half of nothing, or more of what was measured since.
    assert len(idle_ms) == 2
    assert all(each >= 0.7 * 0.75 * 10_000 for each in idle_ms.values())
    # Stopped without a checkpoint its work is lost, and so is what of it was idle.
    assert Use.REDONE in {each.use for each in intervals(place, run.uid)}
