"""Renders a team on Kubernetes: a namespace with limits, role bindings and network policies.

The ResourceQuota is a limit that holds even without the operator. It counts GPUs by resource name, so each kind of GPU
is limited to the team's whole number; the operator enforces the sum and shares of GPUs. Another one limits the number
of objects, which every process that watches them holds in memory.

See decision 198.
"""

from dataclasses import field
from typing import Any

from fairlead.cluster.kubernetes import devices, names
from fairlead.cluster.kubernetes.kinds import plural, workload_kinds
from fairlead.cluster.kubernetes.manifests.crds import GROUP
from fairlead.cluster.kubernetes.manifests.network_policies import NetworkSettings, render_team_policies
from fairlead.cluster.kubernetes.manifests.roles import ROLES, render_binding
from fairlead.frozen import dataclass
from fairlead.specs.quantities import format_cpu
from fairlead.specs.side_containers import CPU_MILLI, MEMORY_BYTES
from fairlead.specs.team import Quota, Team

CRITICAL = "fairlead-critical"
OBJECT_COUNTS = "fairlead-objects"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSettings:
    """Settings of a cluster for all its teams.

    Attributes:
        pod_security: Pod Security level that the namespace enforces.
        cpu_milli: Default CPU request and limit of a container, in thousandths of a core.
        memory_bytes: The same for memory, in bytes.
    """

    pod_security: str = "restricted"
    cpu_milli: int = CPU_MILLI
    memory_bytes: int = MEMORY_BYTES
    network: NetworkSettings = field(default_factory=NetworkSettings)


def render_team(team: Team, settings: TeamSettings) -> list[dict[str, Any]]:
    """Render all objects of a team, the namespace first."""
    objects = [_namespace(team, settings), _limit_range(team, settings)]
    if (hard := _hard(team.quota)) is not None:
        objects.append(_in_namespace(team, "v1", "ResourceQuota", {"hard": hard}))
    objects.append(_critical_classes(team))
    objects += [render_binding(team.name, role, subjects(team, role)) for role in ROLES]
    objects += render_team_policies(team.name, settings.network)
    return [_owned(content, team) for content in objects]


def subjects(team: Team, role: str) -> list[dict[str, Any]]:
    """Return the subjects of a role: a group of a fixed name, and of ``user`` the team's members and groups."""
    users, groups = (team.members, team.groups) if role == "user" else ((), ())
    subjects = [
        {"kind": "Group", "name": f"fairlead:{team.name}:{role}"},
        *({"kind": "Group", "name": name} for name in groups),
        *({"kind": "User", "name": name} for name in users),
    ]
    return [{**subject, "apiGroup": "rbac.authorization.k8s.io"} for subject in subjects]


def _namespace(team: Team, settings: TeamSettings) -> dict[str, Any]:
    levels = {f"pod-security.kubernetes.io/{mode}": settings.pod_security for mode in ("enforce", "audit", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team.name, "labels": levels}}


def _limit_range(team: Team, settings: TeamSettings) -> dict[str, Any]:
    amounts = {"cpu": str(format_cpu(settings.cpu_milli)), "memory": str(settings.memory_bytes)}
    limits = [{"type": "Container", "default": dict(amounts), "defaultRequest": dict(amounts)}]
    return _in_namespace(team, "v1", "LimitRange", {"limits": limits})


def _critical_classes(team: Team) -> dict[str, Any]:
    """Render the quota by which no pod of a team evicts others by a class of Kubernetes' own components."""
    classes = ["system-cluster-critical", "system-node-critical"]
    scope = {"operator": "In", "scopeName": "PriorityClass", "values": classes}
    spec = {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [scope]}}
    quota = _in_namespace(team, "v1", "ResourceQuota", spec)
    quota["metadata"]["name"] = CRITICAL
    return quota


def render_object_counts(team: Team) -> dict[str, Any]:
    """Render the quota of workloads of each kind, finished ones included.

    The controller of quotas knows a new kind after 30 seconds. Where a quota counts a kind before that, the API server
    refuses every object of it for 5 minutes, as what is used is not known.
    """
    hard = {f"count/{plural(kind)}.{GROUP}": str(team.max_objects) for kind in workload_kinds()}
    quota = _in_namespace(team, "v1", "ResourceQuota", {"hard": hard})
    quota["metadata"]["name"] = OBJECT_COUNTS
    return _owned(quota, team)


def _hard(quota: Quota) -> dict[str, str] | None:
    hard: dict[str, str] = {}
    if quota.cpu_milli is not None:
        hard |= dict.fromkeys(("requests.cpu", "limits.cpu"), str(format_cpu(quota.cpu_milli)))
    if quota.memory_bytes is not None:
        hard |= dict.fromkeys(("requests.memory", "limits.memory"), str(quota.memory_bytes))
    if quota.gpu_milli is not None:
        hard |= {f"requests.{name}": str(quota.gpu_milli // 1000) for name in (*devices.WHOLE, devices.DRA)}
    return hard or None


def _in_namespace(team: Team, api: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": names.MANAGER, "namespace": team.name}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _owned(item: dict[str, Any], team: Team) -> dict[str, Any]:
    labels = {names.MANAGED_BY: names.MANAGER, names.TEAM: team.name}
    metadata = {**item["metadata"], "labels": {**item["metadata"].get("labels", {}), **labels}}
    return {**item, "metadata": metadata}
