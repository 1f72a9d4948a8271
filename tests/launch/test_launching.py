"""Which commands can be forked, and how all others are executed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fairlead.runtime.launching import Exec, Fork, interpreter_for, plan_launch, simple_words

BIN = str(Path(sys.executable).parent)
ENV = {"PATH": f"{BIN}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("command", "flags", "script", "module"),
    [
        ("python train.py", (), "train.py", None),
        ("python3 -u -W ignore -OO ./a/train.py --lr 0.1", ("-u", "-Wignore", "-OO"), "./a/train.py", None),
        (f"{BIN}/python -m pkg.train x", (), None, "pkg.train"),
        ("python 'my script.py' \"a b\"", (), "my script.py", None),
        ("python train.py \\\n  --lr 0.1", (), "train.py", None),
        ("python train.py '--filter=a|b' \"x;y\"", (), "train.py", None),
    ],
)
def test_a_plain_python_program_is_forked(command: str, flags: tuple[str, ...], script: str, module: str) -> None:
    plan = plan_launch(command, "auto", ENV)
    assert isinstance(plan, Fork)
    assert (plan.flags, plan.script, plan.module) == (flags, script, module)
    assert Path(plan.interpreter).parent == Path(BIN)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("python a.py; python b.py", "the command needs a shell"),
        ("python a.py > log", "the command needs a shell"),
        ("python a.py $RANK", "the command needs a shell"),
        ('python a.py "$RANK"', "the command needs a shell"),
        ("python a.py *.txt", "the command needs a shell"),
        ("python a.py\npython b.py", "the command needs a shell"),
        ("python 'a.py", "the command needs a shell"),
        ("LR=1 python a.py", "'LR=1' is for the shell to do"),
        ("exec python a.py", "'exec' is for the shell to do"),
        ("torchrun a.py", "torchrun is not python"),
        ("python", "it names no script"),
        ("python -c pass", "-c needs an interpreter of its own"),
        ("python -E a.py", "-E needs an interpreter of its own"),
        ("python -X importtime a.py", "-Ximporttime needs an interpreter of its own"),
        ("python3.2 a.py", "python3.2 is not on the PATH"),
    ],
)
def test_anything_else_is_executed_and_says_why(command: str, why: str) -> None:
    plan = plan_launch(command, "auto", ENV)
    assert isinstance(plan, Exec)
    assert plan.why == why


def test_a_simple_command_is_executed_without_a_shell() -> None:
    assert plan_launch("sleep '1 2'", "auto", ENV).argv == ("sleep", "1 2")
    assert plan_launch("python a.py", "exec", ENV) == Exec(("python", "a.py"), "the spec asks for it")
    assert plan_launch("a | b", "auto", ENV).argv[1:] == ("-c", "a | b")


def test_a_wrapper_of_python_is_executed(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text('#!/bin/sh\nexec python3 "$@"\n')
    wrapper.chmod(0o755)
    plan = plan_launch("python a.py", "auto", {"PATH": str(tmp_path)})
    assert plan == Exec(("python", "a.py"), f"{wrapper} is a wrapper, not an interpreter")


@pytest.mark.parametrize("name", ["PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "COVERAGE_PROCESS_START"])
def test_what_only_a_fresh_interpreter_honours_is_executed(name: str) -> None:
    plan = plan_launch("python a.py", "auto", {**ENV, name: "1"})
    assert isinstance(plan, Exec)
    assert name in plan.why


def test_the_interpreter_is_found_as_a_shell_finds_it() -> None:
    assert interpreter_for("python -u a.py", ENV) == (os.path.join(BIN, "python"), "-u")
    assert interpreter_for("make train", ENV) is None


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("a '$x' \\$y", ["a", "$x", "$y"]),
        ("a b#c x=~y", ["a", "b#c", "x=~y"]),
        ("a #b", None),
        ("a ~/b", None),
        ("a {b,c}", None),
        ("", None),
    ],
)
def test_words_are_split_only_where_a_shell_does_nothing_else(command: str, words: list[str] | None) -> None:
    assert simple_words(command) == words
