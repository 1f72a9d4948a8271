"""What ran: the spec, the files, the commit, and how two runs differ."""

import json
from pathlib import Path

import pytest

from fairlead.specs.training import Training
from tests.cli.conftest import Call, Past


def submit(past: Past, name: str, text: str, **changes: object) -> None:
    project = Path("project")
    project.mkdir(exist_ok=True)
    (project / "train.py").write_text(text)
    (project / "same.txt").write_text("same\n")
    values = {"name": name, "run": "python train.py", "workdir": str(project.absolute()), **changes}
    past.cluster.submit(Training(**values))  # type: ignore[arg-type] # the callers give what Training takes


def test_the_code_of_a_run_is_shown_as_of_its_submission(call: Call, past: Past) -> None:
    submit(past, "one", "print(1)\n")
    Path("project/train.py").write_text("print(2)\n")
    ended = call("show", "one", "--code")
    assert "run: python train.py" in ended.out
    assert "code: 2 files, 14 B, as of " in ended.out
    assert "edited since: train.py\n" in ended.out
    assert "  train.py\n" in ended.out
    assert "environment: not known" in ended.out
    told = json.loads(call("show", "one", "--json").out)
    assert [file["path"] for file in told["code"]["files"]] == ["same.txt", "train.py"]
    assert told["code"]["edited"] == ["train.py"]
    assert told["spec"]["spec"]["run"] == "python train.py"
    assert call("show", "one", "--export", "out").code == 0
    assert Path("out/train.py").read_text() == "print(1)\n"
    again = call("show", "one", "--export", "out")
    assert again.code == 6
    assert "out is there already" in again.err


def test_two_runs_are_told_apart_by_spec_and_files(call: Call, past: Past) -> None:
    submit(past, "one", "print(1)\n")
    submit(past, "two", "print(2)\n", priority=3)
    ended = call("show", "one", "--diff", "two")
    assert ended.out.splitlines() == [
        "name: one -> two",
        "priority: not given -> 3",
        "--- a/train.py",
        "+++ b/train.py",
        "@@ -1 +1 @@",
        "-print(1)",
        "+print(2)",
    ]
    assert json.loads(call("show", "one", "--diff", "two", "--json").out)["spec"]["priority"] == [None, 3]
    assert call("show", "one", "--diff", "one").out == "one and one do not differ.\n"


def test_what_is_not_kept_is_said_with_its_reason(call: Call, past: Past) -> None:
    submit(past, "one", "print(1)\n", snapshot=False)
    submit(past, "two", "print(1)\n")
    assert "code: not kept: the spec says `snapshot: false`" in call("show", "one").out
    assert "files: the files of one are not kept" in call("show", "one", "--diff", "two").out
    ended = call("show", "one", "--export", "out")
    assert ended.code == 6
    assert "There are no files to write: the spec says" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("one", "--diff", "two", "--code"), 2, "give one of them"),
        (("oen",), 5, "Did you mean one?"),
        (("one", "--diff", "tow"), 5, "tow"),
    ],
)
def test_wrong_usage_of_show_is_explained(
    call: Call, past: Past, arguments: tuple[str, ...], code: int, says: str
) -> None:
    submit(past, "one", "print(1)\n")
    ended = call("show", *arguments)
    assert ended.code == code
    assert says in ended.err
