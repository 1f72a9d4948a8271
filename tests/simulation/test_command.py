"""``fairlead simulate`` as a user calls it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli.main import group
from fairlead.cluster.local.home import Home
from fairlead.control.simulation_reports import read_report, report_names
from fairlead.errors import CannotFit, InvalidSpec

POOL = "kind: Pool\nname: a\nnodes: 2\nhardware: {cpu: 64, memory: 256Gi, gpu: {model: A100, count: 4}}\n"
TRACE = "submit_s,duration_s,team,gpu\n0,3600,vision,4\n0,7200,nlp,A100:4\n60,60,nlp,1\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    trace, cluster = tmp_path / "trace.csv", tmp_path / "cluster.yaml"
    trace.write_text(TRACE)
    cluster.write_text(POOL)
    return trace, cluster


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory for the reports."""
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["simulate", *map(str, arguments)], catch_exceptions=False)


def test_the_table_has_a_line_for_each_team_and_the_whole(files: tuple[Path, Path]) -> None:
    result = call(files[0], "--cluster", files[1])
    assert [line.split() for line in result.stdout.splitlines()[1:4]] == [
        ["nlp", "2", "0", "29m", "30s", "59m", "1h", "30m", "2h", "0", "8.0", "0.0", "100.0%", "-"],
        ["vision", "1", "0", "0s", "0s", "1h", "1h", "0", "4.0", "0.0", "100.0%", "-"],
        ["all", "3", "0", "19m", "40s", "59m", "1h", "20m", "2h", "0", "12.0", "0.0", "100.0%", "-"],
    ]
    assert result.stdout.splitlines()[4:] == ["2h on 2 nodes with 8 GPUs; 75.1% of the GPU time held"]


WORLD = """---
kind: Pool
name: spot
nodes: 2
capacity_type: spot
hardware: {cpu: 64, memory: 256Gi, gpu: {model: A100, count: 4}}
price_per_hour: 4
---
kind: Simulation
name: all
failures: {mtbf: 3h, repair: 10m}
programs: {start_up: 1m, checkpoint_every: 5m, checkpoint: 5s, save: 5s}
---
kind: Simulation
name: cloud
pools: [spot]
reclaims: {every: 1h, notice: 30s}
provisioning: {min_nodes: 0, delay: 2m, delay_p90: 5m, idle: 5m}
"""


def test_what_happens_to_nodes_is_part_of_the_cluster_file(files: tuple[Path, Path]) -> None:
    files[1].write_text(POOL.replace("nodes: 2", "nodes: 1") + "price_per_hour: 10\n" + WORLD)
    said = call(files[0], "--cluster", files[1]).stdout
    assert "pool  type       node hours" in said
    assert "a     on-demand" in said
    assert "% useful" in said
    assert "% start-up" in said
    first, again = (call(files[0], "--cluster", files[1], "--json").stdout_bytes for _ in range(2))
    assert first == again
    assert call(files[0], "--cluster", files[1], "--json", "--seed", 1).stdout_bytes != first
    told = json.loads(first)
    assert told["summary"]["pools"]["spot"]["price_per_gpu_hour"] == 1
    assert {*told["over_time"]} == {"gpus_up", "gpus_held", "runs_waiting"}
    assert told["summary"]["teams"]["nlp"]["cost"] > 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\npools: [b]\nfailures: {mtbf: 1d}", "pools: no Pool of the file is called b; it has a"),
        ("name: x\npools: [a]\nreclaims: {every: 1d}", "reclaims: only spot nodes are taken away, and a is none"),
        ("name: x\nprovisioning: {min_nodes: 3}", "min_nodes: 3 is more than the 2 nodes that pool a can have"),
        (
            "name: x\nfailures: {mtbf: 1d}\n---\nkind: Simulation\nname: y\nfailures: {mtbf: 2d}",
            "Simulation y: failures: Simulation x has it for all pools too",
        ),
        ("name: x\nprograms: {save: -1}", "programs.save: .* give 0, or 1ms to 3660d"),
        ("name: x\nreclaims: {every: 1d}", "reclaims: only spot nodes are taken away"),
    ],
)
def test_what_does_not_suit_the_pools_is_refused(files: tuple[Path, Path], text: str, says: str) -> None:
    files[1].write_text(POOL + "---\nkind: Simulation\n" + text + "\n")
    with pytest.raises(InvalidSpec, match=says):
        call(files[0], "--cluster", files[1])


def test_json_holds_the_figures_and_every_run(files: tuple[Path, Path]) -> None:
    told = json.loads(call(files[0], "--cluster", files[1], "--json").stdout)
    assert told["summary"]["makespan_s"] == 7200
    assert [run["name"] for run in told["runs"]] == ["run-1", "run-2", "run-3"]


def test_the_report_is_one_page_without_anything_from_elsewhere(files: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    call(files[0], "--cluster", files[1], "--html", page)
    text = page.read_text()
    assert text.count("<svg") == text.count("<title>") - 1 == 4
    assert "<td>vision</td>" in text
    assert not any(mark in text for mark in ("http:", "https:", "<script", "src="))


def test_the_report_is_kept_for_the_page_unless_told_otherwise(files: tuple[Path, Path], home: Path) -> None:
    told = call(files[0], "--cluster", files[1], "--no-keep")
    assert "fairlead ui" not in told.stderr
    assert not home.exists()
    told = call(files[0], "--cluster", files[1], "--declare", 1.5, "--seed", 20261127, "--policy", "fifo", "--json")
    assert "`fairlead ui` shows this report under Simulations." in told.stderr
    (name,) = report_names(Home.open(home))
    report = read_report(Home.open(home), name)
    assert (report.title, report.num_runs) == ("trace.csv on cluster.yaml", 3)
    assert report.settings == ("--declare 1.5", "--seed 20261127")
    assert [each.policy for each in report.policies] == ["fifo"]


def test_a_simulation_succeeds_where_no_report_can_be_kept(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "file"))
    told = call(files[0], "--cluster", files[1])
    assert told.exit_code == 0
    assert "The report is not kept for the web page: " in told.stderr
    assert "2h on 2 nodes" in told.stdout


def test_what_cannot_be_simulated_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    training = tmp_path / "training.yaml"
    training.write_text("name: a\nrun: x\n")
    with pytest.raises(InvalidSpec, match="a is a Training; give Pools, Teams and Simulations only"):
        call(files[0], "--cluster", training)
    files[0].write_text("submit_s,duration_s,gpu\n0,1,H100:8\n")
    remedy = (
        r"8 x H100 requested on one node, the largest node has 0.*\n*.*add a pool that holds it to the cluster file"
    )
    with pytest.raises(CannotFit, match=remedy):
        call(files[0], "--cluster", files[1])
    files[1].write_text(POOL + "---\nkind: Simulation\nname: a\nfailures: {mtbf: soon}\n")
    with pytest.raises(InvalidSpec, match=r"failures.mtbf: .soon. is not a duration"):
        call(files[0], "--cluster", files[1])


CROWDED = (
    "submit_s,duration_s,name,team,nodes,gpu,priority,max_duration\n"
    "0,36000,pretrain,nlp,2,A100:4,0,12h\n"
    "1800,7200,finetune,vision,1,A100:4,0,3h\n"
    "3600,3600,small,others,1,A100:2,-1,2h\n"
)
TEAMS = "---\nkind: Team\nname: vision\nguaranteed: {gpu: 4}\n"


def test_queues_are_compared_in_one_call(files: tuple[Path, Path], tmp_path: Path) -> None:
    files[0].write_text(CROWDED)
    files[1].write_text(POOL + TEAMS)
    page = tmp_path / "report.html"
    result = call(files[0], "--cluster", files[1], "--policy", "fifo", "--policy", "default", "--json", "--html", page)
    fifo, default = map(json.loads, result.stdout.splitlines())
    assert (fifo["policy"], default["policy"]) == ("fifo", "default")
    # First come, first served they wait for ten hours; what vision is guaranteed comes back after ten seconds.
    started = [{run["name"]: run["held"][0][0] for run in told["runs"]} for told in (fifo, default)]
    assert started[0] == {"pretrain": 0, "finetune": 36_000, "small": 36_000}
    assert started[1] == {"pretrain": 0, "finetune": 1810, "small": 3600}
    assert default["summary"]["whole"]["interruptions"] == 1
    text = page.read_text()
    assert text.count("<svg") == 7
    assert text.count("<figcaption>default</figcaption>") == 3


def test_declared_durations_let_short_runs_pass(files: tuple[Path, Path]) -> None:
    files[0].write_text(
        "submit_s,duration_s,name,nodes,gpu\n0,3600,long,1,4\n60,600,whole,2,4\n120,300,short,1,4\n"
    )  # fmt: skip
    starts = {}
    for more in ((), ("--declare", 2)):
        told = json.loads(call(files[0], "--cluster", files[1], "--policy", "backfill", "--json", *more).stdout)
        starts[more] = [run["held"][0][0] for run in told["runs"]]
    assert starts == {(): [0, 3600, 4200], ("--declare", 2): [0, 3600, 120]}
    assert call(files[0], "--cluster", files[1], "--declare", 1).exit_code == 2


def test_expected_durations_let_the_shorter_start_first_where_rules_say_so(files: tuple[Path, Path]) -> None:
    files[0].write_text(
        "submit_s,duration_s,name,nodes,gpu\n0,3600,now,2,4\n60,36000,long,2,4\n120,300,short,2,4\n"
    )  # fmt: skip
    starts = {}
    for more in ((), ("--expect", 1)):
        told = json.loads(call(files[0], "--cluster", files[1], "--policy", "shortest", "--json", *more).stdout)
        starts[more] = [run["held"][0][0] for run in told["runs"]]
    assert starts == {(): [0, 3600, 39600], ("--expect", 1): [0, 3900, 3600]}
    assert call(files[0], "--cluster", files[1], "--expect", 0).exit_code == 2
