"""Texts of programs and other users do not control the terminal on which a command shows them."""

import io
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.cli.streams import TerminalText, guard_terminal, terminal
from tests.cli.conftest import Call

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[1A\rfake\x08\x9b2J\u202egnp.exe\x1b[31mred\n"


class Terminal(io.StringIO):
    """A terminal that remembers what it was sent."""

    def isatty(self) -> bool:
        return True


def sent(text: str) -> str:
    there = Terminal()
    TerminalText(there).write(text)
    return there.getvalue()


def test_only_colours_and_line_ends_reach_the_terminal() -> None:
    shown = sent(HOSTILE)
    assert shown == ("\\x1b]0;owned\\x07\\x1b[2J\\x1b[1A\\x0dfake\\x08\\x9b2J\\u{202e}gnp.exe\x1b[31mred\n\x1b[0m")
    assert sent("plain äöü 漢字 \U0001f469\u200d\U0001f4bb\tx\n") == "plain äöü 漢字 \U0001f469\u200d\U0001f4bb\tx\n"


@given(st.text(st.sampled_from("\x1b[]0;1mHJ\x07\r\n\x00\x9b\u202ea")))
def test_no_other_control_sequence_reaches_it(text: str) -> None:
    rest = sent(text)
    while "\x1b" in rest:
        before, _, after = rest.partition("\x1b")
        assert after.startswith("[")
        number, ends, after = after[1:].partition("m")
        assert ends
        assert set(number) <= set("0123456789;")
        rest = before + after
    assert {each for each in rest if unicodedata.category(each) == "Cc"} <= {"\n", "\t"}


def test_commands_guard_a_terminal_and_nothing_else(desk: object, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    there, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(sys, "stderr", there)
    assert main.call(["status", "no\x1b[2Jsuch"]) != 0
    assert "\x1b[2J" not in there.getvalue()
    assert "\\x1b[2J" in there.getvalue()
    assert sys.stdout is pipe
    monkeypatch.setattr(sys, "stdout", there)
    guard_terminal()
    guard_terminal()
    assert terminal() is there
