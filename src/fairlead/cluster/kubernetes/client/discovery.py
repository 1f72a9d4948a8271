"""Overviews of clusters: reachability, size and operator. Only reads, with short time-outs."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import field

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Limits, Object
from fairlead.cluster.kubernetes.api.config import find_access
from fairlead.cluster.kubernetes.api.objects import NodeObject, read_node
from fairlead.cluster.kubernetes.api.resource_slices import all_with_slices, list_offered
from fairlead.cluster.kubernetes.client.installation import installed_in
from fairlead.cluster.kubernetes.client.operator_lease import LeaseHolder, holder_of
from fairlead.cluster.kubernetes.devices import DRA
from fairlead.cluster.kubernetes.manifests.install import VERSION
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR
from fairlead.cluster.kubernetes.names import SYSTEM_NAMESPACE, segment
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

SOON = Limits(per_second=100.0, burst=200, try_s=3.0, patience_s=3.0)
# A credential plugin may wait for the user.
MOST_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledOperator:
    """The operator of a cluster.

    Attributes:
        version: Installed version; None if none is installed, or it may not be read.
        replicas: Wanted replicas in the cluster; an operator outside is not counted.
        num_ready: Ready replicas.
        leader: The leader; None if there is none.
        unknown: Why part of this is unknown; empty if nothing is.
    """

    namespace: str
    version: str | None = None
    replicas: int = 0
    num_ready: int = 0
    leader: LeaseHolder | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """An overview of a cluster.

    Attributes:
        is_current: Whether it is the kubeconfig's current context.
        why: Why it could not be reached; None if it was.
        version: Version of Kubernetes.
        num_nodes, num_ready: None if nodes may not be listed.
        gpus: Number of GPUs by model, on ready nodes.
    """

    context: str
    is_current: bool
    server: str = ""
    namespace: str = ""
    why: str | None = None
    version: str = ""
    num_nodes: int | None = None
    num_ready: int | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)
    operator: InstalledOperator | None = None


def look_at_all(names: Iterable[str], current: str | None, *, timeout_s: float = MOST_S) -> list[Overview]:
    """Query the contexts of a kubeconfig in parallel; one that does not answer in time has that as its reason."""
    overviews: dict[str, Overview] = {}

    def look(name: str) -> None:
        overviews[name] = look_at(name, is_current=name == current)

    threads = {name: threading.Thread(target=look, args=(name,), daemon=True) for name in names}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"no answer within {timeout_s:g} s; does its credential plugin wait for input?"
    return [overviews.get(name) or Overview(context=name, is_current=name == current, why=late) for name in threads]


def look_at(name: str, *, is_current: bool = False) -> Overview:
    """Query one context; a problem with it is in ``why``."""
    server = ""
    try:
        access = find_access(context=name)
        server = access.server
        client = Client(access, SOON)
        version = str(client.get("/version").get("gitVersion") or "?")
        contents = _nodes(client)
        nodes = None if contents is None else all_with_slices(map(read_node, contents), list_offered(client))
        operator = operator_of(client)
    except ClusterError as error:
        return Overview(context=name, is_current=is_current, server=server, why=str(error))
    return Overview(
        context=name,
        is_current=is_current,
        server=server,
        namespace=access.namespace,
        version=version,
        num_nodes=None if nodes is None else len(nodes),
        num_ready=None if nodes is None else sum(node.ready for node in nodes),
        gpus=count_gpus(nodes or ()),
        operator=operator,
    )


def operator_of(client: Client) -> InstalledOperator:
    """Return the operator, as far as the user may see it.

    Raises:
        ClusterError: The API server does not answer.
    """
    namespace = installed_in(client) or SYSTEM_NAMESPACE
    try:
        leader = holder_of(client, namespace)
        deployment = _deployment(client, namespace)
    except ApiError as error:
        if error.status != 403:
            raise
        return InstalledOperator(namespace=namespace, unknown=error.server_message)
    if deployment is None:
        return InstalledOperator(namespace=namespace, leader=leader)
    return InstalledOperator(
        namespace=namespace,
        version=str((deployment["metadata"].get("labels") or {}).get(VERSION) or "") or None,
        replicas=int(deployment["spec"].get("replicas", 1)),
        num_ready=int((deployment.get("status") or {}).get("readyReplicas", 0)),
        leader=leader,
    )


def count_gpus(nodes: Iterable[NodeObject]) -> dict[str, int]:
    """Return the number of devices by model, on ready nodes; parts of a device count as they are offered."""
    counts: dict[str, int] = {}
    for node in nodes:
        for resource, number in node.allocatable.devices if node.ready else ():
            part = resource.rpartition("/")[2]
            model = node.gpu_model if part == "gpu" or resource == DRA else f"{node.gpu_model} {part}"
            counts[model] = counts.get(model, 0) + number
    return {model: number for model, number in counts.items() if number}


def _nodes(client: Client) -> list[Object] | None:
    try:
        return list(client.items("/api/v1/nodes"))
    except ApiError as error:
        if error.status != 403:
            raise
        return None


def _deployment(client: Client, namespace: str) -> Object | None:
    try:
        return client.get(f"/apis/apps/v1/namespaces/{segment(namespace)}/deployments/{OPERATOR}")
    except ApiError as error:
        if error.status != 404:
            raise
        return None
