"""`fairlead ssh`: sessions of a real sshd have the home, variables and packages of their workspace."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.cli.workspaces import await_address
from fairlead.cluster.local.workspaces import WorkspaceAddress
from fairlead.errors import Conflict
from fairlead.runtime.workspace import servers
from fairlead.runtime.workspace.servers import SESSION, missing
from fairlead.state.snapshot import Intent, Phase
from tests.builders import status
from tests.cli.conftest import Call
from tests.wheels import make_wheel

needs_sshd = pytest.mark.skipif(missing("ssh", os.environ.get("PATH", "")) is not None, reason="needs openssh-server")
SPEC = """\
kind: Workspace
name: dev
ide: ssh
env: {GREETING: hello}
environment: requirements.txt
"""


@needs_sshd
@pytest.mark.slow
def test_sessions_have_the_home_variables_and_packages_of_the_workspace_and_files_survive(
    desk: Path, process: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(desk / "cache"))
    make_wheel(desk / "wheels", "fl_one", "1.0")
    (desk / "requirements.txt").write_text("--no-index\n--find-links wheels\nfl_one\n")
    (desk / "dev.yaml").write_text(SPEC)
    started = process("run", "dev.yaml")
    assert started.code == 0, started.err
    home = desk / "home" / "workspaces" / "default" / "dev"
    shown = process("ssh", "dev", "--", "pwd; echo $HOME $GREETING; python -c 'import fl_one; print(fl_one.VERSION)'")
    assert (shown.code, shown.out) == (0, f"{home}\n{home} hello\n1.0\n"), shown.err
    assert process("ssh", "dev", "--", "exit 7").code == 7
    (desk / "ssh_config").write_text(process("ssh", "dev", "--config").out)
    (desk / "a.txt").write_text("of the client\n")
    scp = ["scp", "-q", "-F", str(desk / "ssh_config"), str(desk / "a.txt"), "dev.fairlead:b.txt"]
    subprocess.run(scp, check=True, timeout=60)
    assert process("suspend", "dev").code == 0
    assert process("resume", "dev").code == 0
    assert process("ssh", "dev", "--", "cat b.txt").out == "of the client\n"
    assert process("delete", "dev", "--yes").code == 0


def test_a_run_is_refused_with_what_to_do(call: Call) -> None:
    assert call("run", "--name", "a", "--", "true").code == 0
    assert "a is a Training, not a Workspace; `fairlead debug a` makes one" in call("ssh", "a").err
    assert "--stdio is for a workspace in a pod" in call("ssh", "a", "--stdio").err


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_session_has_the_variables_of_the_process_and_those_of_its_client(tmp_path: Path) -> None:
    own = {"PATH": os.environ["PATH"], "A": "of the workspace", "TERM": "dumb"}
    program = str(Path(servers.__file__).with_name(SESSION))
    with subprocess.Popen(["sleep", "60"], env=own) as workspace:
        try:
            ended = subprocess.run(
                [sys.executable, "-I", program, str(workspace.pid), str(tmp_path / "home"), str(tmp_path)],
                env={"SSH_ORIGINAL_COMMAND": "echo $A $HOME $TERM $B; pwd", "TERM": "xterm", "B": "of a login"},
                capture_output=True, text=True, check=True, timeout=60,
            )  # fmt: skip
        finally:
            workspace.kill()
    assert ended.stdout == f"of the workspace {tmp_path}/home xterm\n{tmp_path}\n"


def test_a_workspace_that_is_resumed_is_awaited_while_it_is_still_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(phase: Phase, intent: Intent) -> SimpleNamespace:
        return SimpleNamespace(status=status(phase), intent=intent)

    states = iter([seen(Phase.SUSPENDED, Intent.RUN), seen(Phase.RUNNING, Intent.RUN)])
    cluster: Any = SimpleNamespace(
        machine=SimpleNamespace(home=None), get=lambda _: next(states), pods=lambda _: (), nudge=lambda: None,
        wait=lambda _: None,
    )  # fmt: skip
    address = WorkspaceAddress(url="ssh://me@127.0.0.1:1")
    monkeypatch.setattr("fairlead.cli.workspaces.address_of", lambda *_: address)
    run: Any = SimpleNamespace(uid="u", spec=SimpleNamespace(name="dev"))
    assert await_address(cluster, run) is address
    states = iter([seen(Phase.SUSPENDED, Intent.SUSPEND)])
    with pytest.raises(Conflict, match="`fairlead resume dev` continues it"):
        await_address(cluster, run)
