"""`fairlead queue`, and listings that are kept up to date."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.state.snapshot import Phase
from tests.cli.conftest import Call, Past
from tests.processes import Child
from tests.waiting import until


def test_what_waits_is_listed_in_its_turn(call: Call, desk: Path) -> None:
    everything = f"resources.cpu={os.cpu_count()}"
    held = ("--set", everything, "--set", "priority=50")
    assert call("run", "-d", "--name", "x1", *held, "--", "sleep", "60").code == 0
    until(lambda: json.loads(call("status", "x1", "--json").out)["phase"] == "Running")
    for name, priority in (("low", "0"), ("high", "7")):
        options = ("--set", everything, "--set", f"priority={priority}", "--label", f"p={priority}")
        assert call("run", "-d", "--name", name, *options, "--", "true").code == 0
    rows = [line.split() for line in call("queue").out.splitlines()]
    assert rows[0] == ["#", "NAME", "TEAM", "PRIORITY", "NEEDS", "WAITS", "STARTS", "WHY"]
    assert [row[:4] for row in rows[1:]] == [["1", "high", "default", "7"], ["2", "low", "default", "0"]]
    first, second = json.loads(call("queue", "--json").out)
    assert (first["name"], first["position"], first["starts_at"]) == ("high", 1, None)
    assert first["unknown"] == "x1 has no max_duration"
    assert second["unknown"] == "the start of high, which is before it, is not known"
    assert (first["labels"], first["phase"]) == ({"p": "7"}, "Pending")
    assert "CPU" in first["needs"]
    call("stop", "--all", "--yes")
    ended = call("queue")
    assert (ended.code, ended.out, ended.err) == (0, "", "Nothing waits.\n")


def test_a_known_end_gives_an_expected_start(call: Call, desk: Path) -> None:
    everything = ("--set", f"resources.cpu={os.cpu_count()}")
    assert call("run", "-d", "--name", "x1", *everything, "--set", "max_duration=1h", "--", "sleep", "60").code == 0
    until(lambda: json.loads(call("status", "x1", "--json").out)["phase"] == "Running")
    assert call("run", "-d", "--name", "next", *everything, "--", "true").code == 0
    (row,) = call("queue").out.splitlines()[1:]
    assert re.search(r"about \d\d:\d\d ", row)
    call("stop", "--all", "--yes")


@pytest.mark.parametrize("form", ["text", "json"])
def test_each_change_of_a_watched_listing_is_a_line(desk: Path, past: Past, form: str) -> None:
    past.submit("done", labels={"a": "b"})
    command = [sys.executable, "-m", "fairlead.cli.main", "status", "--watch", "--label", "a"]
    with Child(
        [*command, *(["--json"] if form == "json" else [])], stdout=subprocess.PIPE, text=True, cwd=desk
    ) as watching:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        past.submit("other", phase=Phase.FAILED)
        past.submit("new", phase=Phase.FAILED, labels={"a": "c"})
        second = watching.stdout.readline()
        past.cluster.forget(past.cluster.workloads())
        third = {watching.stdout.readline(), watching.stdout.readline()}
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
    if form == "json":
        assert (json.loads(first)["name"], json.loads(second)["phase"]) == ("done", "Failed")
        assert {json.loads(line)["name"] for line in third if json.loads(line)["deleted"]} == {"done", "new"}
    else:
        assert re.fullmatch(r"\d\d:\d\d:\d\d done is Succeeded: made Succeeded by a test\n", first)
        assert "new is Failed" in second
        assert {line.split(" ", 1)[1] for line in third} == {"done is deleted\n", "new is deleted\n"}


def test_on_a_terminal_the_listing_is_redrawn_in_place(desk: Path, past: Past) -> None:
    past.submit("done")
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "20"}
    with Child(
        [sys.executable, "-m", "fairlead.cli.main", "status", "--watch"], stdout=theirs, stdin=theirs, env=environ
    ) as watching:
        os.close(theirs)
        seen = b""
        while b"done" not in seen:  # ends with an OSError once the command is killed
            seen += os.read(ours, 4096)
        past.submit("new", phase=Phase.FAILED)
        while b"new" not in seen:
            seen += os.read(ours, 4096)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
    os.close(ours)
    assert b"\x1b[1A" in seen, "the cursor goes back up"
    assert seen.count(b"PHASE") >= 2


def test_one_run_is_followed_and_not_watched(call: Call, past: Past) -> None:
    past.submit("done")
    ended = call("status", "done", "--watch")
    assert ended.code == 2
    assert "`fairlead attach done` follows one run" in ended.err
