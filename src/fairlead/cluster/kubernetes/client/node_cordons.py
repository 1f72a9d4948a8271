"""Closes nodes for pods and opens them again, with the rights of an administrator."""

import time
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.informers.node_cache import NODES
from fairlead.cluster.kubernetes.names import CORDONED, GIVEN_BACK, is_object_name
from fairlead.errors import NotAllowed, NotFound


def cordon(client: Client, node: str, reason: str) -> None:
    """Cordon a node, with the reason in an annotation of ours."""
    why = reason or "by `fairlead node cordon`"
    _change(client, node, {"metadata": {"annotations": {CORDONED: why}}, "spec": {"unschedulable": True}})


def uncordon(client: Client, node: str) -> None:
    """Uncordon a node, and tell the operator that it is given back if it was taken out."""
    marks = {CORDONED: None, GIVEN_BACK: f"{time.time():.3f}"}
    _change(client, node, {"metadata": {"annotations": marks}, "spec": {"unschedulable": None}})


def _change(client: Client, node: str, body: dict[str, Any]) -> None:
    unknown = NotFound(f"There is no node {node!r}; `fairlead nodes` lists them.")
    if not is_object_name(node):
        raise unknown
    try:
        client.merge(f"{NODES}/{node}", body)
    except ApiError as error:
        if error.status == 404:
            raise unknown from error
        if error.status != 403:
            raise
        raise NotAllowed(
            f"You may not change node {node}: that needs the right to patch nodes, which administrators of the "
            "cluster have."
        ) from error
