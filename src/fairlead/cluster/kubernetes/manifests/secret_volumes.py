"""Renders the Secrets of a run into its pods: as variables of the container, or as files. Pure.

A pod refers to a Secret of its own namespace; kubelet reads it, and neither Fairlead's objects nor its operator has a
value. A Secret that is missing keeps the container from starting, with its name in the pod's status. See decision 253.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.cluster.kubernetes.manifests.pod_environment import SECRETS_DIR
from fairlead.specs.data import DataSource
from fairlead.specs.secret_reference import SecretReference, as_files, as_variables

OF_GROUP = 0o440
"""Mode of the files where kubelet gives them to the pod's ``fsGroup``: nobody else reads them."""
OF_ALL = 0o444
"""Mode of the files in pods of engines, which have no ``fsGroup``; the volume is the pod's alone all the same."""


def env_from(secrets: Sequence[SecretReference]) -> list[dict[str, Any]]:
    """Return the sources of variables of a container."""
    return [{"secretRef": {"name": name}} for name in as_variables(secrets)]


def secret_volumes(
    secrets: Sequence[SecretReference], data: Mapping[str, DataSource], mode: int = OF_GROUP
) -> list[dict[str, Any]]:
    """Return the volumes of a pod with entries as files."""
    return [
        {"name": _volume(name), "secret": {"secretName": name, "defaultMode": mode}} for name in _mounted(secrets, data)
    ]


def secret_mounts(secrets: Sequence[SecretReference], data: Mapping[str, DataSource]) -> list[dict[str, Any]]:
    """Return the mounts of those volumes."""
    return [
        {"name": _volume(name), "mountPath": f"{SECRETS_DIR}/{name}", "readOnly": True}
        for name in _mounted(secrets, data)
    ]


def _mounted(secrets: Sequence[SecretReference], data: Mapping[str, DataSource]) -> list[str]:
    of_data = (source.credentials for source in data.values() if source.credentials is not None)
    return sorted({*(reference.name for reference in as_files(secrets)), *of_data})


def _volume(name: str) -> str:
    """Return the name of a Secret's volume; a Secret's own name may be longer than that of a volume, or have dots."""
    return f"fairlead-secret-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
