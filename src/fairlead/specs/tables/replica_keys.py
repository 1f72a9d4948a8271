"""Every key of a Replica, as a cluster keeps it. Nobody writes one: an endpoint submits them."""

from dataclasses import replace

from fairlead.specs import serving, training
from fairlead.specs.constraints import NAME, Text
from fairlead.specs.tables.field_types import FLAG, TEXT, WHOLE, Key, Section, name_key, word
from fairlead.specs.tables.serving_keys import RESOURCES, SPOT
from fairlead.specs.tables.training_keys import CAPACITY, TRAINING
from fairlead.specs.training import TRAINING_RULES

_KEPT = (
    "team", "labels", "image", "workdir", "setup", "run", "env", "ranks_per_node", "resources", "capacity", "retry",
    "logs", "priority", "grace", "snapshot", "kubernetes",
)  # fmt: skip
_CAPACITY = replace(
    CAPACITY,
    keys=(
        SPOT,
        *(key for key in CAPACITY.keys if key.name != "spot"),
        Key(
            name="tier",
            kind=word(training.Tier),
            doc="Which part of its endpoint's replicas it is of, where these use different capacity.",
            attributes=("tier",),
            example="base",
        ),
    ),
)


def _of_a_run() -> tuple[Key, ...]:
    """Keys that mean what they mean for a run."""
    found = {key.name: key for key in TRAINING.keys}
    capacity = Key(
        name="capacity",
        kind=_CAPACITY,
        doc="Kinds of capacity to use.",
        attributes=("capacity",),
        example="{spot: true}",
    )
    found |= {"capacity": capacity, "resources": replace(found["resources"], kind=RESOURCES)}
    return tuple(found[name] for name in _KEPT)


REPLICA = Section(
    type=serving.Replica,
    rules={
        **TRAINING_RULES,
        "service": NAME,
        "revision": NAME,
        "model_path": serving.SERVING_RULES["model"],
        "predictor": serving.SERVING_RULES["predictor"],
        "probe": serving.SERVING_RULES["probe"],
        "batching": Text(max_length=1_000),
        "max_queue": serving.SERVING_RULES["max_queue"],
    },
    keys=(
        name_key(example="chat-r1-1"),
        *_of_a_run(),
        Key(name="service", kind=TEXT, doc="Name of its endpoint.", attributes=("service",), example="chat"),
        Key(name="revision", kind=TEXT, doc="Revision of its endpoint.", attributes=("revision",), example="r1"),
        Key(
            name="model",
            kind=TEXT,
            doc="Where its model is.",
            attributes=("model_path",),
            example="/models/chat",
        ),
        Key(
            name="predictor",
            kind=TEXT,
            doc="Module and class that Fairlead's own server loads.",
            attributes=("predictor",),
            example="predict:Classifier",
        ),
        Key(name="probe", kind=TEXT, doc="Path that it answers well once ready.", attributes=("probe",), example="/"),
        Key(
            name="batching",
            kind=TEXT,
            doc="Bounds of batches, as JSON for Fairlead's own server.",
            attributes=("batching",),
            example="'{}'",
        ),
        Key(
            name="max_queue",
            kind=WHOLE,
            doc="Requests that Fairlead's own server lets wait.",
            attributes=("max_queue",),
            example="100",
        ),
        Key(
            name="guarded",
            kind=FLAG,
            doc="Whether only gateways may ask it.",
            attributes=("guarded",),
            example="true",
        ),
    ),
)
