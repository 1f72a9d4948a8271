"""`fairlead ui` as somebody starts and ends it."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.commands import ui as command
from fairlead.cli.main import call
from fairlead.cli.target import Target
from fairlead.cluster.local.cluster import LocalCluster

PATIENCE_S = 60.0


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_answers_there_and_ends_when_it_is_told_to(tmp_path: Path, sent: signal.Signals) -> None:
    environ = {**os.environ, "FAIRLEAD_HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "fairlead.cli.main", "ui", "--port", "0", "--json"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            told = json.loads(process.stdout.readline())
            assert told["pid"] == process.pid
            with urllib.request.urlopen(told["url"], timeout=PATIENCE_S) as answer:
                assert b"No runs yet." in answer.read()
            process.send_signal(sent)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_a_port_that_is_taken_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert call(["ui", "--port", str(port)]) == 6
    assert f"Port {port} is taken. Give another with `--port`" in capsys.readouterr().err


def test_readers_cache_little_of_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path))
    cluster = Target().paged()
    assert isinstance(cluster, LocalCluster)
    assert cluster.store._db.execute("PRAGMA cache_size").fetchone() == (-256,)
    cluster.close()


def test_without_the_extra_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert call(["ui"]) == 6
    assert (
        "needs aiohttp and jinja2, which are not installed: `pip install 'fairlead[serve]'`" in capsys.readouterr().err
    )


def test_a_cluster_that_is_not_configured_is_told_before_anything_is_served(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert call(["ui", "--context", "somewhere"]) == 7
    assert "no kubeconfig" in capsys.readouterr().err


def test_a_port_beyond_all_ports_is_refused() -> None:
    answer = CliRunner().invoke(command.ui, ["--port", "70000"])
    assert answer.exit_code == 2
