"""Containers beside the ranks: their requests are counted as kube-scheduler counts them, wherever a run is counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.kubernetes.api.objects import pod_requests
from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.cluster.kubernetes.workloads.run_record import filled
from fairlead.errors import InvalidSpec
from fairlead.policy.placement.placement import grant_of, why_never
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.queue.dominant_shares import ClusterCapacity, asked
from fairlead.specs.formats.reading import parse
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import Resources
from fairlead.specs.side_containers import CPU_MILLI, MEMORY_BYTES, side_requests
from fairlead.specs.training import Training
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Node
from tests.kubernetes.builders import SETTINGS, a_workload

GIB = 2**30


def a_run(*containers: dict[str, object], cpu: int = 2000, memory: int = GIB) -> Training:
    """A run as the operator reads it, with containers beside the ranks."""
    named = [{"name": f"c{number}", "image": "x", **each} for number, each in enumerate(containers)]
    spec = Training(
        name="a", run="x", kubernetes=overlay({"spec": {"initContainers": named}}),
        resources=Resources(cpu_milli=cpu, memory_bytes=memory),
    )  # fmt: skip
    return filled(spec)


def test_a_run_without_other_containers_requests_what_its_ranks_do() -> None:
    assert side_requests(overlay({"spec": {"nodeSelector": {"a": "b"}}})) is None
    assert filled(Training(name="a", run="x")).resources.beside is None


def test_sixty_cores_beside_one_core_of_the_ranks_are_sixty_one() -> None:
    run = a_run({"restartPolicy": "Always", "resources": {"requests": {"cpu": "60"}}}, cpu=1000)
    assert Shape.of(run.resources).cpu_milli == 61_000
    assert asked(run, ClusterCapacity(0, 1, 1)).cpu_milli == 61_000
    never = why_never(run, (Node(name="n", cpu_milli=32_000, memory_bytes=2**40),))
    assert never is not None
    assert "61 CPU requested on one node" in never.message


def test_a_container_without_requests_counts_with_those_that_it_gets() -> None:
    beside = side_requests(a_run({"restartPolicy": "Always"}).kubernetes)
    assert beside is not None
    assert (beside.cpu_milli, beside.memory_bytes) == (CPU_MILLI, MEMORY_BYTES)


_AMOUNTS = st.fixed_dictionaries(
    {}, optional={"cpu": st.sampled_from(["250m", "1", "7"]), "memory": st.sampled_from(["64Mi", "9Gi", 12])}
)
_RESOURCES = st.fixed_dictionaries({}, optional={"requests": _AMOUNTS, "limits": _AMOUNTS})
_CONTAINER = st.fixed_dictionaries(
    {}, optional={"restartPolicy": st.just("Always"), "resources": _RESOURCES}
)  # fmt: skip


@given(st.lists(_CONTAINER, max_size=4), st.sampled_from([500, 2000]), st.sampled_from([GIB, 16 * GIB]))
def test_what_is_counted_is_what_the_pod_requests(containers: list[dict[str, object]], cpu: int, memory: int) -> None:
    """Of any containers: a grant is what kube-scheduler counts of a pod that has no reporter."""
    run = a_run(*containers, cpu=cpu, memory=memory)
    workload = a_workload(run)
    member = CreatePod(attempt=0, index=1, node="n", grant=grant_of(Shape.of(run.resources), ()))
    pod = render_pod(workload, member, SETTINGS)["spec"]
    requests = pod_requests(pod)
    assert (requests.cpu_milli, requests.memory_bytes) == (member.grant.cpu_milli, member.grant.memory_bytes)
    assert pod["containers"][0]["resources"]["requests"] == {
        "cpu": "500m" if cpu == 500 else "2", "memory": str(memory),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("container", "sentence"),
    [
        ("{name: ranks, resources: {requests: {cpu: 60}}}", "come from the key `resources` of the spec"),
        ("{name: ranks, resources: {limits: {memory: 1Gi}}}", "come from the key `resources` of the spec"),
        ("{name: ranks, resources: {limits: {nvidia.com/gpu: 8}}}", "come from the key `resources` of the spec"),
        ("{name: b, image: x, resources: {limits: {nvidia.com/gpu: 8}}}", "GPUs go to the ranks alone"),
        ("{name: b, image: x, resources: {limits: {cpu: many}}}", 'cpu: "many" is not a number of cores'),
        ("{name: b, image: x, resources: {requests: {memory: -1}}}", "memory: -1 is not a size in bytes"),
    ],
)
def test_what_would_not_be_counted_is_refused(container: str, sentence: str) -> None:
    kind = "containers" if "ranks" in container else "initContainers"
    with pytest.raises(InvalidSpec, match=r"kubernetes\.spec") as caught:
        parse(f"name: a\nrun: x\nkubernetes: {{spec: {{{kind}: [{container}]}}}}\n", source="f")
    assert sentence in str(caught.value)


def test_other_resources_of_the_ranks_are_left_to_the_cluster() -> None:
    text = "{name: ranks, resources: {limits: {rdma/hca: 1, ephemeral-storage: 1Gi}}}"
    (spec,) = parse(f"name: a\nrun: x\nkubernetes: {{spec: {{containers: [{text}]}}}}\n", source="f")
    assert isinstance(spec, Training)
    assert spec.kubernetes.pod["spec"]["containers"][0]["resources"]["limits"] == {
        "rdma/hca": 1,
        "ephemeral-storage": "1Gi",
    }


@pytest.mark.parametrize(("name", "value"), [("cpu", "1e50"), ("cpu", 100_001), ("memory", "1e40"), ("memory", "2Pi")])
@pytest.mark.parametrize("part", ["requests", "limits"])
def test_a_container_gets_no_more_than_the_ranks_may_have(part: str, name: str, value: object) -> None:
    text = {"initContainers": [{"name": "c", "image": "x", "resources": {part: {name: value}}}]}
    with pytest.raises(ValueError, match=rf"resources\.{part}\.{name}: .* is more than a pod may have; give at most 1"):
        overlay({"spec": text})
