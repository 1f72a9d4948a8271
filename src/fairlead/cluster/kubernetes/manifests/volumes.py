"""Finds the volume of a run that contains a directory of its pods."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from fairlead.specs.overlay import RANKS
from fairlead.specs.training import Training

FLEETING = frozenset({"emptyDir", "ephemeral", "configMap", "secret"})
"""Kinds of volumes that end with their pod, or that pods cannot write to."""


def volume_at(spec: Training, path: str) -> str | None:
    """Return the spec's volume that contains a directory of its pods; None if it would end with the pod."""
    mounted = mount_at(spec, path)
    return None if mounted is None else str(mounted[0]["name"])


def mount_at(spec: Training, path: str, *, to_write: bool = True) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return the mount that contains a directory of a spec's pods, and its volume; None if it would end with the pod.

    Args:
        to_write: Ignore mounts that are read-only.
    """
    pod: dict[str, Any] = spec.kubernetes.pod.get("spec") or {}
    lasting = {
        volume["name"]: volume
        for volume in pod.get("volumes") or ()
        if not FLEETING & volume.keys() and not (to_write and any(_is_read_only(kind) for kind in volume.values()))
    }
    mounts = [
        mount
        for container in pod.get("containers") or ()
        if container["name"] == RANKS
        for mount in container.get("volumeMounts") or ()
        if PurePosixPath(path).is_relative_to(mount["mountPath"])
    ]
    nearest = max(mounts, key=lambda mount: len(PurePosixPath(mount["mountPath"]).parts), default=None)
    if nearest is None or nearest["name"] not in lasting or (to_write and nearest.get("readOnly")):
        return None
    return nearest, lasting[nearest["name"]]


def _is_read_only(kind: Any) -> bool:
    return isinstance(kind, dict) and bool(kind.get("readOnly"))
