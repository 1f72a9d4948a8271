"""Finds the pod of a rank, for commands that connect to it."""

from collections.abc import Sequence

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.api.pod_owner import is_pod_of
from fairlead.cluster.kubernetes.manifests.pod_environment import POD_DIR, RUNTIME
from fairlead.cluster.kubernetes.names import segment
from fairlead.errors import Conflict
from fairlead.frozen import dataclass
from fairlead.specs.overlay import RANKS
from fairlead.state.snapshot import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPod:
    """A running pod of a gang.

    Attributes:
        path: Its path on the API server.
        python: The interpreter in its image.
        container: The ranks' container.
    """

    name: str
    path: str
    node: str
    python: str
    container: str = RANKS


def index_of(run: Workload, rank: int) -> int:
    """Return the index in the gang of a rank's pod.

    Raises:
        Conflict: The run has no such rank.
    """
    if rank >= run.gang.world_size:
        last = run.gang.world_size - 1
        raise Conflict(f"{run.spec.name} has no rank {rank}; its ranks are {f'0 to {last}' if last else '0 alone'}.")
    return rank // run.spec.ranks_on_each_node


def member_of(client: Client, run: Workload, rank: int) -> RankPod:
    """Return the running pod of a rank.

    Raises:
        Conflict: There is no such rank, or its pod is not running.
    """
    index = index_of(run, rank)
    content = _pod_of(client, run, index)
    if content is None:
        state = f"{run.spec.name} is {run.status.phase.value}: {run.status.reason.message}"
        raise Conflict(f"Rank {rank} has no pod now; {state}.")
    name, phase = str(content["metadata"]["name"]), (content.get("status") or {}).get("phase")
    if phase != "Running":
        raise Conflict(f"Pod {name} of rank {rank} is {phase}; only running pods can be reached.")
    spec, container = content["spec"], names.container_of(run.spec.engine)
    ranks: Object = next((candidate for candidate in spec["containers"] if candidate["name"] == container), {})
    python = next(iter(ranks.get("command") or ()), "python3")
    path = f"/api/v1/namespaces/{segment(run.spec.team)}/pods/{segment(name)}"
    return RankPod(name=name, path=path, node=spec.get("nodeName") or "", python=python, container=container)


def _pod_of(client: Client, run: Workload, index: int) -> Object | None:
    """Return the pod of an index in the gang; engines choose their own pod names."""
    place = f"/api/v1/namespaces/{segment(run.spec.team)}/pods"
    if run.spec.engine is None:
        try:
            name = names.pod_name(run.spec, run.status.attempt, index, run.status.replacement(index))
            return client.get(f"{place}/{segment(name)}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None
    query = {"labelSelector": f"{names.RUN_UID}={run.uid},{names.ATTEMPT}={run.status.attempt},{names.ENGINE}"}
    pods = client.items(place, query)
    own = (pod for pod in pods if is_pod_of(pod["metadata"], run.uid))
    return next((pod for pod in own if names.index_in_gang(pod["metadata"]["labels"]) == index), None)


def as_rank(member: RankPod, rank: int, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command to execute in the member's container so that it has the rank's environment."""
    return (member.python, RUNTIME, "enter", POD_DIR, str(rank), *command)
