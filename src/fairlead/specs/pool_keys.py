"""Every key of a Pool."""

from fairlead.specs import pool
from fairlead.specs.kinds import CPU, DOLLARS, SIZE, TAINT, TEXT, WHOLE, Key, Listed, Mapped, Section, name_key, word
from fairlead.specs.sharing import Handing

POOL = Section(
    type=pool.Pool,
    rules=pool.POOL_RULES,
    keys=(
        name_key(example="a100-spot"),
        Key(
            name="nodes",
            kind=WHOLE,
            doc="Most nodes the pool can have.",
            attributes=("nodes",),
            example="4",
            also=("num_nodes", "size", "count", "max_nodes", "replicas"),
        ),
        Key(
            name="hardware",
            kind=Section(
                type=pool.Hardware,
                rules=pool.HARDWARE_RULES,
                keys=(
                    Key(
                        name="gpu",
                        kind=Section(
                            type=pool.PoolGpu,
                            rules=pool.POOL_GPU_RULES,
                            keys=(
                                Key(
                                    name="model",
                                    kind=TEXT,
                                    doc="Model of the GPUs.",
                                    attributes=("model",),
                                    example="A100",
                                    required=True,
                                    also=("type", "name", "kind"),
                                ),
                                Key(
                                    name="count",
                                    kind=WHOLE,
                                    doc="GPUs of one node.",
                                    attributes=("count",),
                                    example="8",
                                    also=("number", "num", "gpus"),
                                ),
                                Key(
                                    name="memory",
                                    kind=SIZE,
                                    doc="Memory of each GPU.",
                                    attributes=("memory_bytes",),
                                    example="80GB",
                                    also=("mem", "vram"),
                                ),
                                Key(
                                    name="sharing",
                                    kind=word(Handing),
                                    doc="How a GPU is handed out: whole, or shared by mps or by time-slicing.",
                                    attributes=("sharing",),
                                    example="mps",
                                    also=("share", "gpu_sharing", "mig", "mps", "sharing_strategy"),
                                ),
                                Key(
                                    name="instances",
                                    kind=Mapped(names=pool.PROFILE, values=pool.INSTANCES, most=pool.PROFILES_MOST),
                                    doc="MIG instances of each GPU, as numbers by profile; none when left out.",
                                    attributes=("instances",),
                                    example="{1g.10gb: 7}",
                                    also=("mig_devices", "profiles", "slices", "partitions", "mig_instances"),
                                ),
                            ),
                        ),
                        doc="The GPUs of one node; none when left out.",
                        attributes=("gpu",),
                        example="{model: A100, count: 8}",
                        also=("gpus", "accelerator", "accelerators"),
                    ),
                    Key(
                        name="cpu",
                        kind=CPU,
                        doc="Cores of one node.",
                        attributes=("cpu_milli",),
                        example="96",
                        required=True,
                        also=("cpus", "cores", "vcpus"),
                    ),
                    Key(
                        name="memory",
                        kind=SIZE,
                        doc="Memory of one node.",
                        attributes=("memory_bytes",),
                        example="1Ti",
                        required=True,
                        also=("mem", "ram"),
                    ),
                ),
            ),
            doc="What one node has.",
            attributes=("hardware",),
            example="{cpu: 96, memory: 1Ti}",
            required=True,
            also=("node", "machine", "resources", "instance_type"),
        ),
        Key(
            name="capacity_type",
            kind=word(pool.CapacityType),
            doc="How nodes are paid for: on-demand, spot, reserved or owned.",
            attributes=("capacity_type",),
            example="spot",
            also=("capacity", "spot", "type"),
        ),
        Key(
            name="price_per_hour",
            kind=DOLLARS,
            doc="Dollars per hour for one node.",
            attributes=("price_per_hour",),
            example="3.5",
            also=("price", "cost", "hourly_price"),
        ),
        Key(
            name="labels",
            kind=Mapped(names=pool.LABEL_NAME, values=pool.LABEL_VALUE, most=pool.LABELS_MOST),
            doc="Labels of the nodes.",
            attributes=("labels",),
            example="{zone: a}",
            also=("label", "node_labels", "tags"),
        ),
        Key(
            name="taints",
            kind=Listed(item=TAINT, most=pool.TAINTS_MOST),
            doc="Taints of the nodes, as for kubectl: key=value:NoSchedule.",
            attributes=("taints",),
            example='["dedicated=ml:NoSchedule"]',
            also=("taint", "node_taints"),
        ),
    ),
)
