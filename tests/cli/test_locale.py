"""Paths, arguments and output in locales and with names that are not UTF-8."""

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Call

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0"}


def test_a_run_in_a_shell_whose_locale_is_ascii_has_the_paths_as_they_are(
    desk: Path, process: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_HOME", str(desk / "home \u00e9tat"))
    work = desk / "\u6a21\u578b $x (v2)"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "hello.py").write_text(
        "import os, sys\nname = os.path.basename(os.getcwd())\n"
        "print(ascii(os.fsencode(name).decode()), sys.flags.utf8_mode)\n"
    )
    ran = process("run", "--name", "old", "--", "python3", "hello.py", env=ASCII)
    assert ran.code == 0, ran.err
    # The program has the mode of its own environment.
    assert ran.out == f"{work.name!a} 0\n"
    assert process("logs", "old").out == ran.out


@pytest.mark.parametrize(
    "arguments", [("logs", "a\udcff"), ("run", "--", "echo", "\udcff"), ("run", "\udcff/spec.yaml")]
)
def test_an_argument_that_is_not_utf_8_is_refused(call: Call, arguments: tuple[str, ...]) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert "\\udcff" in answer.err
    assert "is not UTF-8 text" in answer.err


@pytest.mark.parametrize("name", [b"bad \xff", b"two\nlines"])
def test_a_directory_whose_name_no_spec_can_hold_is_refused(
    desk: Path, call: Call, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    work = os.path.join(os.fsencode(desk), name)
    os.mkdir(work)
    monkeypatch.chdir(os.fsdecode(work))
    answer = call("run", "--", "true")
    assert answer.code == 2
    assert "is not one line of UTF-8 text, as a spec needs. Rename the directory." in answer.err
