"""Counts the requests of containers that an overlay puts beside the ranks, as kube-scheduler does."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fairlead.specs.overlay import Overlay
from fairlead.specs.quantities import format_cpu, parse_cpu, parse_size
from fairlead.specs.resources import SideRequests

CPU_MILLI, MEMORY_BYTES = 1000, 4 * 1024**3
"""Requests and limits of a container that has none; those that a Team's LimitRange gives."""
SIDECAR = "Always"
"""The ``restartPolicy`` of an init container that runs as long as the ranks."""
_DEFAULTS = {"cpu": str(format_cpu(CPU_MILLI)), "memory": str(MEMORY_BYTES)}


@lru_cache(maxsize=1024)
def side_requests(overlay: Overlay) -> SideRequests | None:
    """Return the requests of an overlay's containers; None if it has none."""
    containers = (overlay.pod.get("spec") or {}).get("initContainers")
    if not containers:
        return None
    cpu = memory = first_cpu = first_memory = 0
    for container in containers:
        requests = side_resources(container.get("resources") or {})["requests"]
        own_cpu, own_memory = parse_cpu(str(requests["cpu"])), parse_size(str(requests["memory"]))
        if container.get("restartPolicy") == SIDECAR:
            cpu, memory = cpu + own_cpu, memory + own_memory
        else:
            first_cpu, first_memory = max(first_cpu, cpu + own_cpu), max(first_memory, memory + own_memory)
    return SideRequests(
        cpu_milli=cpu, memory_bytes=memory, first_cpu_milli=first_cpu, first_memory_bytes=first_memory
    )  # fmt: skip


def side_resources(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container's resources with a request and a limit of cores and memory: where one is missing, the other.

    Without either both are the defaults, so that what is counted is what the pod has, in any namespace.
    """
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    for name, default in _DEFAULTS.items():
        requested, most = requests.get(name), limits.get(name)
        requests[name] = next((value for value in (requested, most) if value is not None), default)
        limits[name] = next((value for value in (most, requested) if value is not None), default)
    return {**resources, "requests": requests, "limits": limits}
