"""Every key of a Team."""

from fairlead.specs import team
from fairlead.specs.tables.field_types import CPU, GPU_COUNT, SIZE, TEXT, WHOLE, Key, ListField, Section, name_key


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


TEAM = Section(
    type=team.Team,
    rules=team.TEAM_RULES,
    keys=(
        name_key(example="research", more="; the namespace on Kubernetes"),
        Key(
            name="quota",
            kind=_amounts("Most {} at one time; no bound when left out."),
            doc="The most that the team holds at one time.",
            attributes=("quota",),
            example="{gpu: 16}",
            also=("quotas", "limits", "limit", "resources"),
        ),
        Key(
            name="guaranteed",
            kind=_amounts("Guaranteed {}; none when left out."),
            doc="What the team gets whenever it asks; others may borrow it while it does not.",
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
    ),
)
