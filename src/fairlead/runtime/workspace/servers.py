"""The servers of a workspace: how each is started, and where it is then.

A token never gets into an argument of a process, which other users of the machine can read: Jupyter and
openvscode-server read it from a file, code-server from a configuration, and sshd knows a key.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import secrets
import shlex
import shutil
import subprocess
import sys

from fairlead.runtime.podfiles import write_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

INSTALL = {
    "jupyter": "has no jupyter_server. `pip install jupyterlab` (or `jupyter-server`) there",
    "vscode": "has neither openvscode-server nor code-server on its PATH. Install one of them "
    "(https://github.com/gitpod-io/openvscode-server, https://coder.com/docs/code-server/install), or take `ide: ssh`, "
    "to which VS Code connects by Remote-SSH",
    "ssh": "has no sshd or no ssh-keygen. Install OpenSSH's server (`apt install openssh-server`)",
}
"""The end of a refusal: what a server lacks, and how to install it, after the Python or the machine without it."""
EDITORS = ("openvscode-server", "code-server")
SEPARATED = "/run/sshd"
"""The empty directory that sshd of root enters; a service makes it at boot, which containers do not start."""
# Where systems have sshd, which users seldom have on their PATH.
SSHD_DIRECTORIES = ("/usr/sbin", "/usr/local/sbin", "/sbin")


SFTP_DIRECTORIES = os.pathsep.join((
    "/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec", "/usr/local/libexec",
))  # fmt: skip
SESSION = "session.py"
"""The module that runs sessions of sshd by its path, beside this one; in a pod it is in an archive, so it is copied."""
NO_USER = (
    "the image has no name for the user {}, as which pods run, and sshd knows users by their names; add "
    "`RUN useradd --uid {} --create-home work` to its Containerfile"
)


class NotInstalled(Exception):
    """A server is not installed; the message says which, and how to install it."""


class IdeServer:
    """A server to start.

    Attributes:
        argv: Its command.
        env: Variables beyond those of the workspace.
        address: The record for whoever opens the workspace: URL, secret, and how to use them.
    """

    def __init__(self, argv: list[str], address: dict[str, str], env: dict[str, str] | None = None) -> None:
        self.argv = argv
        self.address = address
        self.env = env or {}


def server_of(ide: str, *, host: str, port: int, directory: str, root: str, home: str, path: str) -> IdeServer:
    """Return the server of an ``ide``, with a new secret in a file of ``directory``.

    Args:
        directory: A directory that only this user may enter.
        root: The directory that it opens.
        home: HOME of the workspace.
        path: The PATH on which programs are looked up.

    Raises:
        NotInstalled: It is not installed.
    """
    if ide == "jupyter":
        return _jupyter(host, port, directory, root)
    if ide == "vscode":
        return _editor(host, port, directory, root, path)
    return _sshd(host, port, directory, root, home, path)


def missing(ide: str, path: str) -> str | None:
    """Return what a machine lacks for an ``ide`` that is a program; None if it is there, and for Jupyter."""
    if (ide == "vscode" and editor_of(path) is None) or (ide == "ssh" and None in (sshd_of(path), keygen_of(path))):
        return INSTALL[ide]
    return None


def editor_of(path: str) -> str | None:
    """Return the path of an editor's server."""
    return shutil.which(EDITORS[0], path=path) or shutil.which(EDITORS[1], path=path)


def sshd_of(path: str) -> str | None:
    """Return the path of sshd, which has to be started by its full path."""
    return shutil.which("sshd", path=os.pathsep.join([path, *SSHD_DIRECTORIES]))


def keygen_of(path: str) -> str | None:
    """Return the path of ssh-keygen."""
    return shutil.which("ssh-keygen", path=path)


def _jupyter(host: str, port: int, directory: str, root: str) -> IdeServer:
    if importlib.util.find_spec("jupyter_server") is None:
        raise NotInstalled(f"{sys.executable} {INSTALL['jupyter']}")
    has_lab = importlib.util.find_spec("jupyterlab") is not None
    token = secrets.token_urlsafe(32)
    token_file = _write(directory, "token", token)
    argv = [
        sys.executable,
        "-m",
        "jupyterlab" if has_lab else "jupyter_server",
        "--ServerApp.open_browser=False",
        f"--ServerApp.ip={host}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={root}",
    ]
    if os.geteuid() == 0:
        argv.append("--allow-root")
    address = {
        "url": f"http://{host}:{port}/",
        "token": token,
        "open": f"http://{host}:{port}/{'lab' if has_lab else ''}?token={token}",
    }
    return IdeServer(argv, address, {"JUPYTER_TOKEN_FILE": token_file})


def _editor(host: str, port: int, directory: str, root: str, path: str) -> IdeServer:
    program = editor_of(path)
    if program is None:
        raise NotInstalled(f"this machine {INSTALL['vscode']}")
    token = secrets.token_urlsafe(32)
    url = f"http://{host}:{port}/"
    if os.path.basename(program) == "openvscode-server":
        token_file = _write(directory, "token", token)
        argv = [program, f"--host={host}", f"--port={port}", f"--connection-token-file={token_file}"]
        argv += [f"--default-folder={root}", "--accept-server-license-terms"]
        return IdeServer(argv, {"url": url, "token": token, "open": f"{url}?tkn={token}"})
    # JSON is YAML, which code-server reads.
    settings = {"bind-addr": f"{host}:{port}", "auth": "password", "password": token, "cert": False}
    argv = [program, f"--config={_write(directory, 'code-server.yaml', json.dumps(settings))}"]
    argv += ["--disable-telemetry", "--disable-update-check", root]
    return IdeServer(argv, {"url": url, "token": token, "open": url})


def _sshd(host: str, port: int, directory: str, root: str, home: str, path: str) -> IdeServer:
    sshd, keygen = sshd_of(path), keygen_of(path)
    if sshd is None or keygen is None:
        raise NotInstalled(f"this machine {INSTALL['ssh']}")
    user = _user()
    if os.geteuid() == 0:
        os.makedirs(SEPARATED, mode=0o755, exist_ok=True)
    keys = {name: os.path.join(directory, name) for name in ("host_key", "user_key")}
    for name, key in keys.items():
        if not os.path.exists(key):
            make = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", f"fairlead-{name}", "-f", key]
            subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
    authorized, known = os.path.join(directory, "authorized_keys"), os.path.join(directory, "known_hosts")
    shutil.copyfile(f"{keys['user_key']}.pub", authorized)
    with open(f"{keys['host_key']}.pub", encoding="utf-8") as file:
        _write(directory, "known_hosts", f"[{host}]:{port} {file.read()}")
    session = pkgutil.get_data("fairlead.runtime.workspace", SESSION)
    assert session is not None, "it is a module of this package"
    program = _write(directory, SESSION, session.decode())
    lines = [
        f"ListenAddress {host}", f"Port {port}", f"HostKey {_quoted(keys['host_key'])}",
        f"AuthorizedKeysFile {_quoted(authorized)}", f"PidFile {_quoted(os.path.join(directory, 'sshd.pid'))}",
        "UsePAM no", "StrictModes no", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password", "AllowTcpForwarding yes",
        f"Subsystem sftp {shutil.which('sftp-server', path=SFTP_DIRECTORIES) or 'internal-sftp'}",
        f"ForceCommand {shlex.join([sys.executable, '-I', program, str(os.getpid()), home, root])}",
    ]  # fmt: skip
    config = _write(directory, "sshd_config", "\n".join([*lines, ""]))
    client = "\n".join([
        "Host workspace", f"  HostName {host}", f"  Port {port}", f"  User {user}",
        f"  IdentityFile {_quoted(keys['user_key'])}", f"  UserKnownHostsFile {_quoted(known)}",
        "  IdentitiesOnly yes", "  StrictHostKeyChecking yes", "",
    ])  # fmt: skip
    ssh_config = _write(directory, "ssh_config", client)
    address = {"url": f"ssh://{user}@{host}:{port}", "ssh_config": ssh_config, "user": user}
    return IdeServer([sshd, "-D", "-e", "-f", config], address)


def environment(home: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: HOME is the workspace's, and packages of the user stay importable."""
    import site

    env = dict(environ)
    env.setdefault("PYTHONUSERBASE", site.getuserbase())
    env["HOME"] = home
    return env


def _user() -> str:
    import pwd

    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError as error:
        raise NotInstalled(NO_USER.format(number, number)) from error


def _quoted(path: str) -> str:
    return f'"{path}"'


def _write(directory: str, name: str, content: str) -> str:
    """Write a private file, and return its path."""
    path = os.path.join(directory, name)
    write_private(path, content)
    return path
