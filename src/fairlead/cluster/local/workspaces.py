"""Finds the server of a workspace on this machine, and removes homes that no workspace uses."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from fairlead.cluster.local.home import Home
from fairlead.errors import Conflict, NotFound
from fairlead.frozen import dataclass
from fairlead.runtime.podfiles import read_json
from fairlead.state.snapshot import Pod, PodPhase
from fairlead.untrusted_json import text

MOST_TEXT = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceAddress:
    """The address of a workspace's server.

    Attributes:
        url: Without a secret.
        open: URL for a browser, with the token where the server takes it in one; None for sshd.
        token: The token or password; None for sshd.
        ssh_config: Configuration for ssh with the host `workspace`; None for other servers.
    """

    url: str
    open: str | None = None
    token: str | None = None
    ssh_config: str | None = None


def address_of(home: Home, uid: str, pods: Iterable[Pod]) -> WorkspaceAddress | None:
    """Return the address of a workspace, as its process wrote it; None while there is none."""
    live = [pod for pod in pods if pod.phase is PodPhase.RUNNING and pod.terminating_since is None]
    record = read_json(home.pod(uid, live[-1].uid) / "workspace.json") if live else None
    return None if record is None else read_address(record)


def read_address(record: Mapping[str, object]) -> WorkspaceAddress | None:
    """Return the address in a record that the process of a workspace wrote; None if it has none."""
    url = text(record.get("url"), MOST_TEXT)
    if not url:
        return None
    return WorkspaceAddress(
        url=url,
        open=text(record.get("open"), MOST_TEXT),
        token=text(record.get("token"), MOST_TEXT),
        ssh_config=text(record.get("ssh_config"), MOST_TEXT),
    )


def remove_home(home: Home, team: str, name: str, used_by: Iterable[str]) -> Path:
    """Remove the home that Fairlead made for workspaces of a name, and return its path.

    Args:
        used_by: Names of unfinished workspaces of that name.

    Raises:
        Conflict: An unfinished workspace uses it.
        NotFound: There is none.
    """
    if list(used_by):
        raise Conflict(f"{name} is not over and uses its home; `fairlead delete {name}` first.")
    path = home.workspace(team, name)
    if not path.is_dir() or path.is_symlink():
        raise NotFound(f"there is no home of a workspace {name!r} of team {team!r} in {home.workspaces}.")
    shutil.rmtree(path)
    return path
