"""Chooses how a run with a share of a GPU is isolated from its neighbours: MIG instance, MPS or time slices.

A MIG instance has compute and memory of its own. MPS divides both among concurrent processes, and limits the memory of
each. Time slices take turns: one process at a time has all the compute, none has memory of its own, and a neighbour
that computes for long delays all others (NVIDIA, GPU Operator documentation, "Time-Slicing GPUs" and "Multi-Process
Service").

So runs that are sensitive to neighbours get the strongest isolation available: those with a stall timeout or a
deadline, gangs, which go at the pace of their slowest pod, and those that declare their need of memory. Others get the
weakest isolation first, and leave instances to the sensitive ones. A run may restrict the acceptable ways.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from fairlead.specs.gang import GangSpec
from fairlead.specs.resources import Resources
from fairlead.specs.sharing import Sharing
from fairlead.state.snapshot import WHOLE_MILLI, Gpu, Node
from fairlead.text.quantities import SHARED_BY, describe_ways, plural

GB = 10**9  # as GPU vendors count
MOST_APART_FIRST = (Sharing.MIG, Sharing.MPS, Sharing.TIME_SLICING)
_PARTS = {Sharing.MIG: "MIG instance", Sharing.MPS: "MPS share", Sharing.TIME_SLICING: "time slice"}


class Need(StrEnum):
    """The sensitivity of a run to its neighbours."""

    STEADY = "steady"
    SOFT = "soft"


def need_of(spec: GangSpec) -> Need:
    """Return whether the run is sensitive to neighbours."""
    gpu = spec.resources.gpu
    is_timed = spec.stall_timeout_s is not None or spec.max_duration_s is not None
    needs_memory = gpu is not None and gpu.min_memory_bytes is not None
    return Need.STEADY if is_timed or spec.nodes > 1 or needs_memory else Need.SOFT


def choices(spec: GangSpec, offered: Iterable[Sharing]) -> tuple[frozenset[Sharing] | None, ...]:
    """Return ways to provide a share of a GPU by preference, each with the better ones; the first that fits is used.

    None stands for any way: if at most one acceptable way is offered, there is no choice.
    """
    allowed = frozenset(spec.resources.sharing) or frozenset(Sharing)
    order = [way for way in MOST_APART_FIRST if way in allowed.intersection(offered)]
    if len(order) < 2:
        return (frozenset(spec.resources.sharing) or None,)
    if need_of(spec) is Need.SOFT:
        order.reverse()
    return tuple(frozenset(order[: num + 1]) for num in range(len(order)))


def describe_parts(gpus: Sequence[Gpu], count: int = 2) -> str:
    """Return the name for so many of some parts of GPUs."""
    ways = {gpu.shared_by for gpu in gpus if gpu.milli < WHOLE_MILLI}
    only = ways.pop() if len(ways) == 1 else None
    one, several = ("share of a GPU", "shares of GPUs") if only is None else (_PARTS[only], f"{_PARTS[only]}s")
    return one if count == 1 else several


def describe_shared(nodes: Iterable[Node]) -> str:
    """Describe the shared devices of nodes, such as ``7 MIG instances of 0.142 GPU with 5 GB``."""
    kinds = Counter((gpu.milli, gpu.sharing, gpu.memory_bytes) for node in nodes for gpu in node.gpus)
    parts = []
    for (milli, way, memory_bytes), count in sorted(kinds.items(), key=lambda item: (-item[1], str(item[0]))):
        if way is None:
            parts.append(f"{plural(count, 'GPU')} that {'goes' if count == 1 else 'go'} to one run only")
        elif milli == WHOLE_MILLI:
            parts.append(f"{plural(count, 'GPU')} shared by {SHARED_BY[way]}")
        else:
            memory = f" with {memory_bytes / GB:g} GB" if memory_bytes else ""
            parts.append(f"{plural(count, _PARTS[way])} of {milli / WHOLE_MILLI:g} GPU{memory}")
    return ", ".join(parts[:4]) or "no GPU"


def remedy(resources: Resources, nodes: Iterable[Node]) -> str | None:
    """Return the remedy if a share finds no place because of its required isolation; None if the cause is another."""
    modes = {gpu.sharing for node in nodes for gpu in node.gpus} - {None}
    missing = [way for way in MOST_APART_FIRST if way in modes and way not in resources.sharing]
    if not resources.sharing or not missing or modes.intersection(resources.sharing):
        return None
    ways = " or ".join(missing)
    return (
        f"Add {ways} to `resources.sharing`, which this cluster offers, or have GPUs shared{describe_ways(resources)}."
    )
