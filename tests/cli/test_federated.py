"""`fairlead plan` tells the time and the cost of a federation before it starts, and what would be faster."""

import json
import os
import shutil
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.specs.federation import SERVER, Federation, Site
from fairlead.state.plan import child_uid
from fairlead.state.series import Point
from tests.cli.conftest import Call

APP = Path(__file__).parents[1] / "frameworks" / "digits_app"
SPEC = """\
kind: Federation
name: digits
app: digits-app
sites:
  north: {expect: {train: 40s, link: 1Mi, price: 1.2}, resources: {cpu: 0.1}}
  south: {expect: {train: 50s, price: 1}, resources: {cpu: 0.1}}
  west: {expect: {train: 400s, price: 1}, resources: {cpu: 0.1}, window: "22:00-06:00"}
resources: {cpu: 0.1}
model_size: 20Mi
rounds: 50
min_sites: 1
"""


@pytest.fixture
def directory(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(APP, desk / "digits-app")
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        (desk / "bin").mkdir(exist_ok=True)
        (desk / "bin" / name).write_text("")
        (desk / "bin" / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{desk / 'bin'}:{os.environ['PATH']}")
    return desk


def test_plan_tells_time_and_cost_of_a_federation_and_better_samples_and_deadlines(call: Call, directory: Path) -> None:
    (directory / "federation.yaml").write_text(f"{SPEC}deadline: 1h\n")
    answer = call("plan", "federation.yaml")
    assert answer.code == 0, answer.err
    assert "digits: 50 rounds take about " in answer.out
    assert ", at least $" in answer.out, "the server has no price"
    (headers, own, best, *_) = answer.out[answer.out.index("SAMPLE") :].splitlines()
    assert headers.split()[:2] == ["SAMPLE", "DEADLINE"]
    assert own.split()[:2] == ["3", "1h"]
    assert best.split()[:2] != ["3", "1h"]


def test_auto_is_what_plan_finds_best_and_run_would_take(call: Call, directory: Path) -> None:
    (directory / "federation.yaml").write_text(SPEC)
    (best, *_) = json.loads(call("plan", "federation.yaml", "--json").out)["other_rounds"]
    (directory / "federation.yaml").write_text(f"{SPEC}sample: auto\ndeadline: auto\n")
    planned = json.loads(call("plan", "federation.yaml", "--json").out)
    assert (planned["rounds"]["sample"], planned["rounds"]["deadline_s"]) == (best["sample"], best["deadline_s"])
    assert planned["chosen"][0].startswith(f"sample: {best['sample']}, deadline: ")


def test_without_expectations_plan_says_what_is_missing_and_auto_is_refused(call: Call, directory: Path) -> None:
    text = SPEC.replace("expect: {train: 50s, price: 1}, ", "")
    (directory / "federation.yaml").write_text(text)
    assert "no estimate: site south has no `expect`" in call("plan", "federation.yaml").out
    (directory / "federation.yaml").write_text(f"{text}sample: auto\n")
    answer = call("plan", "federation.yaml")
    assert answer.code != 0
    assert '"south" has no `expect`; give each site one' in answer.err


def test_status_shows_the_bytes_to_and_from_each_site_in_the_newest_rounds(call: Call) -> None:
    cluster = LocalCluster.open()
    sites = {name: Site() for name in ("north", "south")}
    federation = cluster.submit(Federation(name="digits", app="digits-app", sites=sites))
    figures = {f"{way}.{name}": 2048.0 for way in ("to", "from") for name in sites}
    del figures["from.south"]
    points = {name: tuple(Point(at=1.0, step=step, value=value) for step in (1, 2)) for name, value in figures.items()}
    cluster.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCluster, "series", lambda _, uid: points if uid == child_uid(federation.uid, SERVER) else {})
        shown = call("status", "digits").out
        crossed = json.loads(call("status", "digits", "--json").out)["crossed"]
    (headers, first, second) = shown[shown.index("ROUND") :].splitlines()[:3]
    assert headers.split() == ["ROUND", "NORTH", "SOUTH"]
    assert (first.split()[0], second.split()) == ("1", ["2", "2", "KiB", "/", "2", "KiB", "2", "KiB", "/", "0", "B"])
    assert crossed["2"] == {"north": {"to": 2048, "from": 2048}, "south": {"to": 2048}}
