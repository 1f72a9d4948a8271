"""The spec of a team: users who share a namespace, with quota and budget."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, Limit, Text, enforce, quote
from fairlead.specs.field_types import CPU, DOLLARS, DURATION, GPU_COUNT, SIZE, TEXT, ListField, Named
from fairlead.specs.key import Key, broken
from fairlead.specs.training import DECADE_S
from fairlead.specs.workload import Kind

MEMBER = Text(
    max_length=254,
    pattern=r"[^\s,]+",
    what="a member; give a user name or an e-mail address without spaces",
)
MEMBERS_MOST = 1_000
PROJECT = Text(
    max_length=63,
    pattern=r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
    what="a project, as the label `project` of runs has it; use letters, digits, `-`, `_` and `.`",
)
PROJECTS_MOST = 1_000
OBJECTS_MOST = 10_000
"""Workloads of each kind of a team without a limit of its own: 300 MB of an operator's memory, at 30 KB each."""
# Label of a run with its project.
PROJECT_LABEL = "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Amounts that a team may hold at a time: its maximum or its guarantee."""

    gpu_milli: Annotated[
        int | None,
        Key("gpu", GPU_COUNT, Limit(low=0, high=10**9, whole=True), example="16", also="gpus num_gpus nvidia.com/gpu"),
        "GPUs.",
    ] = None
    cpu_milli: Annotated[
        int | None,
        Key("cpu", CPU, Limit(low=0, high=10**12, whole=True), example="256", also="cpus cores"),
        "Cores.",
    ] = None
    memory_bytes: Annotated[
        int | None,
        Key("memory", SIZE, Limit(low=0, high=2**60, whole=True), example="2Ti", also="mem ram"),
        "Memory.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationLimits:
    """The limits on the ``max_duration`` of a team's runs, in seconds."""

    default_s: Annotated[
        float | None,
        Key("default", DURATION, Limit(low=0.001, high=DECADE_S), example="24h"),
        "The `max_duration` of runs that have none; `max` when left out.",
    ] = None
    max_s: Annotated[
        float | None,
        Key("max", DURATION, Limit(low=0.001, high=DECADE_S), example="7d", also="maximum most limit"),
        "The longest `max_duration` that a run may have; unlimited when left out.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def is_set(self) -> bool:
        """Return whether there is any limit."""
        return self.default_s is not None or self.max_s is not None

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.default_s is not None and self.max_s is not None and self.default_s > self.max_s:
            yield "default_s", "the default is longer than `max`; give at most that"


class WhenSpent(StrEnum):
    """The handling of a team's runs when its budget is spent: new ones wait, or active ones are stopped as well."""

    WAIT = "wait"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The money that a team, or a project of a team, may spend."""

    monthly: Annotated[
        float,
        Key("monthly", DOLLARS, Limit(low=0.01, high=1_000_000_000), example="2500", also="dollars amount limit month"),
        "Dollars in a calendar month, UTC.",
    ]
    when_spent: Annotated[
        WhenSpent,
        Key("when_spent", example="stop", also="then action on_limit enforcement"),
        "What runs do when it is spent: wait to start, or also stop with a checkpoint.",
    ] = WhenSpent.WAIT

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A team of users who share a namespace."""

    kind: ClassVar[str] = Kind.TEAM

    name: Annotated[
        str,
        Key("name", rule=NAME, example="research", metadata="name"),
        "Lower-case letters, digits and dashes, at most 50; the namespace on Kubernetes.",
    ]
    quota: Annotated[
        Quota,
        Key("quota", example="{gpu: 16}", also="quotas limits limit resources"),
        "The most that the team holds at one time; unlimited what is left out.",
    ] = field(default_factory=Quota)
    guaranteed: Annotated[
        Quota,
        Key("guaranteed", example="{gpu: 8}", also="guarantee guarantees nominal_quota reserved minimum"),
        "What the team is guaranteed, none of what is left out; others may borrow it while it is idle.",
    ] = field(default_factory=Quota)
    weight: Annotated[
        int,
        Key("weight", rule=Limit(low=1, high=1_000_000, whole=True), example="2", also="share shares fair_share"),
        "Its share of a contended cluster relative to other teams.",
    ] = 1
    max_priority: Annotated[
        int,
        Key(
            "max_priority",
            rule=Limit(low=0, high=1000, whole=True),
            example="100",
            also="priority priority_class class",
        ),
        "As much of a run's `priority` as also counts before runs of other teams; 0 when left out.",
    ] = 0
    max_duration: Annotated[
        DurationLimits,
        Key("max_duration", example="{default: 24h, max: 7d}", also="max_durations time_limit walltime duration"),
        "Limits on the `max_duration` of its runs, so that all have an end.",
    ] = field(default_factory=DurationLimits)
    max_objects: Annotated[
        int,
        Key(
            "max_objects",
            rule=Limit(low=1, high=1_000_000, whole=True),
            example="2000",
            also="max_runs object_quota max_workloads",
        ),
        "The most Trainings that it may have at a time, finished ones included, and as many of each other kind.",
    ] = OBJECTS_MOST
    members: Annotated[
        tuple[str, ...],
        Key(
            "members",
            ListField(item=TEXT, rule=MEMBER, most=MEMBERS_MOST),
            example="[ann, ben]",
            also="users people member",
        ),
        "User names or e-mail addresses.",
    ] = ()
    groups: Annotated[
        tuple[str, ...],
        Key(
            "groups",
            ListField(item=TEXT, rule=MEMBER, most=MEMBERS_MOST),
            example="[ml-research]",
            also="group oidc_groups",
        ),
        "Groups of the cluster's identity provider whose users are members.",
    ] = ()
    budget: Annotated[
        Budget | None,
        Key("budget", example="{monthly: 2500}", also="budgets max_cost spend cost_limit"),
        "Spending limit of the team, if prices are known; none when left out.",
    ] = None
    project_budgets: Annotated[
        Mapping[str, Budget],
        Key(
            "project_budgets",
            Named(PROJECT, PROJECTS_MOST),
            example="{search: {monthly: 500}}",
            also="projects budget_by_project project_limits",
        ),
        "Spending limits of runs with a label `project`, by its value; within `budget`.",
    ] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def has_budgets(self) -> bool:
        """Return whether a budget limits its runs."""
        return self.budget is not None or bool(self.project_budgets)

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        for project in self.project_budgets:
            if (problem := PROJECT.problem(project)) is not None:
                yield "project_budgets", problem
        if len(self.project_budgets) > PROJECTS_MOST:
            yield "project_budgets", f"{len(self.project_budgets)} projects; give at most {PROJECTS_MOST}"
        for key, names in (("members", self.members), ("groups", self.groups)):
            if len(names) > MEMBERS_MOST:
                yield key, f"{len(names)} {key}; give at most {MEMBERS_MOST}"
            seen: set[str] = set()
            for name in names:
                if (problem := MEMBER.problem(name)) is not None:
                    yield key, problem
                elif name in seen:
                    yield key, f"{quote(name)} is listed twice; name each {key[:-1]} once"
                seen.add(name)
