"""Reaching into runs of this machine: a command beside a rank, what pods use, and what makes no sense here."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Answer, Call

PROGRAM = """
import time
hoard = b"x" * 80_000_000
print("ready", flush=True)
while True:
    time.process_time()
"""


@pytest.fixture
def busy(call: Call) -> Iterator[str]:
    """A run of two ranks that keep a processor busy and hold 80 MB each."""
    Path("busy.py").write_text(PROGRAM)
    Path("busy.yaml").write_text(f"name: busy\nrun: {sys.executable} busy.py\nnodes: 2\nresources: {{cpu: 1}}\n")
    assert call("run", "--detach", "busy.yaml").code == 0
    deadline = time.monotonic() + 60
    while call("logs", "busy").out.count("ready") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    yield "busy"
    call("stop", "busy")


def test_a_command_gets_the_environment_and_the_directory_of_its_rank(busy: str, process: Call, desk: Path) -> None:
    code = (
        "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.getcwd(), 'FAIRLEAD_POD_DIR' in os.environ)"
    )
    said = process("exec", busy, "--rank", "1", "--", sys.executable, "-c", code)
    number, size, place, has_pod = said.out.split()
    assert (number, size, has_pod) == ("1", "2", "False")
    # The directory that stands for the working directory, with the code as submitted.
    assert "trees" in Path(place).parts
    assert process("exec", busy, "--", "bash", "-c", "exit 9").code == 9
    assert process("exec", busy, "--", "bash", "-c", "kill -TERM $$").code == 128 + 15


def test_a_command_has_our_input_and_output(busy: str, process: Call) -> None:
    said = process(shell="echo over | {fairlead} exec -i busy -- tr o e")
    assert said.out == "ever\n"


def test_a_rank_that_is_not_there_or_a_program_that_is_not_is_told(busy: str, process: Call) -> None:
    none = process("exec", busy, "--rank", "2", "--", "true")
    assert none.code == 6
    assert "no rank 2; the last one is 1" in none.err
    unknown = process("exec", busy, "--", "no-such-program")
    assert unknown.code == 127
    assert "no-such-program: command not found on PATH" in unknown.err
    builtin = process("exec", busy, "--", "exit", "3")
    assert builtin.code == 127
    assert "exit: command not found; it is a builtin of shells: `sh -c 'exit 3'`" in builtin.err
    assert process("exec", busy, "--", "sh", "-c", "exit 3").code == 3


def test_a_run_that_is_over_cannot_be_entered(call: Call, process: Call) -> None:
    assert call("run", "--name", "done", "--", "true").code == 0
    over = process("exec", "done", "--", "true")
    assert over.code == 6
    assert "Rank 0 does not run; done is Succeeded" in over.err


def test_what_pods_use_is_shown_beside_what_they_were_given(busy: str, call: Call) -> None:
    pods = json.loads(call("top", busy, "--json").out)["pods"]
    assert [pod["index"] for pod in pods] == [0, 1]
    for pod in pods:
        assert pod["cpu_milli"] > 5  # each spins, however many others want the machine
        assert 80_000_000 < pod["memory_bytes"] < 400_000_000
        assert pod["granted_cpu_milli"] == 1000
    rows = call("top").out.splitlines()
    assert rows[0].split() == ["RUN", "POD", "PHASE", "NODE", "CPU", "MEMORY", "GPU", "GPU", "MEMORY"]
    assert [row.split()[:2] for row in rows[1:]] == [["busy", "0"], ["busy", "1"]]
    assert " of 1 " in rows[1]


def test_nothing_runs_is_said(call: Call) -> None:
    said = call("top")
    assert (said.code, said.out) == (0, "")
    assert "No run has no pod" not in said.err
    assert "Nothing runs now" in said.err


def test_ports_of_this_machine_need_no_forwarding(call: Call) -> None:
    refused: Answer = call("port-forward", "busy", "8080:80")
    assert refused.code == 2
    assert "its ports are here already" in refused.err


@pytest.mark.parametrize("ports", ["80:", "x:80", "70000:80", "80:0", "1:2:3", "-1:80"])
def test_ports_that_are_none_are_refused(call: Call, ports: str) -> None:
    refused = call("port-forward", "--cluster", "kubernetes", "busy", "--", ports)
    assert refused.code == 2
    assert "give LOCAL:REMOTE" in refused.err
