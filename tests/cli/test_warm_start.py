"""A run that begins from another's newest checkpoint, through the real command."""

import json
from pathlib import Path

import pytest

from fairlead.state.snapshot import Phase
from tests.cli.conftest import Call, Past

PROGRAM = """
import os
import fairlead
seen = []
with fairlead.run() as run:
    start = run.resume(load=lambda directory: seen.append((directory / "w").read_text()))
    print("attempt", run.attempt, "began after", start, "with", seen)
    save = lambda directory: (directory / "w").write_text(os.environ["W"])
    run.checkpoint(start + 5, save=save)
if run.attempt == 0 and "DIE" in os.environ:
    raise SystemExit(3)
"""


def test_a_run_begins_from_anothers_checkpoint_and_goes_on_from_its_own(call: Call, desk: Path) -> None:
    (desk / "t.py").write_text(PROGRAM)
    command = ["--", "python", "t.py"]
    assert call("run", "--name", "base", "--set", "env.W=old", *command).code == 0
    again = call("run", "--name", "base", "--set", "env.W=old", *command)
    assert "base-2 starts at step 0; base has a checkpoint of step 5: `--set checkpoint.from=base`" in again.err
    fine = ["--set", "checkpoint.from=base", "--set", "env.W=new", "--set", "env.DIE=1", "--set", "retry=1"]
    answer = call("run", "--name", "fine", *fine, *command)
    assert answer.code == 0, answer.err
    assert "attempt 0 began after 5 with ['old']" in answer.out
    assert "attempt 1 began after 10 with ['new']" in answer.out
    told = [json.loads(line) for line in call("events", "fine", "--json").out.splitlines()]
    assert any("Began after step 5 of" in json.dumps(each) for each in told)


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ("nothing", 5, "There is no run named 'nothing'"),
        ("idle", 6, "checkpoint.from: the run idle has no complete checkpoint"),
        ("./nowhere", 6, "nowhere has no complete checkpoint"),
        ("./kept", 6, "kept has no checkpoint itself, but runs have theirs in it. Give one:"),
    ],
)
def test_where_no_checkpoint_is_a_run_is_refused(
    call: Call, past: Past, desk: Path, given: str, code: int, says: str
) -> None:
    past.submit("idle", phase=Phase.FAILED)
    inner = desk / "kept" / "base-1a2b" / "step-000000000005"
    inner.mkdir(parents=True)
    (inner / "MANIFEST.json").write_text("{}")
    for command in ("plan", "run"):
        answer = call(command, "--set", f"checkpoint.from={given}", "--", "echo", "hi")
        assert answer.code == code
        assert says in answer.err
