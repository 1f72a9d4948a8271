"""What is written reads back as it was, in both forms and in the database."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.rendering import to_yaml
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.parallel import Choose, ModelShape, Parallel, Recomputed, Shard
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Capacity, Checkpoint, Framework, Launch, Logs, Metrics, Retry, Training

NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=40)
BYTES = st.integers(1, 2**40)
SECONDS = st.integers(1, 10**6).map(float)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


GPUS = st.builds(
    GpuRequest,
    milli=st.integers(1, 16).map(lambda n: n * 1000) | st.integers(1, 999),
    model=optional(st.sampled_from(["A100", "H100", "L4", "MI300X"])),
    min_memory_bytes=st.none(),
)
RESOURCES = st.builds(
    Resources,
    gpu=optional(GPUS),
    cpu_milli=optional(st.integers(1, 10**6)),
    memory_bytes=optional(BYTES),
    shm_bytes=optional(BYTES),
)
CHECKPOINTS = st.builds(Checkpoint, every_s=optional(SECONDS), keep=st.integers(1, 100)) | st.builds(
    Checkpoint, every_steps=st.integers(1, 10**6), to=st.sampled_from(["/data/ckpt", "s3://bucket/path"])
)
TRAININGS = st.builds(
    Training,
    name=NAMES,
    run=TEXTS,
    team=NAMES,
    env=st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True), TEXTS, max_size=3),
    labels=st.dictionaries(st.sampled_from(["a", "example.com/b", "C_d.e"]), st.sampled_from(["", "1", "x-Y.z"])),
    nodes=st.integers(1, 100),
    most_nodes=optional(st.integers(101, 10_000)),
    ranks_per_node=optional(st.integers(1, 64)),
    resources=RESOURCES,
    capacity=st.builds(Capacity, spot=st.booleans()),
    checkpoint=CHECKPOINTS,
    retry=st.builds(Retry, program=st.integers(0, 9), infrastructure=st.integers(0, 99)),
    logs=st.builds(Logs, max_bytes=st.integers(2**22, 2**40)),
    metrics=optional(
        st.builds(Metrics, pattern=st.sampled_from(["name=value", r"iter (?P<step>\d+): loss (?P<loss>\S+)"]))
    ),
    model=optional(
        st.builds(
            ModelShape,
            config=optional(st.just("models/config.json")),
            layers=optional(st.integers(1, 100)),
            sequence=optional(st.integers(1, 10_000)),
        )
    ),
    parallel=optional(
        st.builds(
            Parallel,
            choose=optional(st.sampled_from(Choose)),
            tensor=optional(st.integers(1, 8)),
            shard=optional(st.sampled_from(Shard)),
            recompute=optional(st.sampled_from(Recomputed)),
        )
    ),
    priority=st.integers(0, 1000),
    max_duration_s=optional(SECONDS),
    stall_timeout_s=optional(SECONDS),
    grace_s=SECONDS.filter(lambda s: s <= 86_400),
    framework=optional(st.sampled_from([Framework.JAX, Framework.TORCH, Framework.XGBOOST])),
    launch=st.sampled_from(list(Launch)),
)


@given(TRAININGS)
@settings(max_examples=100, deadline=None)
def test_both_forms_read_back_as_they_were(spec: Training) -> None:
    assert parse(to_yaml(spec, form="kubernetes")) == (spec,)
    assert parse(to_yaml(spec, form="short")) == (spec,)


@given(TRAININGS)
@settings(max_examples=100, deadline=None)
def test_the_database_keeps_a_spec_exactly(spec: Training) -> None:
    assert from_json(to_json(spec)) == spec


@given(TRAININGS)
@settings(max_examples=50, deadline=None)
def test_a_run_at_one_size_is_as_if_it_had_been_asked_for_so(spec: Training) -> None:
    assert spec.at(7) == replace(spec, nodes=7, most_nodes=None)
