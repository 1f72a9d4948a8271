"""Every mistake that a user or a machine can make gets a sentence and the right exit code, never a traceback."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import fairlead
from fairlead.errors import Conflict
from fairlead.state.snapshot import Phase
from tests.cli.conftest import Call, Past

READERS = ("run", "plan", "validate", "render")


def write(path: str, content: str | bytes) -> None:
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Path("it.yaml").mkdir(), "it.yaml: cannot be read: Is a directory"),
        (lambda: write("it.yaml", b"\x93NUMPY\x01\x00v\x00\xff\xfe"), "it.yaml:1: not UTF-8 text"),
        (lambda: write("it.yaml", b"\x7fELF\x00\x00"), "is this a text file?"),
        (lambda: write("it.yaml", ""), "it.yaml:1: there is no spec in it"),
        (lambda: write("it.yaml", "run: [\n"), "not valid YAML"),
        (lambda: write("it.yaml", "run: x\nnodse: 2\n"), "unknown key; did you mean `nodes`?"),
    ],
)
def test_a_file_that_is_no_spec_is_refused_in_words(
    call: Call, command: str, make: Callable[[], None], says: str
) -> None:
    make()
    ended = call(command, "it.yaml")
    assert ended.code == 2
    assert says in ended.err
    assert ended.out == ""


def test_a_page_has_one_port(call: Call) -> None:
    ended = call("ui", "--sign-in", "--listen", "127.0.0.1:8080", "--port", "7700")
    assert ended.code == 2
    assert "leave --port out" in ended.err


@pytest.mark.parametrize(("command", "code"), [("run", 5), ("plan", 5), ("validate", 2), ("render", 2)])
def test_a_missing_file_is_named(call: Call, command: str, code: int) -> None:
    ended = call(command, "missing.yaml")
    assert ended.code == code
    assert "missing.yaml" in ended.err


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("kind: Team\nname: vision\n---\nrun: echo hi\n", "Team 'vision': these are no runs"),
        ("kind: Pool\nname: p\nhardware: {cpu: 1, memory: 1Gi}\n", "Pool 'p': these are no runs"),
        ("run: echo hi\nimage: python:3.12\n", "--ignore image"),
        ("run: echo hi\nresources: {shm: 1Gi}\n", "--ignore shm"),
    ],
)
def test_what_one_machine_cannot_honour_is_refused_never_ignored(
    call: Call, command: str, spec: str, says: str
) -> None:
    write("it.yaml", spec)
    ended = call(command, "it.yaml")
    assert ended.code == 6
    assert says in ended.err
    assert call("status").out.startswith("No runs yet")


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_run_does_not_say_that_it_is_a_pipeline_without_one(call: Call, command: str) -> None:
    write("it.yaml", "run: echo hi\nenv: {FAIRLEAD_PIPELINE: x}\n")
    ended = call(command, "it.yaml")
    assert ended.code == 2
    assert "env: FAIRLEAD_PIPELINE: it holds no pipeline" in ended.err
    assert call("status").out.startswith("No runs yet")


def test_what_may_be_ignored_is_ignored_only_on_request(call: Call) -> None:
    write("it.yaml", "run: echo hi\nimage: python:3.12\nresources: {shm: 1Gi}\n")
    ended = call("plan", "it.yaml", "--ignore", "image", "--ignore", "shm")
    assert ended.code == 0
    assert "chosen: image: python:3.12 is not used here" in ended.out
    assert "chosen: resources.shm: this machine's own" in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run",), "give a spec file, or a command"),
        (("run", "--env", "NOVALUE", "--", "echo"), "give KEY=VALUE"),
        (("run", "--env", "1X=2", "--", "echo"), "not the name of a variable"),
        (("run", "--env", "RANK=2", "--", "echo"), "set by Fairlead itself"),
        (("run", "--name", "Bad Name", "--", "echo"), "is not a name"),
        (("run", "a.yaml", "b.txt"), "does not end like a spec file"),
        (("run", "--", "x" * 70_000), "the command"),
        (("plan",), "Missing argument"),
        (("logs", "done", "--since", "1h", "--until", "2h"), "--since is later than --until"),
        (
            ("logs", "done", "--since", "yesterday"),
            "'yesterday' is not a point in time; give how long ago, such as 10m",
        ),
        (("logs", "done", "--until", "2026-13-01"), "'2026-13-01' is not a point in time"),
        (("logs", "done", "--grep", "loss ("), "is not a regular expression: missing ), unterminated subpattern"),
        (("logs", "done", "--rank", "0;3"), "'0;3' names no ranks; give one, such as 3, or several"),
        (("logs", "done", "--rank", "3-1"), "'3-1' names no ranks"),
        (("logs", "done", "--rank", "4"), "done has 1 rank, from 0"),
        (("logs", "done", "--attempt", "2"), "the newest start of done is 0"),
        (("logs", "done", "--rank", "-1"), "-1"),
        (("status", "done", "--all"), "give one of them"),
        (("validate", "--show", "--json", "a.yaml"), "give one of them"),
        (("delete", "done"), "Give --yes"),
        (("stop",), "give NAMES, or choose"),
        (("completion", "tcsh"), "tcsh"),
        (("status", "--frobnicate"), "--frobnicate"),
        (("sotp", "done"), "Did you mean `stop`?"),
    ],
)
def test_wrong_usage_is_explained_and_has_exit_code_2(
    call: Call, past: Past, arguments: tuple[str, ...], says: str
) -> None:
    past.submit("done")
    ended = call(*arguments)
    assert ended.code == 2, ended
    assert says in ended.err
    assert past.cluster.find("done").status.phase is Phase.SUCCEEDED


def test_of_several_runs_none_is_submitted_when_one_cannot_be(call: Call) -> None:
    sweep = "name: same\nkind: Sweep\nparameters: {x: 1 | 2}\ntrial: {run: 'sleep 60; echo {{x}}'}\n"
    write("one.yaml", sweep)
    write("two.yaml", f"name: other\nrun: sleep 60\n---\n{sweep}")
    for command in ("run", "plan"):
        ended = call(command, "one.yaml", "two.yaml")
        assert ended.code == 2
        assert "several of these runs are named 'same'" in ended.err
    assert call("run", "-d", "one.yaml").code == 0
    ended = call("run", "-d", "two.yaml")
    assert ended.code == 6
    assert "none of the 2 runs was submitted" in ended.err
    assert call("status", "other").code == 5


def test_a_script_that_needs_python_before_it_is_told_so(call: Call) -> None:
    write("train.py", "print(1)\n")
    ended = call("run", "train.py")
    assert ended.code == 2
    assert "`fairlead run -- python train.py`" in ended.err


@pytest.mark.parametrize("command", ["logs", "events", "attach", "stop", "suspend", "resume", "status"])
def test_an_unknown_run_is_told_near_names_and_nothing_is_done_to_the_known_one(
    call: Call, past: Past, command: str
) -> None:
    past.submit("training", phase=Phase.FAILED)
    names = ("trainign",) if command == "status" else ("training", "trainign")
    ended = call(command, *names)
    assert ended.code == 5
    assert "Did you mean training?" in ended.err
    assert past.cluster.find("training").intent.value == "stop"


def test_of_two_unfinished_runs_of_one_name_none_is_taken_for_the_other(call: Call, past: Past) -> None:
    for team in ("red", "blue"):
        past.submit("same", team=team, phase=Phase.RESTARTING)
    ended = call("stop", "same")
    assert ended.code == 6
    assert "red/same, blue/same" in ended.err
    assert call("stop", "red/same", "--no-wait").code == 0
    intents = {run.spec.team: run.intent.value for run in past.cluster.workloads()}
    assert intents == {"red": "stop", "blue": "run"}


@pytest.mark.parametrize(
    ("command", "phase", "says"),
    [
        ("suspend", Phase.SUCCEEDED, "only an unfinished run"),
        ("resume", Phase.SUCCEEDED, "nothing left to do"),
        ("suspend", Phase.FAILED, "only an unfinished run"),
        ("resume", Phase.STOPPING, "done is not yet Failed: made Stopping by a test; resume it when it is"),
    ],
)
def test_what_a_run_is_past_is_refused(call: Call, past: Past, command: str, phase: Phase, says: str) -> None:
    past.submit("done", phase=phase)
    ended = call(command, "done")
    assert ended.code == 6
    assert says in ended.err


def test_the_python_api_refuses_what_the_commands_refuse(past: Past) -> None:
    past.submit("done")
    run = fairlead.find("done")
    with pytest.raises(Conflict, match="nothing left to do"):
        run.resume()
    with pytest.raises(Conflict, match="only an unfinished run"):
        run.suspend()
    run.stop()
    assert run.status.phase is Phase.SUCCEEDED


def test_stopping_what_has_ended_is_no_mistake(call: Call, past: Past) -> None:
    past.submit("done")
    ended = call("stop", "done")
    assert ended.code == 0
    assert "done is Succeeded already." in ended.err


def test_without_a_home_directory_the_remedy_is_told(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAIRLEAD_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "")
    ended = call("status")
    assert ended.code == 7
    assert "set FAIRLEAD_HOME" in ended.err


def test_a_file_in_place_of_the_state_directory_is_told(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    write("file", "")
    for home in ("file", "file/inside"):
        monkeypatch.setenv("FAIRLEAD_HOME", str(Path(home).absolute()))
        ended = call("status")
        assert ended.code == 7
        assert "Set FAIRLEAD_HOME to a directory that you may write to." in ended.err
    looked = call("doctor")
    assert looked.code == 1
    assert "!!  state" in looked.out


def test_doctor_names_the_policy_of_the_machine_and_finds_one_that_there_is_not(call: Call, desk: Path) -> None:
    call("status")
    write("home/policy", "preempting\n")
    write("home/teams.yaml", "kind: Team\nname: vision\n")
    assert "pending runs are scheduled by the policy `preempting`; 1 team described" in call("doctor").out
    write("home/policy", "presumptuous\n")
    looked = call("doctor")
    assert looked.code == 1
    assert "!!  policy" in looked.out
    assert "give one of" in looked.out


def test_a_database_of_a_newer_version_is_left_alone(call: Call, desk: Path) -> None:
    (desk / "home").mkdir()
    with sqlite3.connect(desk / "home" / "fairlead.db") as database:
        database.execute("PRAGMA user_version = 99")
    before = (desk / "home" / "fairlead.db").read_bytes()
    ended = call("status")
    assert ended.code == 7
    assert "written by a newer Fairlead" in ended.err
    assert (desk / "home" / "fairlead.db").read_bytes() == before
    (desk / "home" / "fairlead.db").unlink()


def test_a_database_that_is_none_is_told(call: Call, desk: Path) -> None:
    (desk / "home").mkdir()
    write("home/fairlead.db", b"no database at all, but long enough to look like one" * 20)
    ended = call("status")
    assert ended.code == 7
    assert "is damaged: file is not a database" in ended.err
    (desk / "home" / "fairlead.db").unlink()


@pytest.mark.skipif(shutil.which("setpriv") is None and os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_directory_that_may_not_be_written_is_told(process: Call, desk: Path) -> None:
    plain = "setpriv --bounding-set=-dac_override,-dac_read_search " if os.geteuid() == 0 else ""
    (desk / "shut").mkdir(mode=0o500)
    ended = process(shell=f"{plain}{{fairlead}} status", env={"FAIRLEAD_HOME": str(desk / "shut" / "home")})
    assert ended.code == 7
    assert "Permission denied. Set FAIRLEAD_HOME" in ended.err
    write("it.yaml", "run: echo hi\n")
    Path("it.yaml").chmod(0)
    ended = process(shell=f"{plain}{{fairlead}} run it.yaml")
    assert ended.code == 2
    assert "it.yaml: cannot be read: Permission denied" in ended.err


def test_a_full_disk_is_told_and_leaves_no_half_submitted_run(process: Call) -> None:
    assert process("status").code == 0
    # No file may grow: what a full disk does to whoever writes, also to root.
    ended = process(shell="ulimit -f 0; {fairlead} run -d -- echo hi")
    assert ended.code == 7
    assert "Nothing can be written to the state directory" in ended.err
    assert process("status").out.startswith("No runs yet")


def test_a_reader_that_has_seen_enough_is_no_error(process: Call, past: Past) -> None:
    for number in range(50):
        past.submit(f"run-{number}")
    for command in ("status --all", "events", "schema", "--help"):
        ended = process(shell=f"set -o pipefail; {{fairlead}} {command} | head -c 1 > /dev/null")
        assert (ended.code, ended.err) == (0, ""), command


def test_output_that_cannot_be_written_is_an_error(process: Call) -> None:
    ended = process(shell="{fairlead} status > /dev/full")
    assert ended.code == 7
    assert "No space left on device" in ended.err


def test_closed_streams_are_no_error(process: Call) -> None:
    for closed in (">&-", "2>&-", "<&-"):
        assert process(shell=f"{{fairlead}} status {closed}").code == 0, closed


def test_a_run_goes_on_when_nobody_reads_its_output_any_more(process: Call, desk: Path) -> None:
    write("slow.py", "import time\nfor n in range(8): print(n, flush=True) or time.sleep(0.2)\nopen('end', 'w')\n")
    ended = process(shell="set -o pipefail; {fairlead} run -- python slow.py | head -n 1")
    assert ended.code == 130
    assert ended.out == "0\n"
    assert "Detached; slow continues." in ended.err
    assert process("attach", "slow").code == 0
    assert (desk / "end").exists()


def test_output_that_the_terminal_cannot_show_is_escaped(process: Call) -> None:
    ended = process("run", "--name", "words", "--", "echo", "gr\u00fcn", env={"PYTHONIOENCODING": "ascii"})
    assert ended.code == 0
    assert "gr\\xfcn" in ended.out


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("run: sleep 1\nworkdir: projcet\n", "there is no directory"),
        ("run: python trian.py\nworkdir: project\n", "did you mean train.py?"),
        ("run: no-such-program\n", "'no-such-program' is not on the PATH"),
        ("run: python -m no_such_module\n", "has no module 'no_such_module'"),
    ],
)
def test_what_cannot_start_is_told_before_it_is_submitted(call: Call, command: str, spec: str, says: str) -> None:
    Path("project").mkdir()
    write("project/train.py", "print(1)\n")
    write("it.yaml", spec)
    ended = call(command, "it.yaml")
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.rstrip().endswith(".")
    assert call("status").out.startswith("No runs yet")


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_script_that_is_not_there_is_refused_with_near_names(call: Call, command: str) -> None:
    write("train.py", "print(1)\n")
    ended = call(command, "trian.py")
    assert ended.code == 2
    assert "there is no file 'trian.py'" in ended.err
    assert "did you mean train.py?" in ended.err
    assert "Give `python` before it" in ended.err


@pytest.mark.parametrize(
    ("word", "command"), [("ls", "status"), ("cancel", "stop"), ("kill", "stop"), ("submit", "run"), ("rm", "delete")]
)
def test_words_of_other_tools_are_answered_with_ours(call: Call, word: str, command: str) -> None:
    ended = call(word)
    assert ended.code == 2
    assert f"Did you mean `{command}`?" in ended.err


def test_a_number_below_0_is_not_called_an_option_that_does_not_exist(call: Call) -> None:
    ended = call("prices", "set", "localhost", "-1")
    assert ended.code == 2
    assert "-1 is read as an option; no number below 0 is allowed here." in ended.err
