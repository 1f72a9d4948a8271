"""Decides how a rank's program is started: forked from a process that has its imports, or executed.

Pure except for the lookup of the interpreter. Only a plain `python [flags] script.py args` is forked, because for any
other command only running it could show whether a fork differs from a fresh start.

See decisions 15 and 162.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Union


class Fork(NamedTuple):
    """A Python program that a warm interpreter can become."""

    interpreter: str  # the file to execute
    flags: tuple[str, ...]
    script: str | None  # path as given on the command line, relative to the working directory
    module: str | None  # of -m
    argv: tuple[str, ...]  # the whole command line, first word as typed


class Exec(NamedTuple):
    """A program that is executed for each rank."""

    argv: tuple[str, ...]
    why: str


Plan = Union[Fork, Exec]


def plan_launch(command: str, launch: str, env: Mapping[str, str]) -> Plan:
    """Choose how to start the command in this environment; ``launch`` is "auto" or "exec"."""
    words = simple_words(command)
    if words is None:
        return Exec(_shell(command, env), "the command needs a shell")
    if needs_shell(words):
        return Exec(_shell(command, env), f"{words[0]!r} is for the shell to do")
    argv = tuple(words)
    if launch != "auto":
        return Exec(argv, "the spec asks for it")
    python = _python(words)
    if isinstance(python, str):
        return Exec(argv, python)
    interpreter = shutil.which(words[0], path=env.get("PATH", os.defpath))
    if interpreter is None:
        return Exec(argv, f"{words[0]} is not on the PATH")
    if not _is_binary(interpreter):
        return Exec(argv, f"{interpreter} is a wrapper, not an interpreter")
    for name in _UNFORKABLE_VARIABLES:
        if env.get(name):
            return Exec(argv, f"{name} is set, which a forked interpreter would not honour")
    flags, script, module = python
    return Fork(os.path.abspath(interpreter), flags, script, module, argv)


def interpreter_for(command: str, env: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the interpreter and flags of a forkable command, to put a script behind; None if it cannot be forked."""
    plan = plan_launch(command, "auto", env)
    return (plan.interpreter, *plan.flags) if isinstance(plan, Fork) else None


def needs_shell(words: Sequence[str]) -> bool:
    """Return whether the first word is not a program: it is a shell builtin, or sets a variable."""
    return words[0] in _SHELL_WORDS or re.match(r"[A-Za-z_]\w*\+?=", words[0]) is not None


def simple_words(command: str) -> list[str] | None:
    """Return the words of a command if a shell would only split words and remove quotes; otherwise None."""
    text, quote, at_word_start = [], "", True
    characters = iter(command.strip())
    for character in characters:
        if character == "\\" and quote != "'":
            following = next(characters, "")
            if following == "\n":
                continue
            text.append(character + following)
        elif quote:
            if character == quote:
                quote = ""
            elif quote == '"' and character in "$`!":
                return None
            text.append(character)
        elif character in "'\"":
            quote = character
            text.append(character)
        elif character in ";|&<>()$`*?[]{}!\n" or (character in "#~" and at_word_start):
            return None
        else:
            text.append(character)
        at_word_start = character in " \t" and not quote
    try:
        return shlex.split("".join(text)) or None
    except ValueError:
        return None  # an open quote: the shell reports it best


def _python(words: list[str]) -> tuple[tuple[str, ...], str | None, str | None] | str:
    """Return flags, script and module of a python command line, or the reason why it cannot be forked."""
    if not re.fullmatch(r"python(3(\.\d+)?)?", os.path.basename(words[0])):
        return f"{os.path.basename(words[0])} is not python"
    flags: list[str] = []
    rest = words[1:]
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return (tuple(flags), None, rest[0]) if rest else "-m names no module"
        if not word.startswith("-"):
            return tuple(flags), word, None
        if word in ("-W", "-X"):
            word += rest.pop(0) if rest else ""
        if not (word in ("-u", "-B", "-O", "-OO", "-s") or word.startswith("-W") or word in _FORKABLE_X):
            return f"{word} needs an interpreter of its own"
        flags.append(word)
    return "it names no script"


def _shell(command: str, env: Mapping[str, str]) -> tuple[str, ...]:
    path = env.get("PATH", os.defpath)
    shell = shutil.which("bash", path=path) or shutil.which("sh", path=path) or "/bin/sh"
    return (shell, "-c", command)


def _is_binary(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) != b"#!"
    except OSError:
        return False


_FORKABLE_X = ("-Xutf8", "-Xutf8=1", "-Xutf8=0", "-Xfaulthandler", "-Xdev", "-Xno_debug_ranges")

# The interpreter, or a tool started with it, reads these when it starts; a fork would not.
_UNFORKABLE_VARIABLES = (
    "PYTHONINSPECT",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONTRACEMALLOC",
    "PYTHONVERBOSE",
    "PYTHONDEBUG",
    "PYTHONMALLOCSTATS",
    "PYTHONDUMPREFS",
    "COVERAGE_PROCESS_START",
    "COVERAGE_PROCESS_CONFIG",
    "COV_CORE_SOURCE",
)

# fmt: off
_SHELL_WORDS = frozenset(
    (
        ".", ":", "alias", "bg", "break", "builtin", "case", "cd", "command", "continue", "declare", "do",
        "done", "echo", "elif", "else", "esac", "eval", "exec", "exit", "export", "false", "fg", "fi", "for",
        "function", "getopts", "hash", "if", "in", "jobs", "kill", "let", "local", "printf", "pwd", "read",
        "readonly", "return", "select", "set", "shift", "source", "test", "then", "time", "times", "trap",
        "true", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while",
    )
)
# fmt: on
