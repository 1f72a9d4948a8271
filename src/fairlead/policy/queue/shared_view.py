"""The state of a cluster as members of one team may see it: all that decisions need, and nothing else of other teams.

Of a run of another team it has the size, the resources, the priority and the times; not its name, its command, its
labels or its pods' fields. Teams and runs have numbers in place of their names. What is shared is the same for all
teams; a part for each team says which numbers are its own, and a member's own runs are read with their own rights.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field

from fairlead.frozen import dataclass
from fairlead.specs.resources import Resources
from fairlead.specs.team import Quota, Team
from fairlead.specs.training import Capacity, Training
from fairlead.state.capacity_requests import Growth
from fairlead.state.pod_uids import pod_uid
from fairlead.state.reasons import Code, Reason
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import (
    AnyWorkload,
    Completed,
    ElasticSize,
    Grant,
    Intent,
    Node,
    Phase,
    Pod,
    PodPhase,
    Snapshot,
    Status,
    Workload,
    is_leaf,
)

HIDDEN = Reason(code=Code.REPORTED, message="it is a run of another team")
OTHER_TEAM, OTHER_RUN = "other-team-", "run-"
# Durations of a team's own runs that are shared, the newest.
MOST_COMPLETED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """A run without its name. ``Training`` and ``Status`` document the attributes.

    Attributes:
        name: Its name, where the installation shows names of other teams' runs; else empty.
    """

    team: int
    phase: Phase
    since: float
    created_at: float
    name: str = ""
    started_at: float | None = None
    attempt: int = 0
    size: int | None = None
    nodes: int = 1
    most_nodes: int | None = None
    resources: Resources = Resources()
    capacity: Capacity = Capacity()
    priority: int = 0
    max_duration_s: float | None = None
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPod:
    """A pod as far as it holds something. ``run`` is the number of its run; None for what nobody's run holds."""

    run: int | None
    attempt: int
    index: int
    node: str
    grant: Grant
    phase: PodPhase
    created_at: float
    started_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTeam:
    """The rights of a team in the queue."""

    quota: Quota
    guaranteed: Quota
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    """The part that all teams see; runs and teams are known by their places in it.

    Attributes:
        teams: Those that a Team describes; others follow them in number.
        team_names: The names of all, where the installation shows names of other teams' runs; else none.
        debts: What they have had beyond their shares, in seconds of the cluster; none if nobody has any.
    """

    nodes: tuple[Node, ...]
    runs: tuple[SharedRun, ...] = ()
    pods: tuple[SharedPod, ...] = ()
    teams: tuple[SharedTeam, ...] = ()
    team_names: tuple[str, ...] = ()
    rules: SchedulingPolicy = DEFAULT
    growth: Growth | None = None
    debts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPart:
    """The numbers that are a team's own.

    Attributes:
        team: Its number; None if none of its runs is unfinished and no Team describes it.
        runs: Uids of its runs by their numbers, as text.
        completed: Durations of its runs.
    """

    team: int | None = None
    runs: Mapping[str, str] = field(default_factory=dict)
    completed: tuple[Completed, ...] = ()


def share(snapshot: Snapshot) -> tuple[SharedState, dict[str, OwnPart]]:
    """Return what all teams may see of a cluster, and the part of each team, by its name."""
    described = sorted(snapshot.teams, key=lambda team: team.name)
    leaves = [workload for workload in snapshot.workloads if not workload.status.phase.is_final]
    names = [team.name for team in described]
    names += sorted({workload.spec.team for workload in leaves} - set(names))
    team_of = {name: number for number, name in enumerate(names)}
    run_of = {workload.uid: number for number, workload in enumerate(leaves)}
    state = SharedState(
        nodes=snapshot.nodes,
        runs=tuple(_shared(workload, team_of[workload.spec.team], snapshot.rules) for workload in leaves),
        team_names=tuple(names) if snapshot.rules.shows_names else (),
        pods=tuple(
            SharedPod(
                run=run_of.get(pod.workload_uid), attempt=pod.attempt, index=pod.index, node=pod.node, grant=pod.grant,
                phase=pod.phase, created_at=pod.created_at, started_at=pod.started_at,
            )
            for pod in snapshot.pods
            if not pod.phase.is_final
        ),
        teams=tuple(SharedTeam(quota=team.quota, guaranteed=team.guaranteed, weight=team.weight) for team in described),
        rules=snapshot.rules,
        growth=snapshot.growth,
        debts=tuple(snapshot.debts.get(name, 0.0) for name in names) if snapshot.debts else (),
    )  # fmt: skip
    own: dict[str, dict[str, str]] = {name: {} for name in names}
    for number, run in enumerate(leaves):
        own[run.spec.team][str(number)] = run.uid
    completed: dict[str, list[Completed]] = {}
    for done in sorted(snapshot.completed, key=lambda entry: -entry.at):
        completed.setdefault(done.team, []).append(Completed(
            team=done.team, name=done.name, took_s=done.took_s, at=done.at,
        ))  # fmt: skip
    parts = {
        name: OwnPart(team=team_of[name], runs=own[name], completed=tuple(completed.get(name, ())[:MOST_COMPLETED]))
        for name in names
    }
    return state, parts


def _shared(run: Workload, team: int, rules: SchedulingPolicy) -> SharedRun:
    spec, status = run.spec, run.status
    return SharedRun(
        team=team, name=spec.name if rules.shows_names else "", phase=status.phase, since=status.since,
        created_at=run.created_at, started_at=status.started_at, attempt=status.attempt,
        size=status.size.nodes, nodes=spec.nodes, most_nodes=spec.most_nodes,
        resources=spec.resources, capacity=spec.capacity, priority=spec.priority, max_duration_s=spec.max_duration_s,
        grace_s=spec.grace_s,
    )  # fmt: skip


def seen_by(team: str, state: SharedState, part: OwnPart, own: Iterable[AnyWorkload]) -> Snapshot:
    """Return the snapshot that a member of a team decides on: its own runs, and those of others without names.

    Args:
        own: All workloads of the team as they are now, which may be newer than what is shared.
    """
    workloads = tuple(own)
    leaves = tuple(run for run in workloads if is_leaf(run))
    mine = {int(number): uid for number, uid in part.runs.items() if number.isdigit()}
    live = {run.uid for run in leaves if not run.status.phase.is_final}
    others = {
        number: _other(number, run, _team_name(run.team, state))
        for number, run in enumerate(state.runs)
        if number not in mine
    }
    pods = []
    for number, pod in enumerate(state.pods):
        uid = "" if pod.run is None else mine.get(pod.run, f"{OTHER_RUN}{pod.run}")
        if pod.run in mine and uid not in live:
            continue
        pods.append(
            Pod(
                uid=pod_uid(uid, pod.attempt, pod.index) if uid else f"held-{number}", workload_uid=uid,
                attempt=pod.attempt, index=pod.index, node=pod.node, grant=pod.grant, phase=pod.phase,
                created_at=pod.created_at, started_at=pod.started_at,
            )
        )  # fmt: skip
    teams = tuple(
        Team(
            name=team if number == part.team else _team_name(number, state), quota=t.quota,
            guaranteed=t.guaranteed, weight=t.weight,
        )
        for number, t in enumerate(state.teams)
    )  # fmt: skip
    return Snapshot(
        nodes=state.nodes,
        workloads=(*leaves, *others.values()),
        pods=tuple(pods),
        parents=tuple(run for run in workloads if not is_leaf(run) and not run.status.phase.is_final),
        teams=teams,
        completed=part.completed,
        rules=state.rules,
        growth=state.growth,
        debts={
            team if number == part.team else _team_name(number, state): debt_s
            for number, debt_s in enumerate(state.debts)
        },
    )


def _team_name(number: int, state: SharedState) -> str:
    return state.team_names[number] if number < len(state.team_names) else f"{OTHER_TEAM}{number}"


def _other(number: int, run: SharedRun, team: str) -> Workload:
    spec = Training(
        name=run.name or f"{OTHER_RUN}{number}", team=team, run="hidden", nodes=run.nodes, most_nodes=run.most_nodes,
        resources=run.resources, capacity=run.capacity, priority=run.priority, max_duration_s=run.max_duration_s,
        grace_s=run.grace_s,
    )  # fmt: skip
    status = Status(
        phase=run.phase, reason=HIDDEN, since=run.since, attempt=run.attempt, started_at=run.started_at,
        size=ElasticSize(nodes=run.size),
    )  # fmt: skip
    return Workload(
        uid=f"{OTHER_RUN}{number}", spec=spec, intent=Intent.RUN, status=status, version=1, created_at=run.created_at
    )


def is_of_another_team(run: AnyWorkload) -> bool:
    """Return whether a run of such a snapshot is one of another team, whose names are not known."""
    return run.spec.team.startswith(OTHER_TEAM)
