"""Every view in a real Chromium: no error of a script, nothing serious by axe, and keyboard and sign-in work.

What HTML alone cannot tell: contrast, the content security policy as a browser understands it, and the script.
"""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestServer

from fairlead.cluster.ledger_tables import Price
from fairlead.cluster.listing import PagedClient
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.errors import NotAllowed
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep, trial_run
from fairlead.specs.team import Team
from fairlead.specs.training import Training
from fairlead.state.fleets import FleetStage
from fairlead.state.reasons import Code, Reason
from fairlead.state.series import Point
from fairlead.state.snapshot import Phase, PodPhase, Progress, RankExit, Workload
from fairlead.web.addresses import VIEWS
from fairlead.web.server import Page
from fairlead.web.visitors import Authenticator, Identity
from tests.builders import training
from tests.web.test_hostile import HOSTILE
from tests.web.world import NOW, World, of_fleet

PACKAGES = ("playwright==1.65.2",)
AXE = "axe-core@4.14.1"
INSTALL_TIMEOUT_S, VISIT_TIMEOUT_S = 300.0, 300.0


pytestmark = pytest.mark.browser


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Specs hold what no parser lets through, so that the page has nothing but itself to rely on."""
    for kind in (Training, Team):
        monkeypatch.setattr(kind, "__post_init__", lambda spec: None)


def of_every_kind(world: World) -> list[str]:
    """Make a run of every kind in many states, with costs, budgets and measurements; the addresses to look at."""
    world.cluster.set_price(Price(node="localhost", from_ms=0, rate=2_500_000, source="test"))
    world.cluster.home.teams.write_text(
        "kind: Team\nname: vision\nweight: 3\nquota: {cpu: 2}\nbudget: {monthly: 5, when_spent: stop}\n"
        "project_budgets: {search: {monthly: 1}, ads: {monthly: 900}}\n"
    )
    run = world.run("running", Phase.RUNNING, spec=training("running", team="vision", labels={"project": "search"}))
    points = tuple(("loss", Point(at=NOW + step, step=step, value=1 / (step + 1))) for step in range(30))
    progress = Progress(step=29, total_steps=60, loss=0.03, throughput=4.0, throughput_unit="images")
    world.pod(run, output="a line\nanother", points=points, progress=progress)
    world.run("waits", Phase.PENDING)
    why = Reason(code=Code.PROGRAM_FAILED, message="rank 0 failed", remedy="Mend it.", detail=("ValueError: no",))
    failed = world.run("failed", Phase.FAILED, reason=why)
    world.pod(failed, phase=PodPhase.FAILED, exits=(RankExit(rank=0, exit_code=3, at=NOW),))
    kinds = [world.run(spec.name, Phase.RUNNING, spec=spec) for spec in parse(KINDS)]  # type: ignore[arg-type]
    world.fleet(
        of_fleet("away", stage=FleetStage.LEAVING, cluster="cloud", target="home", step=30, rented_since=NOW - 600),
        of_fleet("here", stage=FleetStage.PLACED, cluster="home", child=run.uid, phase=Phase.RUNNING),
        of_fleet("once", stage=FleetStage.ENDED, cluster="home", phase=Phase.SUCCEEDED),
        trouble="no answer in time",
    )
    found, sweep = [run, failed, *kinds], cast("Workload[Sweep]", kinds[0])
    for number, phase in enumerate((Phase.SUCCEEDED, Phase.RUNNING, Phase.FAILED)):
        values = {"lr": 0.1 * (number + 1), "width": 8}
        child = world.run(f"rates-{number}", phase, spec=replace(trial_run(sweep.spec, values), name=f"rates-{number}"))
        world.cluster.store._db.execute("UPDATE workloads SET parent = ? WHERE uid = ?", (sweep.uid, child.uid))
        world.pod(child, progress=Progress(step=3, loss=0.5 + number))
    runs = [f"/runs/{each.uid}" for each in found]
    report = world.simulation("day.csv on shared.yaml", policies=("fifo", "default"), settings=("--declare 2",))
    return [
        *VIEWS,
        *runs,
        f"/simulations/{report}",
        "/?state=Failed",
        "/?kind=Sweep",
        "/cost?by=day",
        "/cost?by=account",
    ]


KINDS = """
kind: Sweep
name: rates
parameters: {lr: 1e-3..1.0, width: 4..64}
objective: loss
trials: 9
parallel: 2
trial: {run: train, workdir: /}
---
kind: Serving
name: talks
run: serve
workdir: /
replicas: 1..3
scale: {concurrency: 4}
---
kind: Pipeline
name: chain
steps:
  first: {run: 'true'}
  second: {run: 'true', needs: [first]}
"""


def test_every_view_is_accessible_and_works_with_the_keyboard(world: World) -> None:
    paths = of_every_kind(world)
    argv = [sys.executable, "-m", "fairlead.cli.main", "ui", "--port", "0", "--json"]
    # Nothing of this was ever started: whoever looked after it would lose the pod and start the run anew.
    with world.cluster.home.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        environ = {**os.environ, "FAIRLEAD_HOME": str(world.cluster.home.path)}
        with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                base = json.loads(server.stdout.readline())["url"].rstrip("/")
                told = visit("keyboard", base, *paths)
            finally:
                server.terminate()
                server.wait(30)
    assert told["grave"] == []
    assert told["errors"] == []
    assert told["opened"].startswith("/runs/")
    assert told["help"] is True


@pytest.mark.usefixtures("unchecked")
def test_whoever_signs_in_with_a_token_sees_hostile_names_as_text_and_leaves_nothing_behind(world: World) -> None:
    token, secret = "abc.def-_~+/==", "secret-run"
    world.run(secret, Phase.RUNNING)
    paths = ["/"]
    for text in HOSTILE.values():
        why = Reason(code=Code.REPORTED, message=text, remedy=text, detail=(text,))
        run = world.run("one", Phase.RUNNING, reason=why, spec=training(text, team=text, labels={"project": text}))
        world.pod(run, output=text, points=((text, Point(at=NOW, step=1, value=1.0)),))
        paths.append(f"/runs/{run.uid}")
    paths += ["/queue", "/teams", "/cluster", "/cost"]

    def name(identity: Identity) -> str:
        if identity.token != token:
            raise NotAllowed("The cluster does not know this token, or not any more.")
        return "ada"

    def open_as(_: Identity) -> PagedClient:
        return LocalCluster.open(world.cluster.home.path)

    def never() -> PagedClient:
        raise AssertionError("nothing is opened for nobody")

    async def serve() -> dict[str, Any]:
        async with TestServer(Page(never, Authenticator(name=name, open_as=open_as)).application()) as server:
            return await asyncio.to_thread(visit, "sign-in", str(server.make_url("/")).rstrip("/"), token, *paths)

    told = asyncio.run(serve())
    assert told["grave"] == []
    assert told["errors"] == []  # no script of a name ran
    assert secret not in told["before"] + told["afterwards"]
    assert "does not know this token" in told["refused"]
    assert told["after"] == "/"
    assert told["seen_by_scripts"] == ""
    assert told["cookies"] == [[True, "Strict"]]


def visit(what: str, base: str, *words: str) -> dict[str, Any]:
    """Have Chromium visit the page; what it found."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium here; Debian's package of that name has it")
    python, axe = _environment()
    argv = [str(python), str(Path(__file__).with_name("visiting.py")), what, chromium, str(axe), base, *words]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=VISIT_TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def _environment() -> tuple[Path, Path]:
    """A Python with Playwright, and axe's script; made at first, kept beside this Python's packages.

    Skips the test when they cannot be made, as without a package index.
    """
    home = Path(sys.prefix) / "browser"
    python, axe = home / "bin" / "python", home / "node_modules" / "axe-core" / "axe.min.js"
    uv, npm = Path(sys.executable).parent / "uv", shutil.which("npm")
    if not (home / "complete").exists():
        if not uv.exists() or npm is None:
            pytest.skip("uv beside this Python and npm are needed to make an environment with Playwright and axe")
        shutil.rmtree(home, ignore_errors=True)
        for argv in (
            [str(uv), "--no-config", "venv", "--python", sys.executable, str(home)],
            [str(uv), "--no-config", "pip", "install", "--python", str(python), *PACKAGES],
            [npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", AXE],
        ):
            ended = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
            if ended.returncode != 0:
                pytest.skip(f"{Path(argv[0]).name}: {(ended.stderr.strip().splitlines() or ['failed'])[-1]}")
        (home / "complete").touch()
    return python, axe
