"""Renders a team on Kubernetes: a namespace with limits, role bindings and network policies.

The ResourceQuota is a limit that holds even without the operator. It counts GPUs by resource name, so each kind of GPU
is limited to the team's whole number; the operator enforces the sum and shares of GPUs.
"""

from dataclasses import field
from typing import Any

from fairlead.cluster.kubernetes import devices, names
from fairlead.cluster.kubernetes.manifests.network_policies import NetworkSettings, render_team_policies
from fairlead.cluster.kubernetes.manifests.pods import MEMORY_BYTES_PER_RANK
from fairlead.cluster.kubernetes.manifests.roles import ROLES, render_binding
from fairlead.frozen import dataclass
from fairlead.specs.quantities import format_cpu
from fairlead.specs.team import Quota, Team


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSettings:
    """Settings of a cluster for all its teams.

    Attributes:
        pod_security: Pod Security level that the namespace enforces.
        cpu_milli: Default CPU request and limit of a container, in thousandths of a core.
        memory_bytes: The same for memory, in bytes.
    """

    pod_security: str = "restricted"
    cpu_milli: int = 1000
    memory_bytes: int = MEMORY_BYTES_PER_RANK
    network: NetworkSettings = field(default_factory=NetworkSettings)


def render_team(team: Team, settings: TeamSettings) -> list[dict[str, Any]]:
    """Render all objects of a team, the namespace first."""
    objects = [_namespace(team, settings), _limit_range(team, settings)]
    if (hard := _hard(team.quota)) is not None:
        objects.append(_in_namespace(team, "v1", "ResourceQuota", {"hard": hard}))
    objects += [render_binding(team.name, role, subjects(team, role)) for role in ROLES]
    objects += render_team_policies(team.name, settings.network)
    return [_owned(each, team) for each in objects]


def subjects(team: Team, role: str) -> list[dict[str, Any]]:
    """Return the subjects of a role: members are users, and each role has a group of the cluster's directory."""
    group = {"kind": "Group", "name": f"fairlead:{team.name}:{role}"}
    members = team.members if role == "user" else ()
    found = [group, *({"kind": "User", "name": member} for member in members)]
    return [{**each, "apiGroup": "rbac.authorization.k8s.io"} for each in found]


def _namespace(team: Team, settings: TeamSettings) -> dict[str, Any]:
    levels = {f"pod-security.kubernetes.io/{mode}": settings.pod_security for mode in ("enforce", "audit", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team.name, "labels": levels}}


def _limit_range(team: Team, settings: TeamSettings) -> dict[str, Any]:
    asked = {"cpu": str(format_cpu(settings.cpu_milli)), "memory": str(settings.memory_bytes)}
    limits = [{"type": "Container", "default": dict(asked), "defaultRequest": dict(asked)}]
    return _in_namespace(team, "v1", "LimitRange", {"limits": limits})


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
