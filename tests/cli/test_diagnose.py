"""``fairlead diagnose``: the cost of stragglers in a trace."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.commands.diagnose import diagnose
from fairlead.errors import InvalidSpec

pyarrow = pytest.importorskip("pyarrow")


def write(path: Path, *, without: str | None = None) -> None:
    """Write steps of three data ranks of one stage, of which the second is slow."""
    from pyarrow import parquet

    rows = [
        (rank, 0, step, name, number, 2.0 if rank == 1 else 1.0, 0, 0)
        for step in range(5)
        for rank in range(3)
        for number, name in enumerate(("forward-compute", "backward-compute"))
    ]
    names = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "gmc")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pyarrow.table({name: values for name, values in columns.items() if name != without}), path)


def test_a_slow_rank_of_a_trace_is_named_with_what_it_costs(tmp_path: Path) -> None:
    write(tmp_path / "trace.parquet")
    result = CliRunner().invoke(diagnose, ["--trace", str(tmp_path / "trace.parquet"), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["cause"] == "worker"
    assert report["worst"] == {"data_rank": 1, "stage": 0}
    assert report["slowdown"] == pytest.approx(4 / (8 / 3))
    assert report["shares"]["worker"] == pytest.approx(1)
    text = CliRunner().invoke(diagnose, ["--trace", str(tmp_path / "trace.parquet")]).output
    assert "slow workers" in text
    assert "1.0 |#####|" in text


def test_a_trace_without_a_column_is_refused_with_its_name(tmp_path: Path) -> None:
    write(tmp_path / "trace.parquet", without="gmc")
    with pytest.raises(InvalidSpec, match="no column gmc"):
        CliRunner().invoke(
            diagnose, ["--trace", str(tmp_path / "trace.parquet")], catch_exceptions=False, standalone_mode=False
        )
