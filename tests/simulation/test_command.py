"""``fairlead simulate`` as a user calls it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead.cli.simulate import simulate
from fairlead.errors import CannotFit, InvalidSpec

POOL = "kind: Pool\nname: a\nnodes: 2\nhardware: {cpu: 64, memory: 256Gi, gpu: {model: A100, count: 4}}\n"
TRACE = "submit_s,duration_s,team,gpu\n0,3600,vision,4\n0,7200,nlp,A100:4\n60,60,nlp,1\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    trace, cluster = tmp_path / "trace.csv", tmp_path / "cluster.yaml"
    trace.write_text(TRACE)
    cluster.write_text(POOL)
    return trace, cluster


def call(*arguments: object) -> Result:
    return CliRunner().invoke(simulate, [str(argument) for argument in arguments], catch_exceptions=False)


def test_the_table_has_a_line_for_each_team_and_the_whole(files: tuple[Path, Path]) -> None:
    result = call(files[0], "--cluster", files[1])
    assert result.stdout.splitlines() == [
        "team    runs  unfinished  wait, mean  wait, p99  completion, mean  completion, p99  interrupted  GPU hours",
        "nlp     2     0           29m 30s     59m        1h 30m            2h               0            8.0",
        "vision  1     0           0s          0s         1h                1h               0            4.0",
        "all     3     0           19m 40s     59m        1h 20m            2h               0            12.0",
        "2h on 2 nodes with 8 GPUs; 75.1% of the GPU time held",
    ]


def test_json_holds_the_figures_and_every_run(files: tuple[Path, Path]) -> None:
    told = json.loads(call(files[0], "--cluster", files[1], "--json").stdout)
    assert told["summary"]["makespan_s"] == 7200
    assert [run["name"] for run in told["runs"]] == ["run-1", "run-2", "run-3"]


def test_the_report_is_one_page_without_anything_from_elsewhere(files: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    call(files[0], "--cluster", files[1], "--html", page)
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "<td>vision</td>" in text
    assert not any(mark in text for mark in ("http:", "https:", "<script", "src="))


def test_what_cannot_be_simulated_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    training = tmp_path / "training.yaml"
    training.write_text("name: a\nrun: x\n")
    with pytest.raises(InvalidSpec, match="a is a Training; give Pools, and Teams, only"):
        call(files[0], "--cluster", training)
    files[0].write_text("submit_s,duration_s,gpu\n0,1,H100:8\n")
    with pytest.raises(CannotFit, match="8 x H100 asked for on one node, the most on any is 0"):
        call(files[0], "--cluster", files[1])
    assert call(files[0], "--cluster", files[1], "--repair", "soon").exit_code == 2
