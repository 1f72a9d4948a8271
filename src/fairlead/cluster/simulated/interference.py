"""Computes the speed of pods beside each other from measurements: factors, or the stages of their iterations.

If two to four runs that share a device all have profiles of their iterations, the model of
``policy/gpu/stage_interleaving.py`` applies; otherwise the factor for their number does.
"""

from collections.abc import Iterable, Mapping

from fairlead.cluster.simulated.runs import SimulatedPod
from fairlead.policy.gpu.stage_interleaving import MAX_MEMBERS, speeds
from fairlead.specs.simulation import Interference
from fairlead.state.snapshot import Pod


def pod_speed(
    run: SimulatedPod, beside: Iterable[SimulatedPod], pods: Mapping[str, Pod], measured: Interference
) -> float:
    """Return the speed of a working pod as a fraction of its speed alone.

    Args:
        beside: The other working pods of its node, of any run.
        pods: Pods by uid, at least this one and those.
    """
    own = pods[run.pod_uid].grant.gpu_uuids
    others = {other.workload_uid: other for other in beside if other.workload_uid != run.workload_uid}
    slowest = 1.0
    for uuid in own:
        members = [run, *(other for other in others.values() if uuid in pods[other.pod_uid].grant.gpu_uuids)]
        slowest = min(slowest, _on_device(members, measured))
    return slowest / measured.neighbour ** len(others)


def _on_device(members: list[SimulatedPod], measured: Interference) -> float:
    """Return the speed of the first of the pods that share a device."""
    profiles = [profile for run in members if (profile := run.program.profile) is not None]
    if len(profiles) == len(members) and 2 <= len(members) <= MAX_MEMBERS:
        return min(1.0, speeds(profiles)[0])
    return 1.0 / measured.on_device(len(members))
