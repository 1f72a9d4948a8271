"""Finds the MIG instances that runs wish for that want a part of a GPU."""

from collections import Counter
from collections.abc import Iterable

from benchmarks.candidates.mig.layouts import Wish
from fairlead.policy.gpu.mig import GB, Partitionable
from fairlead.policy.placement.device_matching import matches
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.specs.gang import GangSpec
from fairlead.specs.resources import Resources
from fairlead.specs.sharing import Sharing


def wishes_of(runs: Iterable[GangSpec], models: Iterable[Partitionable]) -> tuple[Wish, ...]:
    """Return what the runs wish for together, each member an instance, worth the part of a GPU that it asks for.

    A run that wants no part, or not by MIG, or one that no such GPU has, wishes for nothing.
    """
    known = tuple(models)
    counts = Counter[tuple[frozenset[str], float]]()
    for run in runs:
        profiles = profiles_for(run.resources, known)
        if profiles:
            counts[profiles, _worth(run.resources, known, profiles)] += run.nodes
    return tuple(
        Wish(profiles=profiles, count=count, weight=weight)
        for (profiles, weight), count in sorted(counts.items(), key=lambda item: (-item[0][1], sorted(item[0][0])))
    )


def profiles_for(resources: Resources, models: Iterable[Partitionable]) -> frozenset[str]:
    """Names of the profiles that would do, on any of these GPUs: as large as is asked for, or larger.

    Where one name stands for parts of unlike size on two of them, it is there only if all of those would do.
    """
    shape, sharing = Shape.of(resources), resources.sharing
    if not shape.is_share or (sharing and Sharing.MIG not in sharing):
        return frozenset()
    does, does_not = set[str](), set[str]()
    for model in models:
        for profile in model.profiles.values():
            is_large = profile.compute * WHOLE_GPU // model.compute >= shape.gpu_milli
            memory_bytes = profile.memory_gb * GB
            is_such = matches(model.family, memory_bytes, shape.gpu_model, shape.min_gpu_memory_bytes)
            (does if is_large and is_such and not profile.has_media else does_not).add(profile.name)
    return frozenset(does - does_not)


def _worth(resources: Resources, models: Iterable[Partitionable], profiles: frozenset[str]) -> float:
    """The part of a GPU asked for; of one asked for by memory, that of the smallest instance that has it."""
    shape = Shape.of(resources)
    if not shape.parts_only:
        return shape.gpu_milli / WHOLE_GPU
    such = [(model, model.profiles[name]) for model in models for name in profiles if name in model.profiles]
    return min(profile.compute / model.compute for model, profile in such)
