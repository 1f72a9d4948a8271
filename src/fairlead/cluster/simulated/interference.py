"""Works out how fast pods go beside each other, from what was measured: factors, or the stages of their iterations.

Where two to four runs that share a device all say what their iterations are made of, the model of
``policy/gpu/stage_interleaving.py`` tells; otherwise the factor of their number does.
"""

from collections.abc import Iterable, Mapping

from fairlead.cluster.simulated.runs import Run
from fairlead.policy.gpu.stage_interleaving import MAX_MEMBERS, speeds
from fairlead.specs.simulation import Interference
from fairlead.state.snapshot import Pod


def pod_speed(run: Run, beside: Iterable[Run], pods: Mapping[str, Pod], measured: Interference) -> float:
    """Speed of a working pod as a share of its speed alone.

    Args:
        beside: The other pods of its node that work, of whatever run.
        pods: By uid, at least it and those.
    """
    own = pods[run.pod_uid].grant.gpu_uuids
    others = {other.workload_uid: other for other in beside if other.workload_uid != run.workload_uid}
    slowest = 1.0
    for uuid in own:
        members = [run, *(other for other in others.values() if uuid in pods[other.pod_uid].grant.gpu_uuids)]
        slowest = min(slowest, _on_device(members, measured))
    return slowest / measured.neighbour ** len(others)


def _on_device(members: list[Run], measured: Interference) -> float:
    """Speed of the first of those that share a device."""
    profiles = [profile for run in members if (profile := run.program.profile) is not None]
    if len(profiles) == len(members) and 2 <= len(members) <= MAX_MEMBERS:
        return min(1.0, speeds(profiles)[0])
    return 1.0 / measured.on_device(len(members))
