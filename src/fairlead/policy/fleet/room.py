"""Extracts a cluster's room from its snapshot: nodes, what is held until when, and pending runs."""

from collections import defaultdict
from collections.abc import Container, Mapping

from fairlead.policy.queue.durations import durations_of
from fairlead.state.fleets import HeldNode, OtherRun, Room
from fairlead.state.snapshot import WHOLE_MILLI, Gpu, Intent, Phase, Pod, Snapshot

# The assumed duration of a run without limit, estimate or earlier run of its name.
UNKNOWN_S = 4 * 3600.0


def room_of(snapshot: Snapshot, own: Container[str], now: float) -> Room:
    """Return the room of a cluster.

    Args:
        own: The uids of the workloads there that are copies of the fleet's runs.
    """
    durations = durations_of(snapshot.completed)
    pods: dict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        if not pod.phase.is_final:
            pods[pod.workload_uid].append(pod)
    gpus = {gpu.uuid: gpu for node in snapshot.nodes for gpu in node.gpus}
    held, others = [], []
    for workload in snapshot.workloads:
        run_pods = pods.pop(workload.uid, [])
        until = min(durations.ends_at(workload, run_pods, now), now + UNKNOWN_S) if run_pods else now
        held += [_held(pod, gpus, until) for pod in run_pods]
        waits = not run_pods and workload.intent is Intent.RUN and workload.status.phase is Phase.PENDING
        if waits and workload.uid not in own:
            takes_s = min(durations.length_s(workload, now), UNKNOWN_S)
            others.append(OtherRun(spec=workload.spec, since=workload.status.since, takes_s=takes_s))
    # The rest belongs to no workload here: its end is unknown.
    held += [_held(pod, gpus, now + UNKNOWN_S) for group in pods.values() for pod in group]
    nodes = tuple(node for node in snapshot.nodes if node.ready and node.closed is None and node.leaving is None)
    return Room(nodes=nodes, held=tuple(held), others=tuple(others))


def _held(pod: Pod, gpus: Mapping[str, Gpu], until: float) -> HeldNode:
    grant = pod.grant
    devices = [gpus[uuid] for uuid in grant.gpu_uuids if uuid in gpus]
    milli = sum(min(grant.gpu_milli, WHOLE_MILLI) if gpu.divisible else gpu.milli for gpu in devices)
    return HeldNode(node=pod.node, until=until, gpus=milli / 1000, cpus=grant.cpu_milli / 1000)
