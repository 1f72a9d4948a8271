"""Every key of a Fleet."""

from fairlead.specs import fleet
from fairlead.specs.constraints import NAME
from fairlead.specs.tables.field_types import DOLLARS, DURATION, TEXT, WHOLE, Key, Section, SectionMap, name_key

_MEMBER = Section(
    type=fleet.Member,
    rules=fleet.MEMBER_RULES,
    keys=(
        Key(
            name="context",
            kind=TEXT,
            doc="Context of the kubeconfig; this machine when left out.",
            attributes=("context",),
            example="gpu-cloud",
            also=("cluster", "kubeconfig", "ctx"),
        ),
        Key(
            name="namespace",
            kind=TEXT,
            doc="Namespace of the runs there; the context's own when left out.",
            attributes=("namespace",),
            example="research",
            also=("team", "ns"),
        ),
        Key(
            name="gpu_price",
            kind=DOLLARS,
            doc="Dollars for an hour of a GPU; 0 where GPUs are your own.",
            attributes=("gpu_price",),
            example="2.50",
            also=("price", "price_per_hour", "cost"),
        ),
        Key(
            name="cpu_price",
            kind=DOLLARS,
            doc="Dollars for an hour of a core, for runs without GPUs.",
            attributes=("cpu_price",),
            example="0.04",
            also=("core_price",),
        ),
        Key(
            name="max_gpus",
            kind=WHOLE,
            doc="GPUs that runs of the fleet may hold there at one time.",
            attributes=("most_gpus",),
            example="64",
            also=("gpus", "limit", "gpu_limit", "quota"),
        ),
        Key(
            name="max_cpus",
            kind=WHOLE,
            doc="Cores that runs without GPUs may hold there at one time.",
            attributes=("most_cpus",),
            example="256",
            also=("cpus", "cores", "cpu_limit"),
        ),
    ),
)

FLEET = Section(
    type=fleet.Fleet,
    rules=fleet.FLEET_RULES,
    keys=(
        name_key(example="research"),
        Key(
            name="clusters",
            kind=SectionMap(item=_MEMBER, names=NAME, most=fleet.CLUSTERS_MOST),
            doc="The clusters that share the runs, by name; those without a price are used first.",
            attributes=("clusters",),
            example="{home: {}, cloud: {context: gpu-cloud, gpu_price: 2.50}}",
            required=True,
            also=("contexts", "members"),
        ),
        Key(
            name="wait",
            kind=DURATION,
            doc="Mean time that runs may wait before GPUs are rented.",
            attributes=("wait_s",),
            example="30m",
            also=("max_wait", "average_wait", "patience"),
        ),
    ),
)
