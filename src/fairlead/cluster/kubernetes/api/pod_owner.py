"""Determines the run that a pod names as its owner, where owner, labels and name are such as Fairlead gives them. Pure.

All three are written by whoever creates the pod. Only with the namespace, and the uid that a run of that name has, do
they make it a pod of the run; in the run's own namespace whoever may create pods can still forge one.

See decision 154.
"""

import sys
from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.kinds import is_leaf_kind
from fairlead.frozen import dataclass

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOwner:
    """A run as a pod names it.

    Attributes:
        key: Kind, and namespace and name.
        is_borne_out: The pod's name is one that Fairlead gives to pods of such a run, or its controller one of the
            run's engine. Otherwise it is nobody's.
    """

    uid: str
    key: tuple[str, str]
    is_borne_out: bool


def pod_owner(metadata: Object) -> PodOwner | None:
    """Return the run that a pod names; None if it names none."""
    labels, owner = metadata.get("labels") or {}, names.controller_of(metadata)
    attempt = _whole(labels.get(names.ATTEMPT))
    if names.ENGINE in labels and names.RUN_UID in labels:
        run = str(labels.get(names.RUN) or "")
        is_made = bool(run) and names.is_pod_maker(owner, labels[names.ENGINE], run, attempt)
        return PodOwner(uid=labels[names.RUN_UID], key=_key(metadata, "Training", run), is_borne_out=is_made)
    if names.group_of(owner) != names.DOMAIN or not is_leaf_kind(owner.get("kind")) or names.ROOM_FOR in labels:
        return None
    run, index = str(owner.get("name")), _whole(labels.get(names.INDEX))
    name = names.pod_name_of(run, attempt, index, _whole(labels.get(names.REPLACEMENT)))
    is_named = metadata["name"] == name
    return PodOwner(uid=str(owner.get("uid")), key=_key(metadata, owner["kind"], run), is_borne_out=is_named)


def is_pod_of(metadata: Object, uid: str) -> bool:
    """Return whether a pod of a run's namespace is one of the run with this uid."""
    owner = pod_owner(metadata)
    return owner is not None and owner.is_borne_out and owner.uid == uid


def placeholder_owner(content: Object) -> PodOwner | None:
    """Return the run or Pool whose placeholder a pod is; None if it is not one.

    It is named for its owner, and has the priority with which it gives way to every other pod, and at once. That owner
    has it only if it is here, with that uid.
    """
    metadata = content["metadata"]
    labels, owner = metadata.get("labels") or {}, names.controller_of(metadata)
    kind, name = owner.get("kind"), str(owner.get("name"))
    if names.group_of(owner) != names.DOMAIN or names.ROOM_FOR not in labels:
        return None
    if kind != "Pool" and not is_leaf_kind(kind):
        return None
    of = names.standby_name(name) if kind == "Pool" else name
    is_named = metadata["name"] == names.placeholder_name_of(of, _whole(labels.get(names.INDEX)))
    spec = content["spec"]
    if not is_named or spec.get("priorityClassName") != names.PLACEHOLDER_CLASS:
        return None
    if spec.get("terminationGracePeriodSeconds") not in (0, 1):  # kube-scheduler would wait for it
        return None
    return PodOwner(uid=str(owner.get("uid")), key=_key(metadata, str(kind), name), is_borne_out=True)


def _key(metadata: Object, kind: str, name: str) -> tuple[str, str]:
    return sys.intern(kind), sys.intern(f"{metadata['namespace']}/{name}")


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
