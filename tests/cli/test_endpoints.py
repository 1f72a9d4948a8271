"""What `run` says of an endpoint that does not come to serve."""

import time
from pathlib import Path

import pytest

from fairlead.cli import endpoints
from tests.cli.conftest import Call

SPEC = """kind: Serving
name: broken
run: {run}
ready_within: 2m
resources: {{cpu: 0.05}}
"""


class Clock:
    """The time, which is an hour later once a certain thing was said."""

    def __init__(self, awaited: str) -> None:
        self.awaited, self.said = awaited, list[str]()

    def message(self, text: str) -> None:
        self.said.append(text)

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time() + 3600.0 * any(self.awaited in text for text in self.said)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("echo the model is missing >&2; exit 3", "failed with exit code 3: the model is missing"),
        ("sleep 60", "nothing listens there yet"),
    ],
    ids=["ends at once", "never listens"],
)
def test_an_endpoint_that_never_serves_is_told_with_its_reason_until_its_time_is_over(
    desk: Path, call: Call, monkeypatch: pytest.MonkeyPatch, run: str, why: str
) -> None:
    clock = Clock(why)
    monkeypatch.setattr(endpoints, "PATIENCE_S", 0.0)
    monkeypatch.setattr(endpoints, "time", clock)
    monkeypatch.setattr(endpoints, "message", clock.message)
    (desk / "broken.yaml").write_text(SPEC.format(run=run))
    assert call("run", "broken.yaml").code == 1
    assert len(set(clock.said)) == len(clock.said)
    end, remedy = clock.said[-2:]
    assert end.startswith("broken is not ready after 2m, and goes on trying: 0 of 1 replica of r1 is ready; broken-r1")
    assert "`fairlead logs broken` shows why" in remedy


def test_an_endpoint_that_is_run_again_as_it_is_is_not_told_as_changed(desk: Path, call: Call) -> None:
    (desk / "hello.yaml").write_text(
        "{kind: Serving, name: hello, run: 'exec python -m http.server $PORT --bind 127.0.0.1', resources: {cpu: 0.05}}"
    )
    assert "hello: RevisionReady" in call("run", "hello.yaml").err
    again = call("run", "hello.yaml")
    assert again.code == 0
    assert again.err.startswith("Nothing has changed of hello.\nhello serves r1 at http://")
    assert call("suspend", "hello").code == 0
    suspended = call("run", "hello.yaml")
    assert suspended.code == 1
    assert suspended.err.endswith("`fairlead resume hello` lets it serve again.\n")
    assert "RolloutStarted" not in suspended.err
