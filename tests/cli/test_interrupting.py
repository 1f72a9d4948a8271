"""Ctrl-C at any moment of `run`: what was submitted and what was not, and exit code 130."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.api import submit
from fairlead.cli.commands import run as command
from tests.cli.conftest import Call

DOCUMENTS = "---\n".join(f"name: {name}\nrun: sleep 60\n" for name in ("one", "two", "three"))


def interrupting(at: int, *, after: bool) -> Callable[..., object]:
    """Submits as ever until the call of that number, and is interrupted just before it has, or just after."""
    calls = 0

    def submits(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == at and not after:
            raise KeyboardInterrupt
        found: object = submit(*arguments)  # type: ignore[arg-type]
        if calls == at:
            raise KeyboardInterrupt
        return found

    return submits


@pytest.mark.parametrize(
    ("at", "after", "submitted", "left"),
    [
        (1, False, (), ("one", "two", "three")),
        (1, True, ("one",), ("two", "three")),
        (2, False, ("one",), ("two", "three")),
        (3, True, ("one", "two", "three"), ()),
    ],
)
def test_an_interrupted_submission_says_what_was_submitted_and_what_was_not(
    call: Call, monkeypatch: pytest.MonkeyPatch, at: int, after: bool, submitted: tuple[str, ...], left: tuple[str, ...]
) -> None:
    Path("runs.yaml").write_text(DOCUMENTS)
    monkeypatch.setattr(command, "submit", interrupting(at, after=after))
    ended = call("run", "-d", "runs.yaml")
    assert ended.code == 130
    told = ended.err.splitlines()[-1]
    if submitted:
        lacking = f"; not submitted: {', '.join(left)}" if left else ""
        again = " ".join(submitted)
        assert told == (
            f"Interrupted; submitted: {', '.join(submitted)}{lacking}. `fairlead attach {again}` follows, "
            f"`fairlead stop {again}` stops."
        )
    else:
        assert told == "Interrupted; nothing was submitted."
    listed = call("status").out
    assert [name for name in ("one", "two", "three") if f"{name} " in listed] == list(submitted)
    if submitted:
        call("delete", "--yes", *submitted)


def test_an_interruption_before_anything_is_submitted_says_so(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    Path("runs.yaml").write_text(DOCUMENTS)
    monkeypatch.setattr(command, "admit", interrupted)
    ended = call("run", "runs.yaml")
    assert (ended.code, ended.err.strip()) == (130, "Interrupted; nothing was submitted.")
