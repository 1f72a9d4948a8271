"""No panel's query is empty: each is asked of a real Prometheus, of what the exporter printed of a busy cluster."""

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from fairlead.cluster.simulated.faults import LosePod
from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.control.metrics.dashboards import DASHBOARDS, Dashboard, Panel, Query, grafana
from fairlead.control.metrics.exposition import exposition
from fairlead.control.metrics.readings import Readings
from fairlead.specs.serving import Serving
from fairlead.specs.team import Budget, Team
from fairlead.specs.training import Retry
from fairlead.state.endpoint_detail import ServingDetail
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.builders import status
from tests.metrics.conftest import serving
from tests.metrics.served import scrapes
from tests.metrics.world import FOREVER, STEP_S, World, gpus

PANELS = [
    pytest.param(query, id=f"{dashboard.title} / {panel.title} / {number}")
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for number, query in enumerate(panel.queries)
]


def busy_world() -> World:
    """Runs of two teams that come, wait, fail, give way, save badly and end."""

    def change(readings: Readings) -> Readings:
        runs = tuple(
            replace(run, progress=replace(run.progress, loss=1.0 / (1 + (run.progress.step or 0)), saves_failed=0))
            if run.progress is not None
            else run
            for run in readings.seen.workloads
        )
        teams = (Team(name="research", budget=Budget(monthly=1e6)),)
        parents = (endpoint("words", wanted=2, ready=1),)
        return replace(readings, seen=replace(readings.seen, workloads=runs, teams=teams, parents=parents))

    world = World(change=change)
    world.go_on(10)
    world.submit(gpus(4, name="finite", team="vision"), replace(FOREVER, duration_s=4000.0))
    world.submit(gpus(1, name="low", priority=-1))
    world.submit(gpus(1, name="bad", retry=Retry(program=1)), SimulatedProgram(duration_s=60.0, exit_code=1))
    world.go_on(20)
    world.submit(gpus(2, name="high", priority=100), replace(FOREVER, duration_s=900.0))
    world.submit(gpus(4, name="large"))
    world.go_on(40)
    pod = next(pod for pod in world.cluster.snapshot().pods if not pod.phase.is_final)
    world.cluster.inject(LosePod(pod_uid=pod.uid))
    world.go_on(60)
    return world


def endpoint(name: str, wanted: int, ready: int) -> Workload[Serving]:
    spec = Serving(name=name, run="serve", team="research")
    detail = ServingDetail(wanted=wanted, ready=ready)
    state = replace(status(Phase.RUNNING, since=1.0), detail=detail)
    return Workload(uid=name, spec=spec, intent=Intent.RUN, status=state, version=1, created_at=1.0)


def served_rows(scraped: list[tuple[Metric, ...]]) -> dict[str, list[float | None]]:
    """Every series of scrapes in the words of PromQL."""
    found: dict[str, list[float | None]] = {}
    for number, families in enumerate(scraped):
        for sample in (sample for family in families for sample in family.samples):
            told = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            values = found.setdefault(f"{sample.name}{{{told}}}", [None] * len(scraped))
            assert values[number] is None, f"twice: {sample.name}{{{told}}}"
            values[number] = sample.value
    return found


def openmetrics(world: World, began: float, scraped: list[tuple[Metric, ...]]) -> str:
    """What was scraped, with the times of the scrapes, to be filled in as if a Prometheus had been there."""
    lines = []
    first = world.num_samples - len(scraped)
    for series, values in served_rows(scraped).items():
        for number, value in enumerate(values, first):
            if value is not None:
                lines.append(f"{series} {value!r} {began + (number + 1) * STEP_S:.3f}")
    for series, values in world.rows():
        for number, value in enumerate(values):
            if value is not None:
                lines.append(f"{series} {value!r} {began + (number + 1) * STEP_S:.3f}")
    return "\n".join([*lines, "# EOF", ""])


class Asked:
    """A Prometheus that answers for a time that is over."""

    def __init__(self, url: str, begin: float, end: float) -> None:
        self.url, self._begin, self._end = url, begin, end

    def series(self, expr: str) -> list[object]:
        """Lines of a curve over all the time."""
        asked = {"query": expr, "start": self._begin, "end": self._end, "step": STEP_S}
        url = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as got:
            found: list[object] = json.load(got)["data"]["result"]
        return found


@pytest.fixture(scope="module")
def asked(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    place = tmp_path_factory.mktemp("prometheus")
    world = busy_world()
    began = world.now - world.num_samples * STEP_S
    door = tmp_path_factory.mktemp("door")
    (place / "scraped.txt").write_text(openmetrics(world, began, scrapes(door, 3)))
    argv = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", "scraped.txt", "data"]
    subprocess.run(argv, cwd=place, check=True, timeout=120, stdout=subprocess.DEVNULL)
    (place / "prometheus.yml").write_text("global: {}\n")
    with serving(prometheus, place) as url:
        yield Asked(url, began, world.now)


@pytest.mark.parametrize("query", PANELS)
def test_a_panel_is_not_empty(query: Query, asked: Asked) -> None:
    found = asked.series(re.sub(r"\$(team|run|service)", ".*", query.expr))
    assert found
    values = [value for line in found for _, value in line["values"]]  # type: ignore[index]  # as Prometheus answers
    assert any(value not in ("NaN", "+Inf", "-Inf") for value in values)


def test_a_query_of_nothing_is_empty_so_that_the_others_say_something(asked: Asked) -> None:
    assert asked.series("fairlead_there_is_no_such_metric") == []


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_a_dashboard_is_one_that_grafana_takes(dashboard: Dashboard) -> None:
    made = json.loads(json.dumps(grafana(dashboard)))
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in made["panels"]]
    assert len(set(places)) == len({each["id"] for each in made["panels"]}) == len(dashboard.panels)
    known = {each["name"] for each in made["templating"]["list"]}
    text = json.dumps(made)
    assert set(re.findall(r"\$\{?([a-z]+)", text)) <= known
    assert len({panel.title for panel in dashboard.panels}) == len(dashboard.panels)


def test_every_metric_is_in_a_panel_or_there_for_joins() -> None:
    names = set(re.findall(r"^# TYPE (\w+)", exposition(World().readings()).decode(), re.MULTILINE))
    told = {panel for dashboard in DASHBOARDS for panel in dashboard.panels}
    shown = {name for panel in told for name in _metrics(panel)}
    beside = {"info", "gpus_held", "checkpoint_late", "cost_limit_dollars"}
    beside = {f"fairlead_run_{name}" for name in beside}
    assert {name.removesuffix("_total") for name in names} - shown == beside


def _metrics(panel: Panel) -> set[str]:
    found = {name for query in panel.queries for name in re.findall(r"fairlead_\w+", query.expr)}
    return {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in found}
