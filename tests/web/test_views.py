"""What each view says, as HTML that needs no script."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairlead.cluster.ledger_tables import Price
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.specs.formats.reading import parse
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.demand import Demand, Second
from fairlead.state.endpoint_detail import ServingDetail
from fairlead.state.fleets import FleetStage
from fairlead.state.reasons import Code, Reason
from fairlead.state.series import Point
from fairlead.state.snapshot import Grant, Phase, PodPhase, Progress, RankExit
from fairlead.web import readers, view
from fairlead.web.addresses import MENU
from fairlead.web.view import Paced
from fairlead.web.views import workload as workload_view
from fairlead.web.views.workload import MOST_STEPS
from tests.builders import training
from tests.web.world import NOW, World, of_fleet


@pytest.mark.parametrize(("address", "title"), [(address, name) for address, name, _ in MENU])
def test_every_view_of_an_empty_directory_says_what_there_would_be(world: World, address: str, title: str) -> None:
    html = world.html(address)
    assert f"<title>{title} - Fairlead</title>" in html
    assert html.count("<h1") == 1
    assert '<main id="main"' in html


def test_a_run_that_waits_says_why_and_one_that_runs_how_far_it_is(world: World) -> None:
    why = Reason(code=Code.WAITING_FOR_RESOURCES, message="needs 1 node with 8 GPU", remedy="Wait for big.")
    world.run("waits", Phase.PENDING, reason=why)
    world.pod(world.run("runs", Phase.RUNNING), progress=Progress(step=30, total_steps=90, loss=0.25))
    text = world.look("/").text
    assert "needs 1 node with 8 GPU" in text
    assert "30/90" in text
    assert re.search(r"Pending\s*1", text)
    assert re.search(r"2 kept in all", text)


@pytest.mark.parametrize("address", ["/", "/runs/{uid}", "/queue"])
def test_a_running_clock_alone_is_no_change(world: World, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    now = [NOW]
    monkeypatch.setattr(readers, "time", SimpleNamespace(time=lambda: now[0]))
    run = world.run("works", Phase.RUNNING)
    world.pod(run)
    world.run("waits", Phase.PENDING)

    def digest() -> str:
        return world.readers.threads.submit(world.readers.look, address.format(uid=run.uid)).result()[1].digest

    before = digest()
    now[0] += 5.0
    assert digest() == before
    world.run("another", Phase.PENDING)
    if address == "/":
        assert digest() != before


def test_runs_are_found_by_name_state_team_and_kind(world: World) -> None:
    world.run("alpha", Phase.SUCCEEDED)
    world.run("beta", Phase.FAILED)
    world.run("gamma", Phase.RUNNING, spec=training("gamma", team="vision"))
    for address, found in {
        "/?q=ALPH": {"alpha"},
        "/?state=Failed": {"beta"},
        "/?team=vision": {"gamma"},
        "/?kind=Sweep": set(),
        "/?q=a&state=Succeeded": {"alpha"},
        "/?q=nothing": set(),
    }.items():
        text = world.look(address).text
        assert {name for name in ("alpha", "beta", "gamma") if f"the test made {name}" in text} == found, address


def test_pages_of_runs_hold_each_run_once(world: World) -> None:
    names = {f"run-{number}" for number in range(120)}
    for number, name in enumerate(sorted(names)):
        world.run(name, Phase.SUCCEEDED, at=NOW - 5000 - number // 7)  # several of one moment
    address: str | None = "/?state=Succeeded"
    found: list[str] = []
    pages = 0
    while address is not None:
        seen = world.look(address)
        found += re.findall(r"the test made (run-\d+) ", seen.text)
        address = next((link for link in seen.links if "part=over" in link), None)
        pages += 1
    assert pages == 6
    assert len(found) == len(names)
    assert set(found) == names


def test_children_are_left_out_of_the_runs_until_they_are_asked_for(world: World) -> None:
    parent = world.run("parent", Phase.RUNNING)
    child = world.run("parent-0", Phase.RUNNING)
    world.cluster.store._db.execute("UPDATE workloads SET parent = ? WHERE uid = ?", (parent.uid, child.uid))
    assert "parent-0" not in world.look("/").text
    assert "parent-0" in world.look("/?all=1").text
    assert f"/runs/{parent.uid}" in world.look(f"/runs/{child.uid}").links


def test_a_run_shows_its_curves_pods_output_events_and_spec(world: World) -> None:
    run = world.run("whole", Phase.RUNNING, spec=training("whole", labels={"model": "gpt"}))
    points = tuple(("loss", Point(at=NOW + step, step=step, value=1 / (step + 1))) for step in range(50))
    world.pod(run, output="first line\nneedle here\nlast line", points=points, progress=Progress(step=49, loss=0.02))
    html, seen = world.html(f"/runs/{run.uid}"), world.look(f"/runs/{run.uid}")
    for told in ("first line", "last line", "the test made whole Running", "model", "gpt", "name: whole", "localhost"):
        assert told in seen.text, told
    assert 'class="curve" d="M' in html
    assert "loss: 1 at first, 0.02 now, from 0.02 to 1" in seen.text


def test_output_is_searched_as_text(world: World) -> None:
    run = world.run("talks", Phase.RUNNING)
    world.pod(run, output="k.m\nkxm\nKUM [x]\n[X]")
    assert "kxm" not in world.look(f"/runs/{run.uid}?find=k.m").text
    found = world.look(f"/runs/{run.uid}?find=[x]").text
    assert "KUM [x]" in found
    assert "[X]" in found
    assert "No line is like that." in world.look(f"/runs/{run.uid}?find=zzz").text


def test_only_the_last_lines_of_long_output_are_shown(world: World) -> None:
    run = world.run("talks", Phase.RUNNING)
    world.pod(run, output="\n".join(f"line {number}." for number in range(1000)))
    text = world.look(f"/runs/{run.uid}").text
    assert "line 799." not in text
    assert all(f"line {number}." in text for number in range(800, 1000))
    assert "The last 200 lines" in text


@pytest.mark.parametrize("read", ["logs", "children"])
def test_what_takes_long_to_read_is_not_read_at_each_look(
    world: World, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    sweep = '{"kind": "Sweep", "name": "search", "parameters": {"lr": "0.1 | 0.2"}, "trials": 2, "trial": {"run": "x"}}'
    (spec,) = parse(sweep, source="test", default_name="search")
    run = world.run("one", Phase.RUNNING, spec=spec if read == "children" else None)  # type: ignore[arg-type]
    clock, times, as_it_is = [0.0], list[float](), getattr(LocalCluster, read)

    def slowly(self: LocalCluster, *args: object) -> object:
        clock[0] += 2.0
        times.append(clock[0])
        return as_it_is(self, *args)

    monkeypatch.setattr(LocalCluster, read, slowly)
    monkeypatch.setattr(view, "monotonic", lambda: clock[0])
    for _ in range(9):
        world.look(f"/runs/{run.uid}?find=zzz")
        clock[0] += 1.0
    assert 1 <= len(times) <= readers.NUM_THREADS  # each keeps its own


def test_a_failed_rank_and_the_end_of_its_traceback_are_shown(world: World) -> None:
    why = Reason(code=Code.PROGRAM_FAILED, message="rank 0 failed", remedy="Mend it.", detail=("ValueError: no data",))
    run = world.run("broken", Phase.FAILED, reason=why)
    world.pod(run, phase=PodPhase.FAILED, exits=(RankExit(rank=0, exit_code=3, at=NOW),))
    text = world.look(f"/runs/{run.uid}").text
    for told in ("rank 0 failed", "Mend it.", "ValueError: no data", "rank 0: exit code 3"):
        assert told in text


def test_a_sweep_shows_its_trials_and_its_children(world: World) -> None:
    document = {
        "kind": "Sweep", "name": "search", "parameters": {"lr": "0.1 | 0.2"},
        "objective": {"metric": "loss", "goal": "minimize"}, "trials": 2, "trial": {"run": "work"},
    }  # fmt: skip
    (spec,) = parse(json.dumps(document), source="test", default_name="search")
    sweep = world.run("search", Phase.RUNNING, spec=spec)  # type: ignore[arg-type]
    child = world.run("search-0", Phase.SUCCEEDED)
    world.cluster.store._db.execute("UPDATE workloads SET parent = ? WHERE uid = ?", (sweep.uid, child.uid))
    seen = world.look(f"/runs/{sweep.uid}")
    assert "Trials" in seen.text
    assert f"/runs/{child.uid}" in seen.links


def test_an_endpoint_shows_where_it_is_and_who_serves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (spec,) = parse('{"kind": "Serving", "name": "talks", "run": "serve"}', source="test", default_name="talks")
    detail = ServingDetail(serving=7, ready=2, wanted=3)
    run = world.run("talks", Phase.RUNNING, spec=spec, detail=detail)  # type: ignore[arg-type]
    address = f"/runs/{run.uid}"
    assert "2 of 3 ready" in world.look(address).text
    seconds = tuple(Second(at=int(NOW) + number, arrivals=4, in_flight=1) for number in range(-5, 60))
    asked = Demand(since=NOW, in_flight=11, seconds=seconds)
    monkeypatch.setattr(LocalCluster, "_demand", lambda self, seen: {run.uid: asked})
    monkeypatch.setattr(LocalCluster, "endpoint_url", lambda self, run: f"http://127.0.0.1:9/{run.spec.name}/")
    monkeypatch.setattr(Paced, "value", lambda self, key, find: find())
    monkeypatch.setattr(readers, "time", SimpleNamespace(time=lambda: NOW + 20))
    text = world.look(address).text
    for told in ("http://127.0.0.1:9/talks/", "r7", "2 of 3 ready", "4/s, 11 in flight"):
        assert told in text, told


def test_the_cluster_shows_who_holds_which_part(world: World) -> None:
    run = world.run("holder", Phase.RUNNING)
    world.pod(run, grant=Grant(cpu_milli=500, memory_bytes=2**30))
    seen = world.look("/cluster")
    assert f"/runs/{run.uid}" in seen.links
    assert "0.5 CPU" in seen.text
    assert "1 GiB of" in seen.text


def test_teams_show_what_they_may_hold_and_have_spent(world: World) -> None:
    world.cluster.home.teams.write_text(
        "kind: Team\nname: vision\nweight: 3\nbudget: {monthly: 50}\nquota: {cpu: 2}\n"
        "project_budgets: {search: {monthly: 7}}\n"
    )
    text = world.look("/teams").text
    for told in ("vision", "3", "2 CPU", "$50.00", "search", "$7.00"):
        assert told in text


def test_a_fleet_shows_its_clusters_where_runs_are_and_what_moved_and_why(world: World) -> None:
    copy = world.run("here", Phase.RUNNING)
    gang, since = (
        training("away", workdir=None, nodes=2, resources=Resources(gpu=GpuRequest(milli=8000))),
        time.time() - 3600,
    )
    world.fleet(
        of_fleet("away", spec=gang, stage=FleetStage.LEAVING, cluster="cloud", target="home", rented_since=since),
        of_fleet("here", stage=FleetStage.PLACED, cluster="home", child=copy.uid),
        trouble="no answer in time",
    )
    seen = world.look("/fleets")
    assert f"/runs/{copy.uid}" in seen.links
    assert "Nobody carries it out" in seen.text
    said = re.sub(r"<[^>]*>", " ", world.html("/fleets"))
    assert re.search(r"cloud\s+gpu-cloud\s+\$2.5 a GPU hour\s+1\s+16 of 64", said)
    assert re.search(r"Out of reach since .*: no answer in time", seen.text)
    assert "Leaving: home has room for it" in seen.text
    # Sixteen GPUs for an hour, or a few seconds more.
    assert re.search(r"rent so far \$40\.", seen.text)
    (world.cluster.home.path / "fleets" / "research" / "fleet.db").write_text("no database")
    assert "cannot be opened" in world.look("/fleets").text


def test_costs_are_the_rows_of_the_command(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.cluster.cost_rows import cost_rows
    from fairlead.cluster.ledger_tables import CostGrouping
    from fairlead.text.money import describe_microusd

    world.cluster.set_price(Price(node="localhost", from_ms=0, rate=3_600_000_000, source="test"))
    world.cluster.store.settle_shares(world.cluster.share_of)
    world.run("first", Phase.SUCCEEDED, at=NOW - 8 * 86400)  # nothing is billed before the first run
    for by in CostGrouping:
        text = world.look(f"/cost?by={by.value}&since=7d").text
        # Rows of runs that are over do not move while the test looks.
        found = cost_rows(world.cluster.costs(by, since=NOW - 7 * 86400, until=NOW), by)
        assert sum(row["microusd"] for row in found) == 7 * 86400 * 1_000_000
        assert "(no run)" in text or by in (CostGrouping.POOL, CostGrouping.DAY)
        assert describe_microusd(604_800_000_000)[:4] in text


def test_without_a_price_the_page_says_how_to_set_one(world: World) -> None:
    assert "fairlead prices set localhost" in world.look("/cost").text


@pytest.mark.parametrize(
    ("address", "status", "says"),
    [
        ("/nothing", 404, "no such page"),
        ("/runs/0000", 404, "no run"),
        ("/runs/../../etc/passwd", 404, "no such page"),
        ("/?state=Bogus", 400, "Give one of: any, Pending"),
        ("/?kind=Bogus", 400, "Give one of: any, Training"),
        ("/?after=x", 400, "not a place in the list"),
        ("/?part=x", 400, "unfinished, over"),
        ("/cost?by=x", 400, "Give one of: run"),
        ("/cost?since=x", 400, "not a point in time"),
        ("/cost?since=2999-01-01", 400, "still to come"),
        ("/cost?since=@nan", 400, "not a point in time"),
        ("/cost?since=@-inf", 400, "not a point in time"),
        ("/cost?since=@-1e13", 400, "not a point in time"),
        ("/?q=" + "x" * 3000, 400, "characters"),
        ("http://elsewhere/", 400, "another page"),
        ("/?" + "a=b&" * 50, 400, "cannot be read"),
    ],
)
def test_what_is_not_there_or_not_understood_is_said(world: World, address: str, status: int, says: str) -> None:
    assert says in world.look(address, status).text


def test_a_rank_that_is_none_is_refused(world: World) -> None:
    run = world.run("one")
    assert "not a rank" in world.look(f"/runs/{run.uid}?rank=x", 400).text


def test_a_database_that_cannot_be_read_is_said(world: World) -> None:
    (Path(world.cluster.home.database)).write_bytes(b"no database" * 1000)
    for suffix in ("-wal", "-shm"):
        Path(f"{world.cluster.home.database}{suffix}").unlink(missing_ok=True)
    assert "database" in world.look("/", 503).text


def test_of_more_steps_than_a_page_can_show_the_first_are_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any program of a pipeline may print lines about a hundred thousand of them."""
    rows = [{"name": f"work[{n}]", "phase": "Running", "took_s": None, "message": ""} for n in range(MOST_STEPS + 500)]
    monkeypatch.setattr(workload_view, "_steps", lambda *_: rows)
    html = world.html(f"/runs/{world.run('flow', Phase.RUNNING).uid}")
    assert html.count("work[") == MOST_STEPS
    assert "The first 1,000 of 1,500." in html
