"""Specs that come through a pipe: a file called `-`."""

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call

READERS = ("run", "plan", "validate", "render")


class _Stdin:
    """A standard input that holds a text."""

    def __init__(self, text: str | bytes) -> None:
        self.buffer = io.BytesIO(text if isinstance(text, bytes) else text.encode())

    def isatty(self) -> bool:
        return False


def pipe(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    monkeypatch.setattr(sys, "stdin", _Stdin(text))


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("run: x\n---\nname: two\nrun: y\nnodse: 2\n", "<stdin>:5: nodse: unknown key; did you mean `nodes`?"),
        ("", "<stdin>:1: there is no spec in it"),
        (b"run: x\n\xff\xfe", "<stdin>:2: not UTF-8 text"),
    ],
)
def test_a_mistake_in_what_is_piped_in_is_told_with_its_line(
    call: Call, monkeypatch: pytest.MonkeyPatch, command: str, text: str | bytes, says: str
) -> None:
    pipe(monkeypatch, text)
    ended = call(command, "-")
    assert ended.code == 2
    assert says in ended.err


def test_several_documents_are_planned_in_the_current_directory(
    call: Call, monkeypatch: pytest.MonkeyPatch, desk: Path
) -> None:
    (desk / "sub").mkdir()
    pipe(monkeypatch, "run: echo one\n---\nname: two\nrun: echo two\nworkdir: sub\n")
    ended = call("plan", "-", "--json")
    assert ended.code == 0
    planned = [json.loads(line) for line in ended.out.splitlines()]
    assert [(each["name"], each["spec"]["spec"]["workdir"]) for each in planned] == [
        ("run", str(desk)),
        ("two", str(desk / "sub")),
    ]


def test_what_is_piped_in_runs_beside_a_file(process: Call) -> None:
    Path("three.yaml").write_text("run: echo three")
    Path("beside.txt").write_text("beside\n")
    ended = process(shell="printf 'run: cat beside.txt\\n---\\nname: two\\nrun: echo 2' | {fairlead} run - three.yaml")
    assert ended.code == 0, ended.err
    assert sorted(line.split(" | ")[-1] for line in ended.out.splitlines()) == sorted(["beside", "2", "three"])


def test_the_standard_input_is_given_once(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in READERS:
        pipe(monkeypatch, "run: x")
        ended = call(command, "-", "-")
        assert ended.code == 2
        assert "give it once" in ended.err


def test_no_standard_input_is_told(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for command in READERS:
        ended = call(command, "-")
        assert ended.code == 2
        assert "<stdin>: cannot be read: there is no standard input" in ended.err
