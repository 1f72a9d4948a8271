"""The state directory is its user's alone, and so are its sockets, also where every user may write."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from fairlead.cluster.local import home as module
from fairlead.cluster.local import machine_mark
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.machine_mark import file_system_of
from fairlead.errors import ClusterError
from fairlead.runtime.peer_users import is_own
from fairlead.runtime.private_directory import make_private


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_directory_is_private_and_an_empty_one_becomes_so_and_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mode(Home.open(tmp_path / "new" / "home").path) == 0o700
    assert capsys.readouterr().err == ""
    (tmp_path / "empty").mkdir(mode=0o755)
    assert mode(Home.open(tmp_path / "empty").path) == 0o700
    assert "was open to other users; from now on only you can enter it" in capsys.readouterr().err


def test_a_directory_of_something_else_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "notes.txt").write_text("for all")
    shared.chmod(0o755)
    with pytest.raises(ClusterError, match=f"FAIRLEAD_HOME={shared / 'fairlead'}, or run `chmod 700 {shared}`"):
        Home.open(shared)
    assert mode(shared) == 0o755
    assert Home.open(shared / "fairlead").path.is_dir()
    shared.chmod(0o700)
    assert Home.open(shared).path == shared


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: theirs)
    with pytest.raises(ClusterError, match="belongs to another user"):
        Home.open(tmp_path)


@pytest.mark.parametrize("call", [Home.open, Home.at])
def test_a_relative_directory_is_refused(call: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRLEAD_HOME", "state")
    with pytest.raises(ClusterError, match=f"give an absolute path, such as {tmp_path / 'state'}"):
        call()  # type: ignore[operator]
    assert not list(tmp_path.iterdir())


def test_sockets_of_a_long_path_are_in_a_directory_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / ("x" * 100))
    with tempfile.TemporaryDirectory(prefix="s") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        directory = Path(short, f"fairlead-{os.getuid()}")
        assert home.socket.parent == home.door_socket.parent == directory
        assert mode(directory) == 0o700
        assert len(os.fsencode(home.socket)) <= module.MAX_SOCKET_PATH
        directory.chmod(0o777)
        with pytest.raises(ClusterError, match="cannot hold sockets"):
            _ = home.socket
        Path(short, "run").mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(Path(short, "run")))
        assert home.socket.parent == Path(short, "run")


def test_a_link_is_no_private_directory_and_what_it_leads_to_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    (tmp_path / "public").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "public")
    for name in ("link", "public"):
        with pytest.raises(PermissionError, match="not a directory of this user alone"):
            make_private(tmp_path / name)
    assert mode(tmp_path / "public") == 0o755


def test_the_user_of_a_unix_socket_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert is_own(ours)
        monkeypatch.setattr("fairlead.runtime.peer_users._users", lambda: (4242,))
        assert is_own(ours) is not os.path.exists("/proc")


def another_machine(monkeypatch: pytest.MonkeyPatch, *, by: str) -> None:
    """Play another machine that sees all directories by a file system."""
    monkeypatch.setattr(socket, "gethostname", lambda: "node-b")
    monkeypatch.setattr(machine_mark, "file_system_of", lambda path: by)


def test_a_directory_of_another_machine_on_a_network_file_system_is_refused_with_one_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-a")
    path = Home.open(tmp_path / "home").path
    assert Home.open(path).path == path
    another_machine(monkeypatch, by="nfs4")
    with pytest.raises(ClusterError, match="is the state of node-a, and this is node-b: both see it by nfs4") as caught:
        Home.open(path)
    assert f"`export FAIRLEAD_HOME={path}-node-b`" in str(caught.value)
    assert Home.open(Path(f"{path}-node-b")).path.is_dir()
    # The remedy for a machine that has got another name.
    (path / "machine").unlink()
    assert Home.open(path).path == path


@pytest.mark.parametrize("kind", ["ext4", "overlay", ""])
def test_a_directory_on_a_disk_may_come_from_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    Home.open(tmp_path / "home")
    another_machine(monkeypatch, by=kind)
    Home.open(tmp_path / "home")
    assert (tmp_path / "home" / "machine").read_text().startswith("node-b")


def test_the_file_system_of_a_path_is_that_of_the_mount_that_it_is_below() -> None:
    assert file_system_of(Path("/proc/self")) == "proc"
    assert file_system_of(Path("/dev/shm/x")) == "tmpfs"
    assert file_system_of(Path("/sys")) == "sysfs"
