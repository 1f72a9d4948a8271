"""Secrets of this machine, as commands set, list and remove them: no value is ever an argument or printed."""

import io
import json
import os
import stat
import sys
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Call

VALUE = "hf_m4rk3d-value"


class TypedInput(io.TextIOWrapper):
    """Standard input with a content that no terminal sends."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


def test_a_value_from_standard_input_is_kept_for_its_user_alone(
    call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", TypedInput(f"{VALUE}\n".encode()))
    made = call("secrets", "set", "hf", "HF_TOKEN")
    assert made.code == 0, made.err
    kept = desk / "home" / "secrets" / "hf" / "HF_TOKEN"
    assert kept.read_text() == VALUE
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((desk / "home" / "secrets").stat().st_mode) == 0o700
    listed = call("secrets", "list")
    assert "HF_TOKEN" in listed.out
    assert VALUE not in made.out + made.err + listed.out + call("secrets", "list", "--json").out


def test_a_value_that_is_typed_is_not_shown(call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = []

    def prompt(text: str, *, hide_input: bool, **_: object) -> str:
        prompts.append((text, hide_input))
        return VALUE

    monkeypatch.setattr(click, "prompt", prompt)
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    assert call("secrets", "set", "hf", "HF_TOKEN", "OTHER").code == 0
    assert prompts == [("Value of HF_TOKEN (not shown)", True), ("Value of OTHER (not shown)", True)]
    assert (desk / "home" / "secrets" / "hf" / "OTHER").read_text() == VALUE


def test_a_value_as_an_argument_is_refused_and_not_repeated(call: Call, desk: Path) -> None:
    refused = call("secrets", "set", "hf", f"HF_TOKEN={VALUE}")
    assert refused.code == 2
    assert "fairlead secrets set hf HF_TOKEN`" in refused.err
    assert VALUE not in refused.err
    assert not (desk / "home" / "secrets").exists()


def test_entries_come_from_files_and_variables(call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("key.json").write_bytes(b'{"k": "\xff\x00"}')
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
    made = call(
        "secrets", "set", "s3", "--from-env", "AWS_ACCESS_KEY_ID",
        "--from-file", "key.json", "--from-file", "b=key.json", "--json",
    )  # fmt: skip
    assert json.loads(made.out) == {"name": "s3", "entries": ["AWS_ACCESS_KEY_ID", "b", "key.json"]}
    kept = desk / "home" / "secrets" / "s3"
    assert (kept / "key.json").read_bytes() == (kept / "b").read_bytes() == b'{"k": "\xff\x00"}'
    assert (kept / "AWS_ACCESS_KEY_ID").read_text() == "AKIA1"


def test_a_secret_is_replaced_as_a_whole_and_removed(call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "1")
    monkeypatch.setenv("B", "2")
    assert call("secrets", "set", "x", "--from-env", "A").code == 0
    assert call("secrets", "set", "x", "--from-env", "B").code == 0
    (listed,) = json.loads(call("secrets", "list", "--json").out)
    assert (listed["name"], listed["entries"]) == ("x", ["B"])
    names = os.listdir(desk / "home" / "secrets")
    assert len(names) == 3  # the link, its version and the lock
    assert call("secrets", "rm", "x").code == 0
    assert os.listdir(desk / "home" / "secrets") == [".lock"]
    again = call("secrets", "rm", "x")
    assert again.code == 5
    assert "there is no secret `x`" in again.err


@pytest.mark.parametrize("name", ["../x", "/etc/x", "..", ".", "a/b", "Hf", "x" * 254, "", "a_b", ".lock"])
def test_a_name_that_is_none_is_refused(call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("A", "1")
    for words in (("set", name, "--from-env", "A"), ("rm", name)):
        refused = call("secrets", *words)
        assert refused.code == 2
        assert "is not a name of a secret" in refused.err
    assert sorted(os.listdir(desk)) in ([], ["home"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Name a variable"),
        (("--from-env", "NOT_THERE"), "is not set in this shell"),
        (("--from-env", "EMPTY"), "The value of EMPTY is empty"),
        (("--from-file", "k=absent"), "cannot be read"),
        (("--from-file", "../k=present"), "is not a name of an entry"),
        (("--from-file", "..data=present"), "is not a name of an entry"),
        (("--from-file", "k=present", "--from-file", "k=present"), "k is there twice"),
        (("--from-file", "k=large"), "more than 1 MiB"),
        (("A", "B"), "Standard input is the value of one VARIABLE"),
    ],
)
def test_what_is_no_secret_is_refused_and_nothing_is_set(
    call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    Path("present").write_text("1")
    Path("large").write_bytes(b"x" * ((1 << 20) + 10))
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setattr(sys, "stdin", TypedInput(b"x"))
    refused = call("secrets", "set", "x", *words)
    assert refused.code == 2
    assert sentence in refused.err
    assert not (desk / "home" / "secrets").exists()


def test_names_are_completed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    from fairlead.cli.main import group

    monkeypatch.setenv("A", "1")
    for name in ("hf", "hub", "s3"):
        assert call("secrets", "set", name, "--from-env", "A").code == 0
    complete = ShellComplete(group, {}, "fairlead", "_FAIRLEAD_COMPLETE")
    assert [item.value for item in complete.get_completions(["secrets", "rm"], "h")] == ["hf", "hub"]
