"""Spans of a run's life: what they are, in the form of OTLP, and that a receiver gets each run's once it is there."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.port import EventRecord
from fairlead.control.span_receiver import endpoint_of, headers_of, receiver_of
from fairlead.control.spans import Span, otlp, spans_of
from fairlead.state.attempts import FinishedAttempt, ImagePull, finished_attempt
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, RankExit, Workload
from tests.builders import status, training
from tests.home import end_everything
from tests.otlp import receiving, spans_in
from tests.waiting import until

NOW = 1_000_000_000.0


def events(*told: tuple[float, str]) -> list[EventRecord]:
    reason = Reason(code=Code.WAITING_FOR_RESOURCES, message="needs room")
    return [
        EventRecord(id=number, at=NOW + at, workload_uid="u", run="net", type=kind, reason=reason)
        for number, (at, kind) in enumerate(told, 1)
    ]


def pod(attempt: int, created: float, started: float | None, ended: float, code: int) -> Pod:
    return Pod(
        uid=f"u-{attempt}-0", workload_uid="u", attempt=attempt, index=0, node="a", grant=Grant(),
        phase=PodPhase.SUCCEEDED if code == 0 else PodPhase.FAILED, created_at=NOW + created,
        started_at=None if started is None else NOW + started,
        exits=(RankExit(rank=0, exit_code=code, at=NOW + ended),),
    )  # fmt: skip


def attempt(*pods: Pod, first_step: float | None = None, pull: ImagePull | None = None) -> FinishedAttempt:
    first = None if first_step is None else NOW + first_step
    return finished_attempt(pods, until=NOW + 60, first_step_at=first, pull=pull)


def run(phase: Phase = Phase.SUCCEEDED, *, end: float = 60.0) -> Workload:
    over = status(phase, since=NOW + end, finished_at=NOW + end)
    return Workload(
        uid="u", spec=training("net", labels={"model": "gpt"}), intent=Intent.STOP, status=over, version=9,
        created_at=NOW,
    )  # fmt: skip


def told(spans: tuple[Span, ...]) -> list[tuple[str, float, float, str | None]]:
    return [(span.name, span.start - NOW, span.end - NOW, span.parent) for span in spans]


def test_a_run_is_queued_started_and_run_once_for_each_start() -> None:
    said = events(
        (0, "Submitted"), (0, "Pending"), (5, "Starting"), (7, "Running"), (20, "Restarting"), (21, "Starting"),
        (22, "Running"), (60, "Succeeded"),
    )  # fmt: skip
    found = spans_of(
        run(), said, [attempt(pod(0, 5, 6, 20, 1), first_step=9), attempt(pod(1, 21, 22, 60, 0), first_step=23)]
    )
    assert told(found) == [
        ("run net", 0, 60, None),
        ("queued", 0, 5, "run"),
        ("queued", 20, 21, "run"),
        ("starting", 5, 6, "run"),
        ("first step", 6, 9, "running-0"),
        ("running", 6, 20, "run"),
        ("starting", 21, 22, "run"),
        ("first step", 22, 23, "running-1"),
        ("running", 22, 60, "run"),
    ]
    assert [span.problem for span in found if span.name == "running"] == ["rank 0 ended with exit code 1", None]
    assert len({span.key for span in found}) == len(found)


def test_a_run_that_never_started_has_only_waited() -> None:
    found = spans_of(run(Phase.FAILED), events((0, "Submitted"), (60, "Failed")), [])
    assert told(found) == [("run net", 0, 60, None), ("queued", 0, 60, "run")]
    assert found[0].problem == "the test says so"


def test_the_pull_of_its_images_is_a_part_of_its_start() -> None:
    pull = ImagePull(since=NOW + 4.5, until=NOW + 7.25, image="torch:2", node="a", size_bytes=9)
    found = spans_of(run(), [], [attempt(pod(0, 5, 8, 60, 0), pull=pull)])
    assert told(found)[1:3] == [("starting", 5, 8, "run"), ("pulling", 5, 7.25, "starting-0")]
    assert found[2].attributes == {
        "fairlead.attempt": 0, "fairlead.image": "torch:2", "fairlead.nodes": "a", "fairlead.image_bytes": 9
    }  # fmt: skip


def test_a_wait_of_which_only_the_end_is_known_is_not_told() -> None:
    said = events((5, "Starting"), (7, "Running"), (20, "Restarting"), (21, "Starting"))
    assert told(spans_of(run(), said, []))[1:] == [("queued", 20, 21, "run")]


def test_an_attempt_without_a_start_says_why_and_has_no_first_step_of_another() -> None:
    never = replace(pod(0, 5, None, 20, 1), exits=(), message="node a is gone")
    (starting,) = spans_of(run(Phase.FAILED), [], [attempt(never, first_step=7)])[1:]
    assert (starting.name, starting.end - NOW, starting.problem) == ("starting", 60, "node a is gone")
    names = [span.name for span in spans_of(run(), [], [attempt(pod(1, 21, 22, 60, 0), first_step=9)])]
    assert names == ["run net", "starting", "running"]


def test_an_attempt_on_many_nodes_stays_small() -> None:
    gang = [replace(pod(0, 5, 6, 60, 0), node=f"node-{number:04}", index=number) for number in range(1000)]
    found = attempt(*gang)
    assert found.nodes.startswith("node-0000,node-0001,")
    assert found.nodes.endswith(" and 992 others")
    assert found.num_pods == 1000


def test_the_request_has_the_form_of_the_protocol() -> None:
    spans = spans_of(run(), events((0, "Submitted"), (5, "Starting")), [attempt(pod(0, 5, 6, 20, 0))])
    body = otlp(run(), spans, service="fairlead", version="1")
    (resource,) = body["resourceSpans"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "fairlead"}}]
    sent = resource["scopeSpans"][0]["spans"]
    by_id = {each["spanId"]: each for each in sent}
    assert len(by_id) == len(sent)
    assert {len(each["traceId"]) for each in sent} == {32}
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in by_id)
    assert all(each.get("parentSpanId") in by_id for each in sent if each["name"] != "run net")
    assert all(int(each["startTimeUnixNano"]) <= int(each["endTimeUnixNano"]) for each in sent)
    assert otlp(run(), spans, service="fairlead", version="1") == body, "what is sent twice is the same"


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318/"}, "http://host:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://host/here"}, "https://host/here"),
    ],
)
def test_the_receiver_is_the_one_of_opentelemetrys_variables(environ: dict[str, str], url: str | None) -> None:
    assert endpoint_of(environ) == url


def test_a_receiver_that_speaks_no_http_is_said_to_be_none(caplog: pytest.LogCaptureFixture) -> None:
    assert receiver_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "host:4317"}) is None
    assert "host:4317/v1/traces; spans go to http or https only" in caplog.text


def test_headers_are_pairs_that_may_be_quoted() -> None:
    assert headers_of({"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20abc=, x-team = a "}) == {
        "authorization": "Basic abc=", "x-team": "a"
    }  # fmt: skip


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[Path]:
    """A state directory in which everything is ended that was started there."""
    yield tmp_path / "home"
    end_everything(tmp_path / "home")


@pytest.mark.slow
def test_a_receiver_gets_the_spans_of_a_real_run_once_it_takes_them(tmp_path: Path, own_home: Path) -> None:
    program = (
        "import fairlead\nwith fairlead.run() as run:\n"
        "    run.resume(state={})\n    run.progress(1, total=1, loss=0.5)\n"
    )
    (tmp_path / "train.py").write_text(program)
    command = [
        str(Path(sys.executable).with_name("fairlead")),
        "run",
        "--name",
        "net",
        "--",
        sys.executable,
        "train.py",
    ]
    with receiving(num_refused=1, key="secret") as receiver:
        environ = {
            **os.environ,
            "FAIRLEAD_HOME": str(own_home),
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret",
        }
        done = subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        until(lambda: receiver.bodies, "spans")
        (body,) = receiver.bodies
        spans = spans_in(body)
        assert [each["name"] for each in spans] == ["run net", "queued", "starting", "first step", "running"]
        assert all(each["status"]["code"] == 1 for each in spans)
        time.sleep(0.1)
        assert receiver.refused == receiver.bodies
