"""The spec of a team: users who share a namespace, with quota and budget."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, Constraints, Limit, Text, broken, enforce, quote

QUOTA_RULES: Constraints = {
    "gpu_milli": Limit(low=0, high=10**9, whole=True),
    "cpu_milli": Limit(low=0, high=10**12, whole=True),
    "memory_bytes": Limit(low=0, high=2**60, whole=True),
}

TEAM_RULES: Constraints = {
    "name": NAME,
    "weight": Limit(low=1, high=1_000_000, whole=True),
}

BUDGET_RULES: Constraints = {"monthly": Limit(low=0.01, high=1_000_000_000)}

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
# Label of a run with its project.
PROJECT_LABEL = "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Amounts that a team may hold at a time: its maximum or its guarantee.

    Attributes:
        gpu_milli: Thousandths of a GPU; None if not set.
        cpu_milli: Thousandths of a core; None if not set.
        memory_bytes: Memory in bytes; None if not set.
    """

    gpu_milli: int | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        enforce(broken(self, QUOTA_RULES))


class WhenSpent(StrEnum):
    """The handling of a team's runs when its budget is spent: new ones wait, or active ones are stopped as well."""

    WAIT = "wait"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The money that a team, or a project of a team, may spend.

    Attributes:
        monthly: Dollars per calendar month, UTC.
        when_spent: Handling of active runs when it is spent; new ones wait in either case.
    """

    monthly: float
    when_spent: WhenSpent = WhenSpent.WAIT

    def __post_init__(self) -> None:
        enforce(broken(self, BUDGET_RULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A team of users who share a namespace.

    Attributes:
        name: A DNS label of at most 50 characters; the namespace on Kubernetes.
        quota: Maximum that it holds at a time, borrowed or not.
        guaranteed: Resources available to it on demand, within ``quota``; others may borrow them meanwhile.
        weight: Share of a contended cluster relative to other teams.
        members: User names or e-mail addresses, each once.
        budget: Budget of the team; None for no limit.
        project_budgets: Budgets of projects, which the label ``project`` of runs names; other projects have only the
            team's limit.
    """

    name: str
    quota: Quota = field(default_factory=Quota)
    guaranteed: Quota = field(default_factory=Quota)
    weight: int = 1
    members: tuple[str, ...] = ()
    budget: Budget | None = None
    project_budgets: Mapping[str, Budget] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def has_budgets(self) -> bool:
        """Return whether a budget limits its runs."""
        return self.budget is not None or bool(self.project_budgets)

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, TEAM_RULES)
        for project in self.project_budgets:
            if (problem := PROJECT.problem(project)) is not None:
                yield "project_budgets", problem
        if len(self.project_budgets) > PROJECTS_MOST:
            yield "project_budgets", f"{len(self.project_budgets)} projects; give at most {PROJECTS_MOST}"
        if len(self.members) > MEMBERS_MOST:
            yield "members", f"{len(self.members)} members; give at most {MEMBERS_MOST}"
        seen: set[str] = set()
        for member in self.members:
            if (problem := MEMBER.problem(member)) is not None:
                yield "members", problem
            elif member in seen:
                yield "members", f"{quote(member)} is listed twice; name each member once"
            seen.add(member)
