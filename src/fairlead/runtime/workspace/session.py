"""Runs a session of a workspace's sshd, by path: a shell, or the command of the client, as its other servers would.

sshd starts sessions with the variables and the home of a login. Those of the workspace are read from its process, so
that no secret among them is written to a file.
"""

from __future__ import annotations

import os
import site
import sys

OF_THE_SESSION = ("SSH_", "LC_", "TERM", "LANG", "COLORTERM")
"""Beginnings of names of variables that are the client's."""


def main(pid: str, home: str, root: str) -> None:
    """Become the shell or the command, in the directory ``root``."""
    try:
        with open(f"/proc/{int(pid)}/environ", "rb") as file:
            pairs = [pair.partition(b"=") for pair in file.read().split(b"\0")]
        variables = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
    except FileNotFoundError:  # a system without /proc
        variables = dict(os.environ)
    variables.setdefault("PYTHONUSERBASE", site.getuserbase())
    variables["HOME"] = home
    variables |= {name: value for name, value in os.environ.items() if name.startswith(OF_THE_SESSION)}
    command = variables.pop("SSH_ORIGINAL_COMMAND", None)
    shell = os.environ.get("SHELL", "/bin/sh")
    os.chdir(root)
    # No login shell, whose profile would set another PATH.
    os.execve(shell, [shell] if command is None else [shell, "-c", command], variables)


if __name__ == "__main__":
    main(*sys.argv[1:])
