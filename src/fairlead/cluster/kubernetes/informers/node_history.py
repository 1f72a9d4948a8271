"""Reads the histories of nodes from the operator's ConfigMap."""

import logging

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.names import HISTORY, NODE_HISTORY, segment
from fairlead.cluster.node_records import NOTHING, NodeRecord, record_of
from fairlead.state.node_health import Histories

log = logging.getLogger(__name__)


def config_maps(namespace: str) -> str:
    """Return the path of the ConfigMaps of a namespace."""
    return f"/api/v1/namespaces/{segment(namespace)}/configmaps"


def read_history(client: Client, namespace: str) -> tuple[NodeRecord, str]:
    """Return the record in the operator's namespace, and the version of its object, empty if there is none.

    What cannot be read counts as nothing, which is logged.

    Raises:
        ApiError: It may not be read.
    """
    try:
        content = client.get(f"{config_maps(namespace)}/{NODE_HISTORY}")
    except ApiError as error:
        if error.status != 404:
            raise
        return NOTHING, ""
    version = str(content["metadata"]["resourceVersion"])
    try:
        return record_of(str((content.get("data") or {}).get(HISTORY, "{}"))), version
    except ValueError as error:
        log.warning("histories of nodes begin anew, since %s/%s cannot be read: %s", namespace, NODE_HISTORY, error)
        return NOTHING, version


def histories_there(client: Client, namespace: str) -> Histories:
    """Return the histories for a user's command; none if the user may not read them."""
    try:
        return read_history(client, namespace)[0].histories
    except ApiError as error:
        if error.status != 403:
            raise
        return {}
