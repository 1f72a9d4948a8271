"""The objects with which a control plane of Karmada gives each Training to one of its member clusters.

Nothing of Fairlead runs on that control plane. Karmada copies a Training and the files that came with it to a member,
whose operator carries it out, and copies the status back.
"""

from typing import Any

from fairlead.cluster.kubernetes.manifests.crds import definition
from fairlead.cluster.kubernetes.manifests.roles import render_user_roles
from fairlead.cluster.kubernetes.manifests.workdir import MOST_PARTS, PART_PREFIX, WORKDIR
from fairlead.cluster.kubernetes.names import KARMADA_POLICIES, KARMADA_POLICY, MANAGED_BY, MANAGER
from fairlead.specs.keys import API_VERSION

KIND = "Training"
_METADATA = {"name": KARMADA_POLICY, "labels": {MANAGED_BY: MANAGER}}

_REPLICAS = """\
function GetReplicas(training)
  local spec = training.spec
  local resources = spec.resources or {}
  local request = {}
  if resources.cpu ~= nil and string.find(tostring(resources.cpu), "^%d+%.?%d*m?$") then
    request["cpu"] = tostring(resources.cpu)
  end
  if resources.memory ~= nil and string.find(tostring(resources.memory), "^%d+[MGTP]i?$") then
    request["memory"] = resources.memory
  end
  local gpus = tostring(resources.gpu or "")
  local count = string.match(gpus, "^%d+$") or string.match(gpus, ":(%d+)$")
  if count == nil and string.find(gpus, "^%a[^:]*$") then
    count = "1"
  end
  if count ~= nil then
    request["nvidia.com/gpu"] = count
  end
  local nodes = tonumber(string.match(tostring(spec.nodes or 1), "^%d+")) or 1
  return nodes, { resourceRequest = request }
end
"""
"""Tells how many nodes a run needs, so that it goes to the member with the most room for them."""

_REFLECTION = """\
function ReflectStatus(training)
  if training.status == nil or training.metadata.deletionTimestamp ~= nil then
    return {}
  end
  return training.status
end
"""
"""Copies the status; that of a run which is being deleted is not the status of a later run of its name."""

_AGGREGATION = """\
function AggregateStatus(training, members)
  local status = {}
  for _, member in ipairs(members or {}) do
    if member.status ~= nil and member.status.phase ~= nil then
      status = member.status
    elseif member.appliedMessage ~= nil and member.appliedMessage ~= "" then
      status = { phase = "Pending", message = member.appliedMessage }
    end
    status.cluster = member.clusterName
  end
  training.status = status
  return training
end
"""

_DEPENDENCIES = """\
function GetDependencies(training)
  local objects = {}
  local annotations = training.metadata.annotations or {}
  local digest, parts = string.match(annotations["WORKDIR"] or "", "^(%w+)-(%d+)$")
  if digest == nil or tonumber(parts) > MOST_PARTS then
    return objects
  end
  for part = 0, tonumber(parts) - 1 do
    objects[#objects + 1] = {
      apiVersion = "v1",
      kind = "ConfigMap",
      namespace = training.metadata.namespace,
      name = "PREFIX" .. digest .. "-" .. tostring(part),
    }
  end
  return objects
end
"""
"""Names the ConfigMaps with the working directory of a run, which go where it goes."""


def render_karmada() -> list[dict[str, Any]]:
    """Return the objects in the order in which they are applied."""
    return [definition(KIND), *render_user_roles(), *render_dispatch()]


def render_dispatch() -> list[dict[str, Any]]:
    """Return the objects of Karmada's own kinds."""
    return [_interpreter(), _policy()]


def _interpreter() -> dict[str, Any]:
    """Render how Karmada reads a Training."""
    dependencies = _DEPENDENCIES.replace("WORKDIR", WORKDIR).replace("PREFIX", PART_PREFIX)
    scripts = {
        "replicaResource": _REPLICAS,
        "statusReflection": _REFLECTION,
        "statusAggregation": _AGGREGATION,
        "dependencyInterpretation": dependencies.replace("MOST_PARTS", str(MOST_PARTS)),
    }
    return {
        "apiVersion": "config.karmada.io/v1alpha1",
        "kind": "ResourceInterpreterCustomization",
        "metadata": _METADATA,
        "spec": {
            "target": {"apiVersion": API_VERSION, "kind": KIND},
            "customizations": {name: {"luaScript": script} for name, script in scripts.items()},
        },
    }


def _policy() -> dict[str, Any]:
    """Render the policy: each run in one member, which keeps it for as long as it is out of reach.

    Without the tolerations Karmada would give a run to another member after some minutes, although it may still be
    running, and would run it twice.
    """
    tolerations = [
        {"key": f"cluster.karmada.io/{taint}", "operator": "Exists", "effect": "NoExecute"}
        for taint in ("not-ready", "unreachable")
    ]
    return {
        "apiVersion": f"{KARMADA_POLICIES}/v1alpha1",
        "kind": "ClusterPropagationPolicy",
        "metadata": _METADATA,
        "spec": {
            "resourceSelectors": [{"apiVersion": API_VERSION, "kind": KIND}],
            "propagateDeps": True,
            "placement": {
                "clusterTolerations": tolerations,
                "spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}],
                "replicaScheduling": {"replicaSchedulingType": "Duplicated"},
            },
        },
    }
