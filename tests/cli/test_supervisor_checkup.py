"""Commands while the supervisor is there and does not answer."""

import os
import signal

import pytest

from fairlead.cli.commands import doctor
from fairlead.cluster.local.cluster import LocalCluster
from tests.cli.conftest import Call
from tests.waiting import until


def test_a_supervisor_that_was_stopped_is_noticed_with_what_helps(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ANSWER_S", 2.0)
    call("run", "-d", "--name", "busy", "--", "sleep", "60")
    cluster = LocalCluster.open()

    def pid_of_the_supervisor() -> int | None:
        cluster.nudge()
        return cluster.supervisor_pid()

    pid = until(pid_of_the_supervisor, "supervisor")
    assert cluster.supervisor_answers(30.0)
    os.kill(pid, signal.SIGSTOP)
    try:
        ended = call("doctor")
        assert ended.code == 1
        assert f"!!  supervisor     process {pid} does not answer within 2 s" in ended.out
        assert f"`kill -CONT {pid}`" in ended.out
        listed = call("status")
        assert f"The supervisor, process {pid}, is stopped by a signal" in listed.err
        assert f"`kill -CONT {pid}`" in listed.err
    finally:
        os.kill(pid, signal.SIGCONT)
    assert cluster.supervisor_answers(30.0)
    assert call("status").err == ""
    cluster.close()
    call("delete", "--yes", "busy")
