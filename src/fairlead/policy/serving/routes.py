"""Tells the gateway where requests go: of endpoints, their revisions and their replicas that serve."""

from collections.abc import Mapping
from typing import Any, cast

from fairlead.policy.kinds.parents import families_of
from fairlead.policy.kinds.serving import detail_of, failure_of, replicas_of
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import Snapshot, Workload


def public_names(snapshot: Snapshot) -> dict[str, str]:
    """Return the names by which endpoints are asked for, by uid: their own; of a second team's, with the team's."""
    taken: dict[str, str] = {}
    for parent in sorted(_endpoints(snapshot), key=lambda each: (each.created_at, each.uid)):
        name = parent.spec.name
        while name in taken.values():
            name = f"{parent.spec.team}-{name}"
        taken[parent.uid] = name
    return taken


def routes(snapshot: Snapshot, urls: Mapping[str, str]) -> dict[str, Any]:
    """Return the routes of all endpoints that are not over.

    Args:
        urls: Of pods that listen, by uid.
    """
    names, families = public_names(snapshot), families_of(snapshot)
    pods = {pod.workload_uid: pod for pod in snapshot.pods if pod.ready and not pod.phase.is_final}
    services = {}
    for parent in _endpoints(snapshot):
        family, name = families[parent.uid], names[parent.uid]
        serving: dict[str, list[dict[str, str]]] = {}
        for each in replicas_of(detail_of(parent), family):
            pod = pods.get(family.children[each.name].uid) if each.ready else None
            if pod is not None and pod.uid in urls:
                serving.setdefault(f"r{each.revision}", []).append({"id": pod.uid, "url": urls[pod.uid]})
        spec = parent.spec
        services[name] = {
            "path": f"/{name}",
            "hosts": [f"{name}.localhost"],
            "keys": [],
            "timeout_s": spec.timeout_s,
            "idempotent": spec.idempotent,
            "max_concurrency": spec.max_concurrency,
            "max_queue": spec.max_queue,
            "revisions": [
                {"name": revision, "weight": len(found), "shadow": False, "replicas": found}
                for revision, found in sorted(serving.items())
            ],
            "failure": failure_of(parent, family.children),
        }
    return {"version": 1, "services": services}


def _endpoints(snapshot: Snapshot) -> list[Workload[Serving]]:
    found = [each for each in snapshot.parents if isinstance(each.spec, Serving) and not each.status.phase.is_final]
    return cast("list[Workload[Serving]]", found)
