"""Every key of a Team."""

from fairlead.specs import team
from fairlead.specs.tables.field_types import (
    CPU,
    DOLLARS,
    GPU_COUNT,
    SIZE,
    TEXT,
    WHOLE,
    Key,
    ListField,
    Section,
    SectionMap,
    name_key,
    word,
)


def _amounts(doc: str) -> Section:
    """A quantity of each resource; ``doc`` has a place for its name."""
    return Section(
        type=team.Quota,
        rules=team.QUOTA_RULES,
        keys=(
            Key(
                name="gpu",
                kind=GPU_COUNT,
                doc=doc.format("GPUs"),
                attributes=("gpu_milli",),
                example="16",
                also=("gpus", "num_gpus", "nvidia.com/gpu"),
            ),
            Key(
                name="cpu",
                kind=CPU,
                doc=doc.format("cores"),
                attributes=("cpu_milli",),
                example="256",
                also=("cpus", "cores"),
            ),
            Key(
                name="memory",
                kind=SIZE,
                doc=doc.format("memory"),
                attributes=("memory_bytes",),
                example="2Ti",
                also=("mem", "ram"),
            ),
        ),
    )


BUDGET = Section(
    type=team.Budget,
    rules=team.BUDGET_RULES,
    keys=(
        Key(
            name="monthly",
            kind=DOLLARS,
            doc="Dollars in a calendar month, UTC.",
            attributes=("monthly",),
            example="2500",
            required=True,
            also=("dollars", "amount", "limit", "month"),
        ),
        Key(
            name="when_spent",
            kind=word(team.WhenSpent),
            doc="What runs do when it is spent: wait to start, or also stop with a checkpoint.",
            attributes=("when_spent",),
            example="stop",
            also=("then", "action", "on_limit", "enforcement"),
        ),
    ),
)
TEAM = Section(
    type=team.Team,
    rules=team.TEAM_RULES,
    keys=(
        name_key(example="research", more="; the namespace on Kubernetes"),
        Key(
            name="quota",
            kind=_amounts("Most {} at one time; unlimited when left out."),
            doc="The most that the team holds at one time.",
            attributes=("quota",),
            example="{gpu: 16}",
            also=("quotas", "limits", "limit", "resources"),
        ),
        Key(
            name="guaranteed",
            kind=_amounts("Guaranteed {}; none when left out."),
            doc="What the team is guaranteed; others may borrow it while it is idle.",
            attributes=("guaranteed",),
            example="{gpu: 8}",
            also=("guarantee", "guarantees", "nominal_quota", "reserved", "minimum"),
        ),
        Key(
            name="weight",
            kind=WHOLE,
            doc="Its share of a contended cluster relative to other teams.",
            attributes=("weight",),
            example="2",
            also=("share", "shares", "fair_share", "priority"),
        ),
        Key(
            name="members",
            kind=ListField(item=TEXT, rule=team.MEMBER, most=team.MEMBERS_MOST),
            doc="User names or e-mail addresses.",
            attributes=("members",),
            example="[ann, ben]",
            also=("users", "people", "member"),
        ),
        Key(
            name="budget",
            kind=BUDGET,
            doc="Spending limit of the team, if prices are known; none when left out.",
            attributes=("budget",),
            example="{monthly: 2500}",
            also=("budgets", "max_cost", "spend", "cost_limit"),
        ),
        Key(
            name="project_budgets",
            kind=SectionMap(item=BUDGET, names=team.PROJECT, most=team.PROJECTS_MOST),
            doc="Spending limits of runs with a label `project`, by its value; within `budget`.",
            attributes=("project_budgets",),
            example="{search: {monthly: 500}}",
            also=("projects", "budget_by_project", "project_limits"),
        ),
    ),
)
