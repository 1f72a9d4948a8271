"""The choice of a program before the gateway: kept in a file, refused where it cannot be had, and followed."""

import json
import os
import shutil
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from fairlead.cli.commands.doctor import doctor
from fairlead.cli.commands.gateway import gateway
from fairlead.cluster.local.endpoints import Endpoints
from fairlead.cluster.local.gateway_proxy import choose, chosen, read_report
from fairlead.cluster.local.home import Home
from fairlead.errors import ClusterError
from fairlead.gateway.proxying.programs import HAPROXY, PYTHON
from fairlead.runtime.podfiles import take_lock, write_json


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path))
    return Home.open(tmp_path)


def program(folder: Path) -> Path:
    """Something that is called haproxy."""
    made = folder / "haproxy"
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    return made


def test_a_choice_is_kept_once_its_program_is_here(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_more: None)
    assert chosen(home) == PYTHON
    with pytest.raises(ClusterError, match="haproxy is not installed: `apt-get install haproxy` brings it"):
        choose(home, HAPROXY)
    assert chosen(home) == PYTHON
    monkeypatch.setattr(shutil, "which", lambda *_args, **_more: str(program(tmp_path)))
    choose(home, HAPROXY)
    assert chosen(home) == HAPROXY
    home.gateway_proxy.write_text("nginx\n")
    with pytest.raises(ClusterError, match='says "nginx"; give one of python, haproxy'):
        chosen(home)


def test_the_gateway_is_started_with_what_is_chosen_and_without_it_where_that_is_gone(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = program(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda *_args, **_more: str(found))
    followed = Endpoints(home)
    assert followed._options() == []
    choose(home, HAPROXY)
    assert followed._options() == ["--haproxy", str(found)]
    monkeypatch.setattr(shutil, "which", lambda *_args, **_more: None)
    assert followed._options() == followed._options() == []
    assert caplog.text.count("haproxy is not installed") == 1


def test_a_gateway_of_the_other_kind_is_told_to_end_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.serving.mkdir()
    lock = home.serving / "gateway.lock"
    lock.write_text("4711")
    kill = Mock()
    monkeypatch.setattr(os, "kill", kill)
    followed = Endpoints(home)
    followed._door = Mock()
    followed._end_other_kind(lock)
    write_json(home.serving / "demand.json", {"pid": 4711})
    followed._end_other_kind(lock)
    assert kill.call_args_list == []
    write_json(home.serving / "proxy.json", {"pid": 4711, "problem": None, "held": {}})
    for _ in range(3):
        followed._end_other_kind(lock)
    assert [each.args for each in kill.call_args_list] == [(4711, signal.SIGTERM)]


def test_what_a_gateway_before_has_told_is_not_taken_for_now(home: Home) -> None:
    home.serving.mkdir()
    write_json(home.serving / "proxy.json", {"pid": os.getpid(), "problem": None, "held": {"m": "why"}})
    assert read_report(home) is None
    write_json(home.serving / "demand.json", {"pid": os.getpid()})
    assert (read_report(home) or {})["held"] == {"m": "why"}
    write_json(home.serving / "demand.json", {"pid": 1})
    assert read_report(home) is None


def test_the_command_says_what_is_chosen_and_refuses_what_there_is_not(home: Home) -> None:
    shown = CliRunner().invoke(gateway, ["--json"])
    assert json.loads(shown.stdout) == {
        "url": None, "chosen": "python", "running": False, "problem": None, "endpoints": {}
    }  # fmt: skip
    refused = CliRunner().invoke(gateway, ["--proxy", "nginx"])
    assert refused.exit_code == 2
    assert "'nginx' is not one of 'python', 'haproxy'" in refused.output


def checkup() -> tuple[bool, str, str | None] | None:
    """Return the finding of `fairlead doctor` about haproxy, with the remedy."""
    found = json.loads(CliRunner().invoke(doctor, ["--json"]).stdout)
    return next(((each["ok"], each["says"], each["remedy"]) for each in found if each["what"] == "haproxy"), None)


def test_the_checkup_says_whether_haproxy_is_there_and_takes_its_configuration(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkup() is None, "it was not asked for"
    found, is_here = program(tmp_path), True
    which = shutil.which
    monkeypatch.setattr(
        shutil,
        "which",
        lambda name, **more: which(name, **more) if name != HAPROXY else str(found) if is_here else None,
    )
    choose(home, HAPROXY)
    assert checkup() == (True, f"{found}, for the first endpoint", None)
    home.serving.mkdir()
    lock = take_lock(home.serving / "gateway.lock")
    assert lock is not None
    assert "does not use it yet" in str(checkup())
    write_json(home.serving / "demand.json", {"pid": 4711})
    report = {"pid": 4711, "program": str(found), "problem": None, "held": {}}
    write_json(home.serving / "proxy.json", report)
    assert checkup() == (True, f"{found} forwards requests", None)
    write_json(home.serving / "proxy.json", {**report, "held": {"m": "why"}})
    assert "; 1 endpoint stays with the gateway" in str(checkup())
    write_json(home.serving / "proxy.json", {**report, "problem": "it ended with 1: [ALERT] unknown keyword"})
    is_ok, says, remedy = checkup() or (True, "", "")
    assert (is_ok, "[ALERT] unknown keyword" in says) == (False, True)
    assert str(remedy).endswith("haproxy.log has its output; `fairlead gateway --proxy python` does without")
    os.close(lock)
    is_here = False
    assert "haproxy is not installed" in str(checkup())
