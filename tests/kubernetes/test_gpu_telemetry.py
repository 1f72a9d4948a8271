"""GPUs of runs by DCGM's exporters, played by a server with their text: whose they are, how idle, and on whose bill."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.dcgm import devices_of, samples
from fairlead.cluster.kubernetes.operator.runs.gpu_telemetry import GpuTelemetry
from fairlead.cluster.kubernetes.system_namespaces import DEFAULT, SystemNamespaces
from fairlead.cluster.kubernetes.workloads.pod_reports import read_report
from fairlead.control.metrics.operator import operator_metrics
from fairlead.control.pass_counts import PassCounts
from fairlead.policy.decide import decide
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Workload
from tests.builders import node, status, training
from tests.kubernetes.turns import a_turn

NOW = 1_000_000_000.0
LABELS = 'device="nvidia{n}",modelName="NVIDIA A100-SXM4-80GB",Hostname="{node}",DCGM_FI_DRIVER_VERSION="550.54.15"'


def exposition(node_name: str, *busy: int) -> str:
    """As the exporter says it; the pods it names are those of yesterday, which are not to be believed."""
    lines = []
    for name, kind, values in (
        ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", busy),
        ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", [40_960] * len(busy)),
        ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", [300.5] * len(busy)),
        ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", [61] * len(busy)),
    ):
        lines += [f"# HELP {name} {kind}", f"# TYPE {name} gauge"]
        for n, value in enumerate(values):
            labels = LABELS.format(n=n, node=node_name)
            where = 'container="ranks",namespace="old",pod="gone-0-0"'
            lines.append(f'{name}{{gpu="{n}",UUID="GPU-{node_name}-{n}",{labels},{where}}} {value}')
    return "\n".join(lines) + "\n"


def an_exporter(on: str, *, address: str = "", namespace: str = "gpu-operator", owner: str = "d") -> dict[str, Any]:
    """An exporter's pod on a node, of the DaemonSet `d` of `gpu-operator` if nothing else is said."""
    owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "dcgm", "uid": owner, "controller": True}]
    return {
        "metadata": {"name": f"dcgm-{on}", "namespace": namespace, "ownerReferences": owners if owner else []},
        "spec": {"nodeName": on},
        "status": {"phase": "Running", "podIP": address or on},
    }


class Exporters:
    """A server that plays the exporters of all nodes, and an API server that lists their pods."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.said: dict[str, str] = {}
        self.num_lists = 0
        self.foreign: list[dict[str, Any]] = []

    def items(self, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        self.num_lists += 1
        assert path == "/api/v1/pods"
        if "app in" not in query["labelSelector"]:
            return
        for name in self.said:
            yield an_exporter(name)
        yield from self.foreign

    def fetch(self, url: str) -> str:
        """Instead of the pods' own addresses, which nothing listens at here."""
        assert url.endswith(":9400/metrics")
        return _read(f"{self.url}/{url.removeprefix('http://').partition(':')[0]}")


def _read(url: str) -> str:
    from fairlead.cluster.kubernetes.operator.runs import gpu_telemetry

    return gpu_telemetry._fetch(url)


@pytest.fixture
def exporters() -> Iterator[Exporters]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = found.said.get(self.path.removeprefix("/"))
            data = b"" if text is None else text.encode()
            self.send_response(503 if text is None else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Exporters(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join(10)


def pod(run: str, index: int, where: str, gpus: int) -> Pod:
    uuids = tuple(f"nvidia.com/gpu#{number}" for number in range(gpus))
    return Pod(
        uid=f"{run}-0-{index}", workload_uid=run, attempt=0, index=index, node=where,
        grant=Grant(gpu_uuids=uuids, gpu_milli=1000), phase=PodPhase.RUNNING, created_at=NOW - 100.0,
        started_at=NOW - 90.0, active_at=NOW,
    )  # fmt: skip


def run(name: str, gpus: int, nodes: int = 1) -> Workload:
    spec = training(name, nodes=nodes, resources=Resources(gpu=GpuRequest(milli=1000 * gpus)))
    began = status(Phase.RUNNING, since=NOW - 90.0)
    return Workload(uid=name, spec=spec, intent=Intent.RUN, version=1, created_at=NOW - 100.0, status=began)


def world(*parts: tuple[Workload, Pod]) -> Snapshot:
    runs = {each.uid: each for each, _ in parts}
    nodes = tuple(node(name, gpus=4, price_per_hour=4.0) for name in ("a", "b"))
    return Snapshot(nodes=nodes, workloads=tuple(runs.values()), pods=tuple(pod for _, pod in parts))


class Loop:
    """The operator's loop as far as it concerns GPUs: what it gives out is done at once."""

    def __init__(self, exporters: Exporters) -> None:
        self.charged: list[tuple[str, int, int, float]] = []
        self.looked_at: list[str] = []
        ledger: Any = SimpleNamespace(add_idle=lambda measured, now: self.charged.extend(measured))
        daemons = [SimpleNamespace(key=f"{place}/dcgm", uid=place[0]) for place in ("dcgm-exporter", "team", "own")]
        daemons.append(SimpleNamespace(key="gpu-operator/dcgm", uid="d"))
        view: Any = SimpleNamespace(
            client=exporters, look_again=self.looked_at.append, daemons=SimpleNamespace(all=lambda: daemons),
            teams=SimpleNamespace(all=lambda: [SimpleNamespace(name="team")]),
        )  # fmt: skip
        self.agent: Any = SimpleNamespace(submit=lambda run, name, job: job())
        system = SystemNamespaces(names=(*DEFAULT, "team"))
        self.telemetry = GpuTelemetry(view, ledger, system=system, fetch=exporters.fetch)
        self.now = NOW

    def turn(self, seen: Snapshot, times: int = 1, every_s: float = 30.0) -> None:
        for _ in range(times):
            self.now += every_s
            self.telemetry.act(a_turn(self.agent, self.now, seen))
            self.telemetry.act(a_turn(self.agent, self.now + 0.1, seen))


def test_the_lines_of_an_exporter_are_devices_with_their_values() -> None:
    (found,) = devices_of(samples(exposition("a", 87))).values()
    assert (found.name, found.model, found.busy) == ("GPU-a-0", "A100-SXM4-80GB", 0.87)
    assert (found.memory_bytes, found.power_watts, found.temperature_celsius) == (40_960 * 2**20, 300.5, 61.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999"])
def test_a_value_that_an_exporter_does_not_know_is_missing_and_hides_no_other(value: str) -> None:
    text = exposition("a", 87).replace(" 40960", f" {value}")
    assert f" {value}" in text
    (found,) = devices_of(samples(text)).values()
    assert (found.memory_bytes, found.busy) == (None, 0.87)


@pytest.mark.parametrize(
    "foreign",
    [
        an_exporter("a", address="x", namespace="own", owner="o"),
        an_exporter("a", address="x", namespace="team", owner="t"),
        an_exporter("a", address="x", owner=""),
        an_exporter("a", address="x", owner="somebody's"),
        an_exporter("a", address="x", namespace="kube-system"),
    ],
    ids=["no system namespace", "a team's", "no owner", "no such DaemonSet", "a DaemonSet of another namespace"],
)
def test_a_pod_that_is_only_labelled_as_an_exporter_is_not_asked(exporters: Exporters, foreign: dict[str, Any]) -> None:
    exporters.said = {"a": exposition("a", 20)}
    exporters.foreign = [foreign]
    asked: list[str] = []
    loop, alone = Loop(exporters), run("alone", 1)
    fetch = loop.telemetry._fetch
    loop.telemetry._fetch = lambda url: asked.append(url) or fetch(url)  # type: ignore[func-returns-value]
    loop.turn(world((alone, pod("alone", 0, "a", 1))))
    assert asked == ["http://a:9400/metrics"]


def test_a_run_with_all_gpus_of_its_nodes_is_measured_whatever_labels_say(exporters: Exporters) -> None:
    exporters.said = {"a": exposition("a", 20, 20, 20, 20), "b": exposition("b", 40, 40, 40, 40)}
    loop, gang = Loop(exporters), run("gang", 4, nodes=2)
    seen = world((gang, pod("gang", 0, "a", 4)), (gang, pod("gang", 1, "b", 4)))
    loop.turn(seen, times=20)
    assert loop.telemetry.idle_of(gang) is None, "fifteen minutes have not passed"
    loop.turn(seen, times=15)
    found = loop.telemetry.idle_of(gang)
    assert found is not None
    assert found.busy == 0.3
    assert loop.looked_at == ["gang"]
    assert {(uid, busy) for uid, _, _, busy in loop.charged} == {("gang-0-0", 0.2), ("gang-0-1", 0.4)}
    of_first = [(start, end) for uid, start, end, _ in loop.charged if uid == "gang-0-0"]
    assert all(end - start == 30_000 for start, end in of_first)
    assert all(before[1] == after[0] for before, after in pairwise(of_first))
    (change,) = decide(replace(seen, workloads=(replace(gang, idle=found),)), loop.now).changes
    assert change.event is not None
    assert "its GPUs were 30% busy in the last 15m" in change.event.reason.message
    assert "what is idle costs $5.60 an hour" in change.event.reason.message


def test_runs_that_share_a_node_are_told_apart_by_what_their_pods_saw(exporters: Exporters) -> None:
    exporters.said = {"a": exposition("a", 90, 10, 50, 50)}
    loop, fast, slow = Loop(exporters), run("fast", 1), run("slow", 1)
    seen = world((fast, pod("fast", 0, "a", 1)), (slow, pod("slow", 0, "a", 1)))
    loop.turn(seen, times=2)
    assert loop.charged == [], "nobody knows which of the four each has"
    for uid, gpu in (("fast", "GPU-a-0"), ("slow", "GPU-a-1")):
        given = read_report(f'{{"form":1,"gpus":["{gpu}"]}}')
        assert given is not None
        loop.telemetry.note(object_of(uid), given.gpus)
    loop.turn(seen)
    assert [(uid, busy) for uid, _, _, busy in loop.charged] == [("fast-0-0", 0.9), ("slow-0-0", 0.1)]
    counts = PassCounts()
    counts.seen = seen
    told = operator_metrics(counts, is_leader=True, gpus=loop.telemetry.held)
    assert 'fairlead_run_gpu_share{gpu="GPU-a-0",node="a",run="fast",team="default"} 1.0' in told
    assert 'fairlead_gpu_utilization_ratio{gpu="GPU-a-1",node="a"} 0.1' in told
    assert 'fairlead_gpu_power_watts{gpu="GPU-a-1",node="a"} 300.5' in told
    assert "GPU-a-2" not in told


def object_of(uid: str) -> PodObject:
    return PodObject(
        key=f"t/{uid}",
        version=1,
        uid=uid,
        phase="Running",
        node="a",
        requests=ResourceAmounts(),
        created_at=NOW,
        run_uid=uid,
    )


def test_an_exporter_that_does_not_answer_leaves_time_that_is_not_measured(exporters: Exporters) -> None:
    exporters.said = {"a": exposition("a", 0, 0, 0, 0)}
    loop, alone = Loop(exporters), run("alone", 4)
    seen = world((alone, pod("alone", 0, "a", 4)))
    loop.turn(seen, times=2)
    assert len(loop.charged) == 1
    exporters.said["a"] = "no metrics at all {"
    loop.turn(seen, times=10)
    assert len(loop.charged) == 1
    exporters.said["a"] = exposition("a", 0, 0, 0, 0)
    loop.turn(seen, times=20)
    assert loop.telemetry.idle_of(alone) is None


def test_without_exporters_they_are_looked_for_now_and_then(exporters: Exporters) -> None:
    loop, alone = Loop(exporters), run("alone", 4)
    seen = world((alone, pod("alone", 0, "a", 4)))
    loop.turn(seen, times=20)
    assert exporters.num_lists <= 2 * 4
    assert loop.telemetry.held == ()


def test_nobody_is_asked_while_no_run_holds_a_gpu(exporters: Exporters) -> None:
    exporters.said = {"a": exposition("a", 0, 0, 0, 0)}
    loop = Loop(exporters)
    loop.turn(Snapshot(nodes=(node("a", gpus=4),), workloads=(), pods=()), times=10)
    assert exporters.num_lists == 0


def test_a_request_that_was_dropped_is_made_again(exporters: Exporters) -> None:
    exporters.said = {"a": exposition("a", 0, 0, 0, 0)}
    loop, alone = Loop(exporters), run("alone", 4)
    seen = world((alone, pod("alone", 0, "a", 4)))
    answering, loop.agent = loop.agent, SimpleNamespace(submit=lambda run, name, job: None)
    loop.turn(seen)
    loop.agent = answering
    loop.turn(seen, times=3)
    assert exporters.num_lists == 0, "it may still come"
    loop.turn(seen, times=4)
    assert exporters.num_lists > 0
    assert len(loop.telemetry.held) == 4
