"""Builders of small fleets and shapes, and strategies that draw them."""

from hypothesis import strategies as st

from fairlead.policy.placement.pod_shapes import Shape
from fairlead.state.snapshot import Gpu, Node

GIB = 1024**3
MODELS = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "Tesla T4")


def node(
    name: str, *, gpus: int = 0, model: str = MODELS[0], gib: int = 40, cores: int = 16, ready: bool = True
) -> Node:
    """A node with 8 GiB for each core."""
    devices = tuple(Gpu(uuid=f"{name}-{i}", model=model, memory_bytes=gib * GIB) for i in range(gpus))
    return Node(name=name, cpu_milli=cores * 1000, memory_bytes=8 * cores * GIB, gpus=devices, ready=ready)


def shape(
    *,
    gpus: int = 0,
    milli: int = 1000,
    cores: int = 1,
    gib: int = 1,
    model: str | None = None,
    least: int | None = None,
) -> Shape:
    """A shape; ``milli`` counts only with devices."""
    return Shape(
        cpu_milli=cores * 1000,
        memory_bytes=gib * GIB,
        num_gpus=gpus,
        gpu_milli=milli if gpus else 0,
        gpu_model=model,
        min_gpu_memory_bytes=None if least is None else least * GIB,
    )


@st.composite
def nodes(draw: st.DrawFn, *, least: int = 2) -> tuple[Node, ...]:
    """Nodes of several kinds, some of them not ready."""
    count = draw(st.integers(least, 6))
    return tuple(
        node(
            f"n{i}",
            gpus=draw(st.sampled_from((0, 1, 2, 4))),
            model=draw(st.sampled_from(MODELS)),
            gib=draw(st.sampled_from((16, 40, 80))),
            cores=draw(st.sampled_from((2, 8, 16))),
            ready=draw(st.integers(0, 4)) > 0,
        )
        for i in range(count)
    )


def shapes() -> st.SearchStrategy[Shape]:
    """Shapes that some of the nodes can host."""
    models = st.sampled_from((None, "a100", "H100", "A100|T4"))
    memory = st.sampled_from((None, 40))
    cores, gib = st.integers(1, 6), st.integers(1, 48)
    whole = st.builds(shape, gpus=st.sampled_from((1, 2)), cores=cores, gib=gib, model=models, least=memory)
    share = st.builds(
        shape, gpus=st.just(1), milli=st.sampled_from((5, 190, 333, 500, 810)), cores=cores, gib=gib, model=models,
        least=memory,
    )  # fmt: skip
    return st.one_of(whole, share, st.builds(shape, cores=cores, gib=gib))
