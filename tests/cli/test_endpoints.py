"""What `run` says of an endpoint that does not come to serve."""

import json
import time
from pathlib import Path

import pytest

from fairlead.cli import endpoints
from tests.cli.conftest import Call
from tests.waiting import until

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
    assert end.startswith("broken is not ready after 2m, and keeps trying: 0 of 1 replica of r1 is ready; broken-r1")
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


SERVER = """
import os
from http.server import ThreadingHTTPServer, SimpleHTTPRequestHandler

ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), SimpleHTTPRequestHandler).serve_forever()
"""
HELLO = "kind: Serving\nname: hello\nrun: exec python server.py\nworkdir: code\nresources: {cpu: 0.05}\n"


@pytest.mark.slow
def test_plan_tells_what_run_makes_of_an_endpoint_whose_code_or_keys_were_edited(desk: Path, call: Call) -> None:
    code, file = desk / "code", desk / "hello.yaml"
    code.mkdir()
    (code / "server.py").write_text(SERVER)
    file.write_text(HELLO)
    assert "hello serves r1" in call("run", "hello.yaml").err
    same = call("plan", "hello.yaml")
    assert (same.code, "hello: nothing to do" in same.out) == (0, True)
    assert same.out.endswith("`fairlead run` would change nothing\n")
    assert call("plan", "--diff", "hello.yaml").code == 0

    # The supervisor records the replica's packages after its start.
    until(lambda: _packages(desk / "home"), "record of the replica's packages")

    # The code alone: what differs, and how it takes over.
    (code / "server.py").write_text(f"{SERVER}# edited\n")
    (code / "more.py").write_text("")
    (code / "other.yaml").write_text(HELLO)  # a spec is no code
    before = _files(desk / "home" / "code")
    planned = call("plan", "hello.yaml")
    assert "launch" not in planned.out, "it has no such key"
    assert "checkpoint" not in planned.out
    assert planned.code == 0
    head = "hello: `fairlead run` would make another revision, r2, in the place of r1\nKEY"
    assert head in planned.out
    assert "(more.py, server.py)\n" in planned.out
    assert planned.out.endswith(
        "hello: new replicas start first, at most 2 replicas at once (`rollout.max_surge: 1`); each one that is ready "
        "replaces one of r1\nhello: if none of r2 is ready within 10m, r1 stays\n"
    )
    marked = call("plan", "--diff", "--format", "markdown", "hello.yaml")
    assert marked.code == 1
    assert "1 key differs" in marked.out
    assert marked.out.splitlines()[-1].endswith("(more.py, server.py) |")
    told = json.loads(call("plan", "--json", "hello.yaml").out)
    assert told["change"] == "revise"
    assert (told["revision"]["name"], told["revision"]["replaces"], told["revision"]["is_new"]) == ("r2", "r1", True)
    assert [each["key"] for each in told["revision"]["differences"]] == ["code"]
    assert _files(desk / "home" / "code") == before, "plan keeps nothing"
    ran = call("run", "hello.yaml").err
    assert ran.startswith("Changed hello.\n")
    assert "hello serves r2" in ran
    assert (call("plan", "hello.yaml").code, call("plan", "--diff", "hello.yaml").code) == (0, 0)

    # A key of the endpoint alone replaces nothing.
    file.write_text(f"{HELLO}replicas: 2\n")
    grown = call("plan", "hello.yaml")
    assert grown.code == 0
    assert "would change it, and r2 continues: none of its replicas is replaced\n" in grown.out
    assert grown.out.endswith("KEY       WAS  IS\nreplicas  1    2\n")

    # What was there before comes back, and what is another again is tried first.
    (code / "server.py").write_text(SERVER)
    (code / "more.py").unlink()
    file.write_text(HELLO)
    assert "would bring back r1, in the place of r2\n" in call("plan", "hello.yaml").out
    file.write_text(f"{HELLO}env: {{A: b}}\ncanary: {{steps: [10%], within: 2h}}\n")
    tried = call("plan", "hello.yaml").out
    assert "env.A          none" in tried
    assert "hello: canary: r3 gets 10 % of the requests, and takes over once it is shown to be no worse" in tried

    # One that is over is submitted anew under its name.
    call("stop", "hello")
    over = call("plan", "hello.yaml")
    assert over.code == 0
    assert "\nhello: it would start at once" in over.out


def _packages(home: Path) -> list[str]:
    """Return the digests of the package lists that were recorded of attempts."""
    records = [json.loads(path.read_text()) for path in (home / "runs").glob("*/ran.json")]
    return [each["python"] for record in records for each in record["attempts"].values() if each["python"]]


def _files(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}
