"""Activity in a workspace: what counts, and what does not."""

import json
import os
import pty
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fairlead.runtime.workspace.__main__ import look_interval_s, opened
from fairlead.runtime.workspace.activity import (
    MOST_ENTRIES,
    SystemProcess,
    newest_file,
    newest_of_gpus,
    newest_of_jupyter,
    newest_of_shells,
    running_processes,
)

NOW = 1_700_000_000.0
TOKEN = "secret"


class Api(BaseHTTPRequestHandler):
    """The two lists of a Jupyter server."""

    kernels: ClassVar[Any] = []
    terminals: ClassVar[Any] = []

    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == f"token {TOKEN}"
        body = self.kernels if self.path == "/api/kernels" else self.terminals
        self.send_response(200 if is_known else 403)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def answers(monkeypatch: pytest.MonkeyPatch, kernels: Any, terminals: Any = ()) -> None:
    monkeypatch.setattr(Api, "kernels", kernels)
    monkeypatch.setattr(Api, "terminals", list(terminals))


def test_a_busy_kernel_is_active_now(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, [{"execution_state": "busy", "last_activity": "2023-11-14T12:00:00Z"}])
    assert newest_of_jupyter(url, TOKEN, NOW) == NOW


def test_idle_kernels_and_terminals_were_active_when_they_were_used_last(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = {"execution_state": "idle", "connections": 3, "last_activity": "2023-11-14T22:00:00.500000Z"}
    answers(monkeypatch, [kernel], [{"name": "1", "last_activity": "2023-11-14T22:10:00Z"}])
    assert newest_of_jupyter(url, TOKEN, NOW) == NOW - 200.0


def test_an_open_page_without_kernels_is_no_activity(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, [])
    assert newest_of_jupyter(url, TOKEN, NOW) == 0.0


@pytest.mark.parametrize("strange", [b"[", b"{}" * 600_000, [{"last_activity": "soon"}], [1, None], {"a": 1}])
def test_a_strange_answer_is_taken_without_error(url: str, monkeypatch: pytest.MonkeyPatch, strange: Any) -> None:
    answers(monkeypatch, strange)
    assert newest_of_jupyter(url, TOKEN, NOW) in (0.0, NOW)


def test_a_server_that_does_not_answer_counts_as_active(url: str) -> None:
    assert newest_of_jupyter(url, "wrong", NOW) == NOW
    assert newest_of_jupyter("http://127.0.0.1:1/", TOKEN, NOW) == NOW


SHELL = {10: SystemProcess(parent=1, session=10, tty=0), 20: SystemProcess(parent=10, session=20, tty=34816)}


def test_a_shell_that_runs_a_command_is_active_now() -> None:
    assert newest_of_shells(10, {**SHELL, 30: SystemProcess(parent=20, session=20, tty=34816)}, NOW) == NOW


def test_a_kernel_without_a_terminal_is_no_shell() -> None:
    processes = {
        **SHELL,
        20: SystemProcess(parent=10, session=20, tty=0),
        30: SystemProcess(parent=20, session=20, tty=0),
    }
    assert newest_of_shells(10, processes, NOW) == 0.0


def test_shells_of_other_programs_do_not_count() -> None:
    assert newest_of_shells(99, {**SHELL, 30: SystemProcess(parent=20, session=20, tty=34816)}, NOW) == 0.0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc")
def test_a_real_shell_is_idle_until_it_runs_a_command() -> None:
    pid, master = pty.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", "read line; sleep 60 & read line"])
    try:
        began = time.time()
        while pid not in running_processes():
            assert time.time() < began + 20.0
        assert newest_of_shells(os.getpid(), running_processes(), time.time() + 1e6) < time.time() + 60.0
        os.write(master, b"\n")
        while newest_of_shells(os.getpid(), running_processes(), NOW + 1e9) != NOW + 1e9:
            assert time.time() < began + 20.0
    finally:
        os.killpg(pid, 9)
        os.waitpid(pid, 0)
        os.close(master)


def test_a_saved_file_is_activity_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for name, at in (("deep/train.py", NOW - 50.0), (".cache/state", NOW - 1.0), ("node_modules/a", NOW - 2.0)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
        os.utime(path, (at, at))
    assert newest_file(str(tmp_path), NOW) == NOW - 50.0
    assert newest_file(str(tmp_path / "gone"), NOW) == 0.0


def test_a_huge_directory_is_looked_through_in_part(tmp_path: Path) -> None:
    entries = [tmp_path / f"{number}" for number in range(MOST_ENTRIES + 10)]
    for path in entries:
        path.touch()
    assert newest_file(str(tmp_path), time.time() + 1.0) > 0.0


def test_activity_is_looked_for_more_often_before_a_suspension() -> None:
    assert look_interval_s(3600.0, 0.0) == 30.0
    assert look_interval_s(3600.0, 3000.0) == 1.0
    assert look_interval_s(10.0, 0.0) == 0.5


@pytest.mark.parametrize(
    ("answer", "is_used"),
    [("0\n57\n", True), ("0\n2\n", False), ("[N/A]\n", False), ("", False), ("no devices\n", False)],
)
def test_gpus_are_used_where_the_driver_says_so(
    answer: str, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert newest_of_gpus(NOW) == (NOW if is_used else 0.0)


def test_a_container_without_the_drivers_program_tells_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert newest_of_gpus(NOW) == 0.0


def test_code_is_copied_into_a_home_once_and_edits_in_it_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, root = tmp_path / "work", tmp_path / "home" / "code-1"
    code.mkdir()
    (code / "train.py").write_text("1")
    unfinished = tmp_path / "home" / "code-1.part"
    unfinished.mkdir(parents=True)  # of a start that was killed
    assert opened(str(code), str(root)) == os.getcwd() == str(root)
    (root / "train.py").write_text("2")
    opened(str(code), str(root))
    assert (root / "train.py").read_text() == "2"
