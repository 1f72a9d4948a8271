"""Lists the fields of a pod that can be laid over that of Fairlead, in Kubernetes' own words.

Left out on purpose: what reaches the host (host paths, namespaces and ports, privileged containers), and what Fairlead
itself decides (commands of the ranks, host names, restarts, grace).
"""

from collections.abc import Mapping
from enum import StrEnum

from fairlead.frozen import dataclass


class Leaf(StrEnum):
    """A single value; the words are those of error messages."""

    TEXT = "text"
    NAME = "a name"
    OBJECT = "the name of an object"
    WHOLE = "a whole number"
    FLAG = "true or false"
    QUANTITY = "a quantity, such as 1 or 2Gi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """Any names, each with a value of one kind."""

    values: Leaf = Leaf.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """At most ``most`` items; ``merge`` is the field by which one is laid over the one there is, None to add it."""

    item: "Branch"
    merge: str | None = None
    most: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTree:
    """An object with known fields."""

    fields: "Mapping[str, Branch]"
    required: tuple[str, ...] = ()


Branch = Leaf | Map | Items | FieldTree


T, N, OBJ, W, F, Q = Leaf.TEXT, Leaf.NAME, Leaf.OBJECT, Leaf.WHOLE, Leaf.FLAG, Leaf.QUANTITY
LABELS = Map()
_NAME = FieldTree(fields={"name": OBJ}, required=("name",))
_KEY = FieldTree(fields={"name": OBJ, "key": T, "optional": F}, required=("name", "key"))
_FILES = Items(item=FieldTree(fields={"key": T, "path": T, "mode": W}, required=("key", "path")))
_EXPRESSIONS = Items(
    item=FieldTree(fields={"key": T, "operator": T, "values": Items(item=T)}, required=("key", "operator"))
)
_SELECTOR = FieldTree(fields={"matchLabels": LABELS, "matchExpressions": _EXPRESSIONS})
_NODE_TERM = FieldTree(fields={"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS})
_POD_TERM = FieldTree(
    fields={"labelSelector": _SELECTOR, "topologyKey": T, "namespaces": Items(item=OBJ)}, required=("topologyKey",)
)
_POD_AFFINITY = FieldTree(
    fields={
        "requiredDuringSchedulingIgnoredDuringExecution": Items(item=_POD_TERM),
        "preferredDuringSchedulingIgnoredDuringExecution": Items(
            item=FieldTree(fields={"weight": W, "podAffinityTerm": _POD_TERM}, required=("weight", "podAffinityTerm"))
        ),
    }
)
_AFFINITY = FieldTree(
    fields={
        "nodeAffinity": FieldTree(
            fields={
                "requiredDuringSchedulingIgnoredDuringExecution": FieldTree(
                    fields={"nodeSelectorTerms": Items(item=_NODE_TERM)}, required=("nodeSelectorTerms",)
                ),
                "preferredDuringSchedulingIgnoredDuringExecution": Items(
                    item=FieldTree(fields={"weight": W, "preference": _NODE_TERM}, required=("weight", "preference"))
                ),
            }
        ),
        "podAffinity": _POD_AFFINITY,
        "podAntiAffinity": _POD_AFFINITY,
    }
)
_RESOURCES = FieldTree(
    fields={"requests": Map(values=Q), "limits": Map(values=Q), "claims": Items(item=_NAME, merge="name")}
)
_CLAIM = FieldTree(
    fields={
        "metadata": FieldTree(fields={"labels": LABELS, "annotations": LABELS}),
        "spec": FieldTree(
            fields={"accessModes": Items(item=T), "storageClassName": OBJ, "volumeMode": T, "resources": _RESOURCES},
            required=("accessModes", "resources"),
        ),
    },
    required=("spec",),
)
_VOLUME = FieldTree(
    fields={
        "name": N,
        "persistentVolumeClaim": FieldTree(fields={"claimName": OBJ, "readOnly": F}, required=("claimName",)),
        "ephemeral": FieldTree(fields={"volumeClaimTemplate": _CLAIM}, required=("volumeClaimTemplate",)),
        "emptyDir": FieldTree(fields={"medium": T, "sizeLimit": Q}),
        "configMap": FieldTree(
            fields={"name": OBJ, "items": _FILES, "defaultMode": W, "optional": F}, required=("name",)
        ),
        "secret": FieldTree(
            fields={"secretName": OBJ, "items": _FILES, "defaultMode": W, "optional": F}, required=("secretName",)
        ),
        "nfs": FieldTree(fields={"server": T, "path": T, "readOnly": F}, required=("server", "path")),
        "csi": FieldTree(
            fields={
                "driver": T, "fsType": T, "readOnly": F, "volumeAttributes": LABELS, "nodePublishSecretRef": _NAME
            },
            required=("driver",),
        ),
    },
    required=("name",),
)  # fmt: skip
_SECURITY: dict[str, Branch] = {"runAsUser": W, "runAsGroup": W, "runAsNonRoot": F}
_CONTAINER: dict[str, Branch] = {
    "name": N,
    "imagePullPolicy": T,
    "env": Items(
        merge="name",
        item=FieldTree(
            fields={
                "name": N,
                "value": T,
                "valueFrom": FieldTree(
                    fields={
                        "secretKeyRef": _KEY,
                        "configMapKeyRef": _KEY,
                        "fieldRef": FieldTree(fields={"fieldPath": T}, required=("fieldPath",)),
                    }
                ),
            },
            required=("name",),
        ),
    ),
    "envFrom": Items(
        item=FieldTree(
            fields={
                "prefix": T,
                "secretRef": FieldTree(fields={"name": OBJ, "optional": F}, required=("name",)),
                "configMapRef": FieldTree(fields={"name": OBJ, "optional": F}, required=("name",)),
            }
        )
    ),
    "resources": _RESOURCES,
    "volumeMounts": Items(
        merge="mountPath",
        item=FieldTree(
            fields={"name": N, "mountPath": N, "subPath": T, "readOnly": F}, required=("name", "mountPath")
        ),
    ),
    "securityContext": FieldTree(
        fields={
            **_SECURITY,
            "readOnlyRootFilesystem": F,
            "capabilities": FieldTree(fields={"add": Items(item=T), "drop": Items(item=T)}),
        }
    ),
}  # fmt: skip

POD = FieldTree(
    fields={
        "metadata": FieldTree(fields={"labels": LABELS, "annotations": LABELS}),
        "spec": FieldTree(
            fields={
                "nodeSelector": LABELS,
                "tolerations": Items(
                    item=FieldTree(fields={"key": T, "operator": T, "value": T, "effect": T, "tolerationSeconds": W})
                ),
                "affinity": _AFFINITY,
                "serviceAccountName": OBJ,
                "automountServiceAccountToken": F,
                "imagePullSecrets": Items(item=_NAME, merge="name"),
                "priorityClassName": OBJ,
                "runtimeClassName": OBJ,
                "schedulerName": OBJ,
                "dnsPolicy": T,
                "securityContext": FieldTree(
                    fields={**_SECURITY, "fsGroup": W, "fsGroupChangePolicy": T, "supplementalGroups": Items(item=W)}
                ),
                "resourceClaims": Items(
                    merge="name",
                    item=FieldTree(
                        fields={"name": N, "resourceClaimName": OBJ, "resourceClaimTemplateName": OBJ},
                        required=("name",),
                    ),
                ),
                "volumes": Items(item=_VOLUME, merge="name"),
                "containers": Items(item=FieldTree(fields=_CONTAINER, required=("name",)), merge="name", most=1),
                "initContainers": Items(
                    merge="name",
                    item=FieldTree(
                        fields={
                            **_CONTAINER,
                            "image": T,
                            "command": Items(item=T),
                            "args": Items(item=T),
                            "workingDir": T,
                            "restartPolicy": T,
                        },
                        required=("name", "image"),
                    ),
                ),
            }
        ),
    }
)
