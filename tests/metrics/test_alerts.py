"""Every alert fires for its faults and for nothing else, by a real Prometheus' own rule engine.

The series are those that the product's exporter prints on a simulated cluster to which something happens. promtool
comes with Debian's package ``prometheus``; where it is not, it is fetched and unpacked without being installed, and
where that cannot be, the tests say so and skip.
"""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from fairlead.control.metrics.rules import ALERTS, rule_groups
from tests.metrics.faults import BEFORE_MIN, FAULTS, Fault, world_with
from tests.metrics.world import STEP_S, World

STEP_MIN = STEP_S / 60


def written(values: list[float | None]) -> str:
    """Values in the notation of promtool, stretches of equal ones as one word."""
    words: list[str] = []
    place = 0
    while place < len(values):
        end = place
        while end + 1 < len(values) and values[end + 1] == values[place]:
            end += 1
        value, more = values[place], end - place
        words.append(
            ("_" if value is None else f"{value!r}+0")
            + (f"x{more + (value is None)}" if more or value is not None else "")
        )
        place = end + 1
    return " ".join(words)


def rule_test(fault: Fault, world: World) -> dict[str, object]:
    ever = (
        f'group by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{round(world.num_samples * STEP_MIN)}m]))'
    )
    before = 'group by (alertname) (ALERTS{alertstate="firing"})'
    wanted = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(FAULTS[fault])]
    return {
        "name": fault.__name__,
        "interval": f"{round(STEP_MIN)}m",
        "input_series": [{"series": series, "values": written(values)} for series, values in world.rows()],
        "promql_expr_test": [
            {"expr": before, "eval_time": f"{round(BEFORE_MIN - STEP_MIN)}m", "exp_samples": []},
            {"expr": ever, "eval_time": f"{round((world.num_samples - 1) * STEP_MIN)}m", "exp_samples": wanted},
        ],
    }


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_fires_its_alerts_and_no_others(fault: Fault, promtool: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_groups()))
    content = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [rule_test(fault, world_with(fault))],
    }
    (tmp_path / "test.yaml").write_text(json.dumps(content))
    ended = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_alert_is_fired_by_some_fault() -> None:
    assert set().union(*FAULTS.values()) == {alert.name for alert in ALERTS}
