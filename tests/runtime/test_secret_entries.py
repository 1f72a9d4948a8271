"""Entries of secrets, as shims read them: variables in memory, and in no file that a shim has."""

import json
import os
from pathlib import Path

import pytest

from fairlead.errors import RuntimeFault
from fairlead.runtime import shell_limits
from fairlead.runtime.secret_entries import NAMES, entry_names, read_entries, read_pod, variables


def a_secret(directory: Path, name: str, **entries: bytes) -> Path:
    path = directory / name
    path.mkdir(parents=True)
    for entry, content in entries.items():
        (path / entry).write_bytes(content)
    return path


def test_entries_are_variables_of_a_pod_and_not_in_its_file(tmp_path: Path) -> None:
    path = a_secret(tmp_path, "hf", HF_TOKEN=b"m4rk3d")
    (tmp_path / "pod.json").write_text(json.dumps({"env": {"A": "1", "HF_TOKEN": "old"}, "secrets": {"hf": str(path)}}))
    pod = read_pod(tmp_path)
    assert pod is not None
    assert pod["env"] == {"A": "1", "HF_TOKEN": "m4rk3d", NAMES: "HF_TOKEN"}
    assert "m4rk3d" not in (tmp_path / "pod.json").read_text()


def test_a_pod_whose_secret_is_gone_says_so(tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text(json.dumps({"env": {}, "secrets": {"hf": str(tmp_path / "hf")}}))
    pod = read_pod(tmp_path)
    assert pod is not None
    assert pod["problem"] == "there is no secret `hf`"
    assert read_pod(tmp_path / "absent") is None


def test_a_pod_in_a_container_inherits_what_kubelet_put_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "m4rk3d")
    monkeypatch.setenv("FAIRLEAD_COMMAND", "x")
    (tmp_path / "pod.json").write_text(json.dumps({"env": {"RANK": "0"}, "inherits": ["FAIRLEAD_COMMAND"]}))
    pod = read_pod(tmp_path)
    assert pod is not None
    assert (pod["env"]["HF_TOKEN"], pod["env"]["RANK"]) == ("m4rk3d", "0")
    assert "FAIRLEAD_COMMAND" not in pod["env"]


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"key.json": b"v4lue"}, "is no name of a variable; take it as a file: `VARIABLE=s/key.json`"),
        ({"A": b""}, "is empty; set it again with its value"),
        ({"A": b"v4lue\0"}, "is no text, and a variable holds text alone"),
        ({"A": b"v4lue\xff"}, "is no text, and a variable holds text alone"),
        ({"A": b"v4lue" * 30_000}, "is too long for a variable"),
        ({"A": b"v4lue" * 300_000}, "has more than 1 MiB"),
        ({}, "has no entries"),
    ],
)
def test_what_is_no_variable_is_said_without_its_value(
    tmp_path: Path, entries: dict[str, bytes], sentence: str
) -> None:
    path = a_secret(tmp_path, "s", **entries)
    with pytest.raises(RuntimeFault) as refusal:
        variables([("s", path)])
    assert sentence in str(refusal.value)
    assert "v4lue" not in str(refusal.value)


def test_two_secrets_with_one_variable_are_refused(tmp_path: Path) -> None:
    one, other = a_secret(tmp_path, "one", A=b"1"), a_secret(tmp_path, "other", A=b"2")
    with pytest.raises(RuntimeFault, match="`one` and `other` both set the variable A; leave one of them out"):
        variables([("one", one), ("other", other)])


def test_files_of_kubelet_itself_are_no_entries(tmp_path: Path) -> None:
    version = a_secret(tmp_path, "..2026_11_30", KEY=b"k")
    (tmp_path / "..data").symlink_to(version)
    (tmp_path / "KEY").symlink_to("..data/KEY")
    assert entry_names(tmp_path) == ["KEY"]
    assert read_entries("s", tmp_path) == {"KEY": b"k"}


def test_entries_are_of_one_version_though_it_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = a_secret(tmp_path, "old", A=b"1", B=b"1"), a_secret(tmp_path, "new", A=b"2", B=b"2")
    link = tmp_path / "s"
    link.symlink_to(old)
    listed = os.listdir

    def replaced(path: str) -> list[str]:
        names = listed(path)
        if os.path.realpath(link) == str(old):
            link.unlink()
            link.symlink_to(new)
            (old / "A").unlink()
        return names

    monkeypatch.setattr(os, "listdir", replaced)
    assert read_entries("s", link) == {"A": b"2", "B": b"2"}


def test_what_a_program_submits_does_not_keep_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "m4rk3d")
    monkeypatch.setenv("OTHER", "stays")
    monkeypatch.setenv(NAMES, "HF_TOKEN")
    kept = shell_limits.environment()
    assert "m4rk3d" not in json.dumps(kept)
    assert kept["OTHER"] == "stays"
