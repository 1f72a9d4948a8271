"""Following one run and several: what is shown, in which order, to whom, and the exit code that tells how it went."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Answer, Call

PROGRAM = """
import os, sys, time
for number in range(3):
    print(sys.argv[1], number, flush=True)
    time.sleep(0.1)
sys.exit(int(sys.argv[2]))
"""


def write(*runs: tuple[str, int]) -> None:
    Path("program.py").write_text(PROGRAM)
    documents = [f"name: {name}\nrun: python program.py {name} {code}\n" for name, code in runs]
    Path("runs.yaml").write_text("---\n".join(documents))


def objects(answer: Answer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.out.splitlines()]


def test_several_documents_run_side_by_side_and_each_line_names_its_run(call: Call) -> None:
    write(("left", 0), ("right", 0))
    ended = call("run", "runs.yaml")
    assert ended.code == 0
    lines = ended.out.splitlines()
    for name in ("left", "right"):
        assert [line for line in lines if line.startswith(f"{name} | ")] == [f"{name} | {name} {n}" for n in range(3)]
        assert f"* {name}: Running: 1 rank on 1 node started" in ended.err
        assert ended.err.count(f"{name} is Succeeded: all ranks succeeded in ") == 1
        assert f"* {name}: Submitted\n" in ended.err
    assert ended.err.count("all ranks succeeded") == 2
    assert len(lines) == 6


def test_one_failed_run_of_several_fails_all_of_the_command(call: Call) -> None:
    write(("well", 0), ("ill", 9))
    ended = call("run", "runs.yaml")
    assert ended.code == 1
    assert "well is Succeeded" in ended.err
    assert "ill is Failed: rank 0 of 1 failed with exit code 9" in ended.err
    assert call("attach", "ill", "well").code == 1
    assert call("attach", "well").code == 0


def test_the_lines_of_one_run_come_as_they_were_written(call: Call) -> None:
    write(("alone", 0))
    assert call("run", "runs.yaml").out == "alone 0\nalone 1\nalone 2\n"


def test_json_lines_tell_output_events_and_end(call: Call) -> None:
    write(("left", 0), ("right", 3))
    assert call("run", "-d", "runs.yaml").code == 0
    ended = call("attach", "left", "right", "--json")
    assert ended.code == 1
    told = objects(ended)
    assert {each["run"] for each in told} == {"left", "right"}
    left = [each for each in told if each["run"] == "left"]
    assert [each["text"] for each in left if each["type"] == "log"] == ["left 0", "left 1", "left 2"]
    assert next(each["event"] for each in left if each["type"] == "event") == "Submitted"
    assert (left[-1]["type"], left[-1]["phase"], left[-1]["name"]) == ("end", "Succeeded", "left")
    assert [each["phase"] for each in told if each["type"] == "end" and each["run"] == "right"] == ["Failed"]
    happened = [{**each, "type": "event"} for each in objects(call("events", "left", "--json"))]
    assert happened == [each for each in left if each["type"] == "event"]
    (pod,) = json.loads(call("status", "left", "--json").out)["pods"]
    assert {pod["uid"], *(each["uid"] for each in happened)} == {left[-1]["uid"]}


def test_run_has_the_same_json_lines_and_nothing_else_on_stdout(call: Call) -> None:
    write(("alone", 0))
    told = objects(call("run", "--json", "runs.yaml"))
    assert {each["type"] for each in told} >= {"log", "event", "end"}


def test_progress_is_told_in_json_and_shown_by_status(call: Call) -> None:
    Path("steps.py").write_text(
        "import time, fairlead\n"
        "with fairlead.run() as run:\n"
        "    for step in range(3):\n"
        "        run.progress(step + 1, total=3, loss=0.5)\n"
        "        time.sleep(0.7)\n"
    )
    told = objects(call("run", "--json", "--", "python", "steps.py"))
    progress = [each for each in told if each["type"] == "progress"]
    assert progress
    assert progress[-1]["total_steps"] == 3
    assert "step 3/3, loss 0.5" in call("status", "steps").out


def test_logs_of_several_runs_are_merged_in_order_of_time(call: Call) -> None:
    write(("left", 0), ("right", 0))
    call("run", "runs.yaml")
    shown = call("logs", "left", "right").out.splitlines()
    assert sorted(shown) == sorted(f"{name} | {name} {n}" for name in ("left", "right") for n in range(3))
    times = [json.loads(line)["at"] for line in call("logs", "left", "right", "--json").out.splitlines()]
    assert times == sorted(times)
    assert call("logs", "left", "right", "--tail", "2").out.splitlines() == shown[-2:]
    assert call("logs", "left").out.splitlines() == ["left 0", "left 1", "left 2"]


def test_the_output_is_narrowed_down(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    command = """python -c "print('one\\ntwo\\x00\\x1b[31mred\\x1b[2J\\nthree')" """
    Path("three.yaml").write_text(f"name: three\nrun: |\n  {command}\nranks_per_node: 2\n")
    assert call("run", "three.yaml").code == 0
    assert call("logs", "three", "--rank", "1", "--grep", "^t.*e$").out == "[1] three\n"
    assert call("logs", "three", "--rank", "0,1", "--since", "1h", "--tail", "1", "-f").out.endswith("] three\n")
    told = objects(call("logs", "three", "--rank", "0-1", "--grep", "two", "--json"))
    assert {(each["rank"], each["text"]) for each in told} == {(rank, "two\0\x1b[31mred\x1b[2J") for rank in (0, 1)}
    assert call("logs", "three", "--until", "1h").out == ""
    assert "no such output" in call("logs", "three", "--since", "2999-01-01").err
    monkeypatch.setattr("fairlead.cli.commands.logs.is_terminal", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = call("logs", "three", "--rank", "1", "--grep", "w|hr").out.splitlines()
    assert shown == ["[1] t\x1b[1;31mw\x1b[0mo\\x00\x1b[31mred\x1b[0m", "[1] t\x1b[1;31mhr\x1b[0mee"]


def test_what_was_dropped_is_told_by_logs_and_status(call: Call) -> None:
    Path("noise.py").write_text("for n in range(60000): print(n, 'x' * 90)\n")
    Path("noise.yaml").write_text("name: noise\nrun: python noise.py\nlogs: 4Mi\n")
    assert call("run", "-d", "noise.yaml").code == 0
    call("attach", "noise")
    note, first = call("logs", "noise").out.splitlines()[:2]
    num = int(first.split()[0])
    assert note.startswith(f"... {num:,} lines (")
    assert note.endswith(" of rank 0 were dropped here: the limit is 4 MiB; `logs: {max: 16Mi}` raises it")
    assert f"  output       {note[4:].replace(' here:', ':')}" in call("status", "noise").out.splitlines()
    (dropped,) = json.loads(call("status", "noise", "--json").out)["dropped_output"]
    assert (dropped["rank"], dropped["lines"]) == (0, num)


def test_following_the_logs_of_several_runs_ends_with_the_last_of_them(call: Call) -> None:
    write(("left", 0), ("right", 0))
    call("run", "-d", "runs.yaml")
    ended = call("logs", "-f", "left", "right")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 6


def test_a_run_without_output_says_what_it_is_doing(call: Call) -> None:
    assert call("run", "--name", "silent", "--", "true").code == 0
    ended = call("logs", "silent")
    assert (ended.code, ended.out) == (0, "")
    assert "silent has no output; it is Succeeded" in ended.err


def test_following_events_ends_when_the_runs_are_over(call: Call) -> None:
    write(("left", 0), ("right", 0))
    call("run", "-d", "runs.yaml")
    told = objects(call("events", "-f", "--json", "left", "right"))
    for name in ("left", "right"):
        kinds = [each["event"] for each in told if each["run"] == name]
        assert kinds == ["Submitted", "Starting", "Running", "Succeeded"]
    assert [each["id"] for each in told] == sorted({each["id"] for each in told})


def test_a_run_that_is_deleted_while_it_is_followed_is_told(process: Call, desk: Path) -> None:
    ended = process(
        shell="{fairlead} run -d --name gone -- sleep 300; {fairlead} attach gone 2> told & follower=$!; "
        "until grep -q . told; do sleep 0.1; done; {fairlead} delete --yes gone; "
        "wait $follower; code=$?; cat told >&2; exit $code"
    )
    assert ended.code in (3, 5)
    assert "gone was deleted." in ended.err or "gone is Stopped" in ended.err


@pytest.mark.slow
def test_a_whole_terminal_session_shows_a_line_of_progress_and_leaves_no_colour_under_no_color(
    process: Call, desk: Path
) -> None:
    write(("left", 0), ("right", 0))
    for env, coloured in (({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "xterm"}, True)):
        inner = "unset COLUMNS LINES; stty cols 40; {fairlead} run runs.yaml; {fairlead} status"
        ended = process(shell=f"script -qec '{inner}' /dev/null < /dev/null", env=env)
        assert ended.code == 0
        assert "is Succeeded" in ended.out
        assert ("\x1b[1m" in ended.out or "\x1b[2m" in ended.out) == coloured
        table = ended.out[ended.out.index("NAME ") :].splitlines()
        assert all(line.endswith(("...", "REASON")) for line in table if line)
