"""Classifies every field of an overlay by who may set it; a field without a class is a mistake that a test reports.

Anybody who may create runs may write an overlay, and the operator creates the pod with its own rights. A field that
gives a pod more than its namespace has needs a requester with a right to that, or an installation that allows it.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType

from fairlead.specs.pod_fields import POD, Branch, FieldTree, Items, Map


class FieldAccess(StrEnum):
    """Classes of people who may set a field.

    Attributes:
        ANYONE: Everybody who may create runs.
        REQUESTER: Requesters with a right to what the field does, or the verb ``overlay`` on trainings.fairlead.dev.
        INSTALLATION: Nobody, except for the values that ``fairlead install --allow-overlay`` lists.
        SPEC: Nobody for resources that Fairlead counts: only the spec's own keys set these.
    """

    ANYONE = "anyone"
    REQUESTER = "requester"
    INSTALLATION = "installation"
    SPEC = "spec"


_PROJECTED_FILE_FIELDS = ("items.*.key", "items.*.path", "items.*.mode", "defaultMode", "optional")
_SELECTOR_EXPRESSION_FIELDS = ("key", "operator", "values.*")
_PREFERRED, _REQUIRED = (
    "preferredDuringSchedulingIgnoredDuringExecution",
    "requiredDuringSchedulingIgnoredDuringExecution",
)
_NODE_TERMS = (f"{_REQUIRED}.nodeSelectorTerms.*", f"{_PREFERRED}.*.preference")
_POD_TERMS = tuple(
    f"spec.affinity.{kind}.{term}"
    for kind in ("podAffinity", "podAntiAffinity")
    for term in (f"{_REQUIRED}.*", f"{_PREFERRED}.*.podAffinityTerm")
)
_VOLUME_CLAIM_TEMPLATE = "spec.volumes.*.ephemeral.volumeClaimTemplate"
_CONTAINERS = ("spec.containers.*", "spec.initContainers.*")

_ANYONE = (
    # Selectors and notes; Fairlead's own labels, and annotations that choose security profiles, are refused by name.
    "metadata.labels.*", "metadata.annotations.*",
    # Placement, for which every pod of the namespace has the same choice.
    "spec.nodeSelector.*",
    *(f"spec.tolerations.*.{name}" for name in ("key", "operator", "value", "effect", "tolerationSeconds")),
    *(
        f"spec.affinity.nodeAffinity.{term}.{part}.*.{name}"
        for term in _NODE_TERMS for part in ("matchExpressions", "matchFields") for name in _SELECTOR_EXPRESSION_FIELDS
    ),
    f"spec.affinity.nodeAffinity.{_PREFERRED}.*.weight",
    *(f"spec.affinity.{kind}.{_PREFERRED}.*.weight" for kind in ("podAffinity", "podAntiAffinity")),
    *(
        f"{term}.{name}" for term in _POD_TERMS
        for name in (
            "labelSelector.matchLabels.*", "topologyKey",
            *(f"labelSelector.matchExpressions.*.{part}" for part in _SELECTOR_EXPRESSION_FIELDS),
        )
    ),
    # Kubelet alone reads it, and sends it to no registry but the one that it names.
    "spec.imagePullSecrets.*.name",
    # Administrators define these for everybody.
    "spec.runtimeClassName", "spec.schedulerName", "spec.dnsPolicy",
    # Groups of files, also the group 0, give nothing beyond the pod's own volumes.
    "spec.securityContext.runAsGroup", "spec.securityContext.fsGroup", "spec.securityContext.fsGroupChangePolicy",
    "spec.securityContext.supplementalGroups.*",
    # A name within the pod; what it refers to is in the field beside it.
    "spec.volumes.*.name",
    # Data of the namespace, whose members share it, and volumes of the pod's own, which the namespace's quota counts.
    "spec.volumes.*.persistentVolumeClaim.claimName", "spec.volumes.*.persistentVolumeClaim.readOnly",
    f"{_VOLUME_CLAIM_TEMPLATE}.metadata.labels.*", f"{_VOLUME_CLAIM_TEMPLATE}.metadata.annotations.*",
    *(
        f"{_VOLUME_CLAIM_TEMPLATE}.spec.{name}" for name in (
            "accessModes.*", "storageClassName", "volumeMode", "resources.requests.*", "resources.limits.*",
            "resources.claims.*.name",
        )
    ),
    "spec.volumes.*.emptyDir.medium", "spec.volumes.*.emptyDir.sizeLimit",
    *(
        f"{container}.{name}" for container in _CONTAINERS for name in (
            "name", "imagePullPolicy", "env.*.name", "env.*.value", "env.*.valueFrom.fieldRef.fieldPath",
            "envFrom.*.prefix",
            "resources.claims.*.name",  # one of `resourceClaims`
            "volumeMounts.*.name", "volumeMounts.*.mountPath", "volumeMounts.*.subPath", "volumeMounts.*.readOnly",
            "securityContext.runAsGroup", "securityContext.readOnlyRootFilesystem",
            "securityContext.capabilities.drop.*",
        )
    ),
    # A program beside the ranks, as contained as they are.
    *(f"spec.initContainers.*.{name}" for name in (
        "image", "command.*", "args.*", "workingDir", "restartPolicy",
    )),
)  # fmt: skip
_REQUESTER = (
    # The pod acts as the account, also without a token: clouds give credentials by its name.
    "spec.serviceAccountName", "spec.automountServiceAccountToken",
    # The pod reads them.
    *(f"spec.volumes.*.{name}" for name in ("secret.secretName", "configMap.name")),
    *(f"spec.volumes.*.{kind}.{name}" for kind in ("secret", "configMap") for name in _PROJECTED_FILE_FIELDS),
    *(
        f"{container}.{name}" for container in _CONTAINERS for kind in ("secret", "configMap") for name in (
            *(f"env.*.valueFrom.{kind}KeyRef.{part}" for part in ("name", "key", "optional")),
            *(f"envFrom.*.{kind}Ref.{part}" for part in ("name", "optional")),
        )
    ),
    # The node mounts it, past all network policies, and the pod chooses the user ids.
    *(f"spec.volumes.*.nfs.{name}" for name in ("server", "path", "readOnly")),
    *(f"spec.volumes.*.csi.{name}" for name in (
        "driver", "fsType", "readOnly", "volumeAttributes.*", "nodePublishSecretRef.name",
    )),
    # Devices that neither queue nor quota counts.
    *(f"spec.resourceClaims.*.{name}" for name in ("name", "resourceClaimName", "resourceClaimTemplateName")),
    # An anti-affinity keeps pods of these namespaces off a node.
    *(f"{term}.namespaces.*" for term in _POD_TERMS),
)  # fmt: skip
_INSTALLATION = (
    "spec.priorityClassName", "spec.securityContext.runAsUser", "spec.securityContext.runAsNonRoot",
    *(
        f"{container}.securityContext.{name}" for container in _CONTAINERS
        for name in ("runAsUser", "runAsNonRoot", "capabilities.add.*")
    ),
)  # fmt: skip
_SPEC = tuple(f"{container}.resources.{part}.*" for container in _CONTAINERS for part in ("requests", "limits"))

ACCESS: Mapping[str, FieldAccess] = MappingProxyType(
    {
        path: access
        for access, paths in (
            (FieldAccess.ANYONE, _ANYONE),
            (FieldAccess.REQUESTER, _REQUESTER),
            (FieldAccess.INSTALLATION, _INSTALLATION),
            (FieldAccess.SPEC, _SPEC),
        )
        for path in paths
    }
)
"""The class of each field, by its path; ``*`` stands for any item or name."""


def field_paths(branch: Branch = POD, path: str = "") -> Iterator[str]:
    """Yield the path of each field of an overlay that has a single value."""
    if isinstance(branch, FieldTree):
        for name, inner in branch.fields.items():
            yield from field_paths(inner, f"{path}.{name}" if path else name)
    elif isinstance(branch, Items):
        yield from field_paths(branch.item, f"{path}.*")
    else:
        yield f"{path}.*" if isinstance(branch, Map) else path
