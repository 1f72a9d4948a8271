"""The pod in which a rank of a run is, for those who want to reach into it."""

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.manifests.pod_environment import POD_DIR, RUNTIME
from fairlead.cluster.kubernetes.names import pod_name
from fairlead.errors import Conflict
from fairlead.specs.overlay import RANKS
from fairlead.state.snapshot import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A pod that runs.

    Attributes:
        path: Where the API server has it.
        python: The interpreter that its image has.
        container: The one of the ranks.
    """

    name: str
    path: str
    node: str
    python: str
    container: str = RANKS


def index_of(run: Workload, rank: int) -> int:
    """The pod of a rank, by its place in the gang.

    Raises:
        Conflict: The run has no such rank.
    """
    if rank >= run.gang.world_size:
        last = run.gang.world_size - 1
        raise Conflict(f"{run.spec.name} has no rank {rank}; its ranks are {f'0 to {last}' if last else '0 alone'}.")
    return rank // run.spec.ranks_on_each_node


def member_of(client: Client, run: Workload, rank: int) -> Member:
    """The pod of a rank, if it runs now.

    Raises:
        Conflict: No such rank, or it does not run.
    """
    pod = pod_name(run.spec, run.status.attempt, index_of(run, rank))
    path = f"/api/v1/namespaces/{run.spec.team}/pods/{pod}"
    try:
        content = client.get(path)
    except ApiError as error:
        if error.status != 404:
            raise
        said = f"{run.spec.name} is {run.status.phase.value}: {run.status.reason.message}"
        raise Conflict(f"Rank {rank} has no pod now; {said}.") from error
    phase = (content.get("status") or {}).get("phase")
    if phase != "Running":
        raise Conflict(f"Pod {pod} of rank {rank} is {phase}; only running pods can be reached.")
    spec = content["spec"]
    ranks: Object = next((each for each in spec["containers"] if each["name"] == RANKS), {})
    python = next(iter(ranks.get("command") or ()), "python3")
    return Member(name=pod, path=path, node=spec.get("nodeName") or "", python=python)


def as_rank(member: Member, rank: int, command: Sequence[str]) -> tuple[str, ...]:
    """The command as it is to be executed in the member's container to have what the rank was given."""
    return (member.python, RUNTIME, "enter", POD_DIR, str(rank), *command)
