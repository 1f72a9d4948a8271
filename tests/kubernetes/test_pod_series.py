"""Metrics over time of runs in pods: told once each by a run's reporter, and read from its log."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.client.pod_series import read_series
from fairlead.cluster.kubernetes.manifests.pods import REPORTER
from fairlead.cluster.kubernetes.names import ATTEMPT
from fairlead.runtime import reporting
from fairlead.runtime.progress import Reporter
from fairlead.specs.keys import API_VERSION

NUM_STEPS = 400


class Pods:
    """An API server that has pods of one run and their reporters' logs; a text of a status is a refusal."""

    def __init__(self, logs: dict[int, str | ApiError], refusal: ApiError | None = None) -> None:
        self.logs, self.refusal = logs, refusal

    def items(self, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        assert query == {"labelSelector": "fairlead.dev/run-uid=u,fairlead.dev/index=0"}
        if self.refusal is not None:
            raise self.refusal
        for attempt in sorted(self.logs, reverse=True):
            owner = {"apiVersion": API_VERSION, "kind": "Training", "name": "train", "uid": "u", "controller": True}
            about = {"name": f"train-{attempt}-0", "namespace": "team", "labels": {ATTEMPT: str(attempt)}}
            yield {"metadata": {**about, "ownerReferences": [owner]}}

    def text(self, path: str, query: dict[str, str]) -> str:
        assert query["container"] == REPORTER
        found = self.logs[int(path.removesuffix("-0/log").rpartition("-")[2])]
        if isinstance(found, ApiError):
            raise found
        return found


def refused(status: int) -> ApiError:
    return ApiError("GET /path", status, "Refused", "it is refused")


def test_every_point_of_a_run_is_told_once_in_lines_of_bounded_length(tmp_path: Path) -> None:
    now = [1000.0]
    reporter = Reporter(rank=0, world_size=1, directory=tmp_path, wall=lambda: now[0], clock=lambda: now[0])
    for step in range(1, NUM_STEPS + 1):
        now[0] += 0.25
        reporter.progress(step, total=None, loss=1 / step, epoch=None, samples=None, tokens=None, metrics={"lr": 0.1})
    reporter.flush()
    offset, lines = 0, []
    while True:
        points, after = reporting.read_points(str(tmp_path), offset)
        if after == offset:
            break
        offset = after
        lines.append(reporting.pack_report(str(tmp_path), points))
    assert len(lines) > 2
    assert max(map(len, lines)) <= reporting.MOST_REPORT_BYTES
    series = read_series(Pods({0: "\n".join(lines)}), "team", "u")  # type: ignore[arg-type]
    assert [(point.step, point.value) for point in series["loss"]] == [(n, 1 / n) for n in range(1, NUM_STEPS + 1)]
    assert len(series["lr"]) == NUM_STEPS


def test_the_points_of_every_start_that_is_still_there_are_read_and_nothing_else() -> None:
    def line(*points: object) -> str:
        return json.dumps({"form": reporting.FORM, "points": points})

    strange = line([2.0, 3, {"loss": 0.4}], "no point", [1, 2], [5.0, None, {"loss": "x"}], [1, float("inf"), {"a": 1}])
    foreign = json.dumps({"form": reporting.FORM, "points": 3})
    second = "\n".join((strange, "{", '{"points": [[1, 1, {}]]}', "7", foreign, line([10**400, 1, {"loss": 1}])))
    logs: dict[int, str | ApiError] = {0: line([1.0, 1, {"loss": 0.5}]), 1: refused(404), 2: second}
    series = read_series(Pods(logs), "team", "u")  # type: ignore[arg-type]
    assert [(point.attempt, point.step, point.value) for point in series["loss"]] == [(0, 1, 0.5), (2, 3, 0.4)]
    assert read_series(Pods({}, refused(403)), "team", "u") == {}  # type: ignore[arg-type]


def test_a_line_that_no_report_could_hold_holds_up_none_of_those_behind_it(tmp_path: Path) -> None:
    place = tmp_path / "rank-0.series.jsonl"
    place.write_text("x" * 10_000 + "\n" + json.dumps([1.0, 1, {"loss": 0.5}]) + "\n[1.0, 2")
    offset, found = 0, []
    while True:
        points, after = reporting.read_points(str(tmp_path), offset)
        if after == offset:
            break
        offset = after
        found += points
    assert found == [[1.0, 1, {"loss": 0.5}]]
    assert offset == place.stat().st_size - len("[1.0, 2")
