"""Every key of a Simulation."""

from fairlead.specs import simulation
from fairlead.specs.constraints import NAME
from fairlead.specs.tables.field_types import DURATION, FACTOR, TEXT, WHOLE, Key, ListField, Section, name_key

_FAILURES = Section(
    type=simulation.Failures,
    rules=simulation.FAILURES_RULES,
    keys=(
        Key(
            name="mtbf",
            kind=DURATION,
            doc="Mean time between failures of one node, exponentially distributed.",
            attributes=("mtbf_s",),
            example="30d",
            required=True,
            also=("every", "mean_time_between_failures", "interval"),
        ),
        Key(
            name="repair",
            kind=DURATION,
            doc="How long a failed node is away.",
            attributes=("repair_s",),
            example="1h",
            also=("mttr", "repair_time", "down", "downtime"),
        ),
    ),
)

_RECLAIMS = Section(
    type=simulation.Reclaims,
    rules=simulation.RECLAIMS_RULES,
    keys=(
        Key(
            name="every",
            kind=DURATION,
            doc="Mean time that a node stays, exponentially distributed.",
            attributes=("every_s",),
            example="8h",
            required=True,
            also=("mtbf", "mtbr", "mean_time_between_reclaims", "interval"),
        ),
        Key(
            name="notice",
            kind=DURATION,
            doc="Time from the notice until the node is gone.",
            attributes=("notice_s",),
            example="30s",
            also=("grace", "warning", "notice_time"),
        ),
        Key(
            name="away",
            kind=DURATION,
            doc="How long the node is away, in a pool without provisioning.",
            attributes=("away_s",),
            example="10m",
            also=("back", "repair", "down"),
        ),
    ),
)

_PROVISIONING = Section(
    type=simulation.Provisioning,
    rules=simulation.PROVISIONING_RULES,
    keys=(
        Key(
            name="min_nodes",
            kind=WHOLE,
            doc="Nodes that always exist; the maximum is the pool's.",
            attributes=("min_nodes",),
            example="1",
            also=("min", "minimum", "initial"),
        ),
        Key(
            name="delay",
            kind=DURATION,
            doc="Median time from the request of a node until it is ready.",
            attributes=("delay_s",),
            example="4m",
            also=("boot", "startup", "delay_p50", "median"),
        ),
        Key(
            name="delay_p90",
            kind=DURATION,
            doc="90th percentile of that time; `delay` when left out.",
            attributes=("delay_p90_s",),
            example="9m",
            also=("p90", "slow", "tail"),
        ),
        Key(
            name="idle",
            kind=DURATION,
            doc="A node without pods is removed after this time.",
            attributes=("idle_s",),
            example="10m",
            also=("idle_after", "idle_timeout", "scale_down_after", "consolidate_after"),
        ),
    ),
)

_PROGRAMS = Section(
    type=simulation.Programs,
    rules=simulation.PROGRAMS_RULES,
    keys=(
        Key(
            name="start_up",
            kind=DURATION,
            doc="Time from the placement of a gang until its ranks work.",
            attributes=("start_up_s",),
            example="2m",
            also=("startup", "start", "start_up_time", "warmup"),
        ),
        Key(
            name="checkpoint_every",
            kind=DURATION,
            doc="Work between checkpoints, where the spec of a run does not say.",
            attributes=("checkpoint_every_s",),
            example="10m",
            also=("checkpoint_interval", "every", "interval"),
        ),
        Key(
            name="checkpoint",
            kind=DURATION,
            doc="How long the work pauses for each checkpoint.",
            attributes=("checkpoint_s",),
            example="15s",
            also=("checkpoint_cost", "checkpoint_time"),
        ),
        Key(
            name="save",
            kind=DURATION,
            doc="How long the checkpoint at a stop notice takes.",
            attributes=("save_s",),
            example="10s",
            also=("final_checkpoint", "save_time"),
        ),
        Key(
            name="step",
            kind=DURATION,
            doc="Work of each reported step; runs report no steps and no checkpoints when left out.",
            attributes=("step_s",),
            example="30s",
            also=("step_time", "report_every", "progress_every", "step_s"),
        ),
    ),
)

_INTERFERENCE = Section(
    type=simulation.Interference,
    rules=simulation.INTERFERENCE_RULES,
    keys=(
        Key(
            name="two",
            kind=FACTOR,
            doc="Factor by which runs take longer when two have parts of one device.",
            attributes=("two",),
            example="1.31",
            also=("pair",),
        ),
        Key(
            name="three",
            kind=FACTOR,
            doc="The same factor for three runs.",
            attributes=("three",),
            example="1.48",
        ),
        Key(
            name="four",
            kind=FACTOR,
            doc="The same factor for four or more.",
            attributes=("four",),
            example="1.35",
        ),
        Key(
            name="neighbour",
            kind=FACTOR,
            doc="Factor for each other run that works on the same node.",
            attributes=("neighbour",),
            example="1.02",
            also=("neighbor", "node"),
        ),
    ),
)

SIMULATION = Section(
    type=simulation.Simulation,
    rules=simulation.SIMULATION_RULES,
    keys=(
        name_key(example="cloud"),
        Key(
            name="pools",
            kind=ListField(item=TEXT, most=simulation.POOLS_MOST, rule=NAME),
            doc="Pools that this applies to; all when left out.",
            attributes=("pools",),
            example="[spot]",
            also=("pool", "for"),
        ),
        Key(
            name="failures",
            kind=_FAILURES,
            doc="How nodes fail; never when left out.",
            attributes=("failures",),
            example="{mtbf: 30d}",
            also=("failure", "node_failures"),
        ),
        Key(
            name="reclaims",
            kind=_RECLAIMS,
            doc="How nodes of spot pools are reclaimed; never when left out.",
            attributes=("reclaims",),
            example="{every: 8h, notice: 30s}",
            also=("spot", "preemption", "reclaim", "interruptions"),
        ),
        Key(
            name="provisioning",
            kind=_PROVISIONING,
            doc="How nodes are provisioned on request; all nodes always exist when left out.",
            attributes=("provisioning",),
            example="{min_nodes: 0, delay: 4m}",
            also=("autoscaling", "autoscaler", "growing", "scaling"),
        ),
        Key(
            name="programs",
            kind=_PROGRAMS,
            doc="Time that starting and saving cost each run.",
            attributes=("programs",),
            example="{start_up: 2m}",
            also=("runs", "program", "costs", "checkpointing"),
        ),
        Key(
            name="interference",
            kind=_INTERFERENCE,
            doc="How much sharing a device or a node slows runs down; not at all when left out.",
            attributes=("interference",),
            example="{two: 1.31}",
            also=("sharing", "colocation", "slowdown"),
        ),
    ),
)
