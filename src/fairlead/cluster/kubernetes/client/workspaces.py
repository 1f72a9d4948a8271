"""A workspace in a pod for its user: the address of its server there, keys for ssh, and the claim of its home."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import quantity
from fairlead.cluster.kubernetes.api.streams import exec_stream
from fairlead.cluster.kubernetes.client.rank_pods import member_of
from fairlead.cluster.kubernetes.manifests.pod_environment import POD_DIR, WORKSPACE
from fairlead.cluster.kubernetes.manifests.workspaces import claim_name
from fairlead.cluster.kubernetes.names import CONTENT, MANAGED_BY, MANAGER, segment
from fairlead.cluster.local.workspaces import WorkspaceAddress, read_address
from fairlead.errors import ClusterError, Conflict, NotFound
from fairlead.frozen import dataclass
from fairlead.runtime.podfiles import write_private
from fairlead.runtime.workspace.remote_address import KEYS, NOT_READY
from fairlead.specs.workspace import Workspace
from fairlead.state.snapshot import Workload
from fairlead.text.quantities import describe_memory
from fairlead.untrusted_json import parse_object, text

MOST_BYTES = 64 * 1024
HOST = "workspace"
LABELS = {MANAGED_BY: MANAGER, CONTENT: "home"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodServer:
    """The server of a workspace in its pod.

    Attributes:
        address: Its address as a process of the pod would use it.
        user: Name of the user of sshd; None for other servers.
        keys: Content of the key of a client and of the public key of sshd; empty for other servers.
    """

    address: WorkspaceAddress
    user: str | None = None
    keys: Sequence[str] = ()

    def address_at(self, port: int) -> WorkspaceAddress:
        """Return the address of an HTTP server as it is through a port of this machine."""
        before, after = self.address.url, f"http://127.0.0.1:{port}/"
        opened = self.address.open
        opened = None if opened is None or not opened.startswith(before) else after + opened[len(before) :]
        return WorkspaceAddress(url=after, open=opened, token=self.address.token)


def find_server(client: Client, run: Workload) -> PodServer | None:
    """Return the server of a running workspace, as its pod tells whoever may execute commands in it; None before.

    Raises:
        Conflict: It has no running pod.
        ClusterError: The pod cannot tell, or the API server refuses.
    """
    pod = member_of(client, run, 0)
    output, errors = bytearray(), bytearray()
    command = (pod.python, "-I", WORKSPACE, "address", POD_DIR)
    with exec_stream(
        client.access, pod.path, command, container=pod.container, stdin=False, tty=False
    ) as stream:  # fmt: skip
        code = stream.run(output.extend, errors.extend)
    if code == NOT_READY:
        return None
    if code:
        reason = errors.decode(errors="replace").strip()[-300:]
        raise ClusterError(f"Pod {pod.name} does not tell where the server of {run.spec.name} is: {reason}")
    try:
        record = parse_object(bytes(output), max_bytes=MOST_BYTES)
    except ValueError as error:
        raise ClusterError(f"Pod {pod.name} tells no address of the server of {run.spec.name}: {error}") from error
    address = read_address(record)
    if address is None:
        raise ClusterError(f"Pod {pod.name} tells no address of the server of {run.spec.name}.")
    keys = [text(record.get(name), MOST_BYTES) or "" for name in KEYS]
    if address.ssh_config is None:
        return PodServer(address=address)
    return PodServer(address=address, user=text(record.get("user"), 64), keys=keys)


def write_ssh_config(directory: Path, server: PodServer, proxy: Sequence[str]) -> Path:
    """Write the keys of a workspace and a configuration with its host, and return the path of the latter.

    Args:
        proxy: Command that connects its standard streams to sshd.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key, known, config = (directory / name for name in ("user_key", "known_hosts", "ssh_config"))
    alias = directory.name
    user_key, host_key = server.keys
    write_private(key, user_key)
    write_private(known, f"{alias} {_one_line(host_key)}\n")
    # OpenSSH expands % in the command, and runs it by a shell. It has the kubeconfig of this shell, which editors lack.
    own = (f"KUBECONFIG={os.environ['KUBECONFIG']}",) if os.environ.get("KUBECONFIG") else ()
    command = shlex.join(["env", *own, *proxy]).replace("%", "%%")
    lines = [
        f"Host {HOST}", "  HostName 127.0.0.1", f"  HostKeyAlias {alias}", f"  User {_one_line(server.user or '')}",
        f'  IdentityFile "{key}"', f'  UserKnownHostsFile "{known}"', "  IdentitiesOnly yes",
        "  StrictHostKeyChecking yes", f"  ProxyCommand {command}", "",
    ]  # fmt: skip
    write_private(config, "\n".join(lines))
    return config


def _one_line(value: str) -> str:
    """Return what a pod tells without a second line, which would be an option of ssh."""
    return (value.splitlines() or [""])[0].strip()


def home_problem(client: Client, spec: Workspace) -> str | None:
    """Return why a workspace cannot have the home that it asks for, as a clause; None where nothing is known."""
    name, wanted = claim_name(spec.name), spec.home
    try:
        claim = _claim(client, spec.team, name)
    except ApiError as error:
        if error.status == 403:  # the operator makes it, whoever submits
            return None
        raise
    if claim is None:
        return None
    if not _is_home(claim):
        return f"there is a claim {name} that Fairlead did not make; give the workspace another name"
    held = claim.get("spec") or {}
    size = (held.get("resources") or {}).get("requests", {}).get("storage")
    if wanted.size_bytes is not None and size is not None and quantity(size) != wanted.size_bytes:
        return (
            f"size: it is there already, with {describe_memory(int(quantity(size)))}. Leave `size` out; or delete it, "
            f"by `fairlead workspace delete-home {spec.name}`"
        )
    if wanted.storage_class is not None and held.get("storageClassName") not in (None, wanted.storage_class):
        return (
            f"class: it is there already, with {held['storageClassName']}. Leave `class` out; or delete it, by "
            f"`fairlead workspace delete-home {spec.name}`"
        )
    return None


def remove_home(client: Client, namespace: str, name: str, used_by: Sequence[str]) -> str:
    """Remove the claim with the home of the workspaces of a name, and return its name.

    Args:
        used_by: Names of unfinished workspaces of that name.

    Raises:
        Conflict: An unfinished workspace uses it.
        NotFound: There is none.
    """
    if used_by:
        raise Conflict(f"{name} is not over and uses its home; `fairlead delete {name}` first.")
    claim = _claim(client, namespace, claim_name(name))
    if claim is None or not _is_home(claim):
        raise NotFound(f"there is no home of a workspace {name!r} in the namespace {namespace}.")
    path = f"/api/v1/namespaces/{segment(namespace)}/persistentvolumeclaims/{segment(claim_name(name))}"
    client.delete(path, {"preconditions": {"uid": claim["metadata"]["uid"]}})
    return f"the claim {claim_name(name)} of the namespace {namespace}"


def _claim(client: Client, namespace: str, name: str) -> dict[str, Any] | None:
    try:
        return client.get(f"/api/v1/namespaces/{segment(namespace)}/persistentvolumeclaims/{segment(name)}")
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _is_home(claim: dict[str, Any]) -> bool:
    return LABELS.items() <= (claim["metadata"].get("labels") or {}).items()
