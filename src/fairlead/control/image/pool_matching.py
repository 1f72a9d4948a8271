"""Matches the environment of a run to the drivers and GPUs of the nodes that may get it, before anything is built.

A node counts by the labels of GPU feature discovery. Where the packages that were resolved cannot work, another build
of the same torch is taken if it works on all of these nodes; otherwise nodes on which it cannot work are left out.

See decisions 228 and 289.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes.devices import DRIVER, DRIVER_PARTS, PRODUCT, gpu_platform
from fairlead.cluster.local.packages.locked_packages import packages_of
from fairlead.errors import Conflict
from fairlead.frozen import dataclass
from fairlead.policy.gpu.cuda_support import GpuPlatform, GpuSupport, Support, TorchBuild, fitting_builds, judge
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.policy.placement.placement import matching
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.specs.overlay import overlay
from fairlead.specs.training import Training
from fairlead.state.node_pools import POOL_LABELS
from fairlead.state.snapshot import Node

MOST_TRIED = 2
"""Most builds of torch for which packages are resolved again; each takes seconds."""
SEPARATING_LABELS = (
    DRIVER,
    *(major for major, _, _ in DRIVER_PARTS),
    PRODUCT,
    *POOL_LABELS,
    "kubernetes.io/hostname",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedLock:
    """A lock that works on the nodes that may get a run, as far as is known.

    Attributes:
        spec: The run, kept from nodes on which it cannot work.
        notes: What was chosen and what is unknown, a sentence each.
    """

    spec: Training
    lock: str
    notes: tuple[str, ...] = ()


def match_pools(
    spec: Training,
    nodes: tuple[Node, ...],
    python: str,
    machine: str,
    resolve: Callable[[TorchBuild | None], str],
    *,
    may_choose: bool,
) -> MatchedLock:
    """Return the lock of a run whose nodes may have GPUs.

    Args:
        nodes: All nodes of the cluster.
        python: Full version of the Python in pods.
        machine: The architecture of processors, such as x86_64.
        resolve: Returns the lock with a build of torch, or the one that follows without a choice.
        may_choose: The user has not chosen a build.

    Raises:
        Conflict: It cannot work on any of them.
    """
    lock = resolve(None)
    by_platform = _platforms(spec, nodes, machine)
    if not by_platform:
        return MatchedLock(spec=spec, lock=lock)
    platforms = tuple(by_platform)
    answers = _judge(lock, python, machine, platforms)
    refused = {platform: answer for platform, answer in answers.items() if answer.support is Support.REFUSED}
    if not refused:
        return MatchedLock(spec=spec, lock=lock, notes=_remarks(answers))
    problem = next(iter(refused.values()))
    if may_choose:
        packages = packages_of(lock.encode(), python, machine)
        # Nobody gets an older torch for the sake of some of the nodes.
        may_be_older = len(refused) == len(answers)
        for build in fitting_builds(packages, platforms, may_be_older=may_be_older)[:MOST_TRIED]:
            try:
                other = resolve(build)
            except Conflict:
                continue  # its index lacks what is asked for; the refusal below names the builds
            others = _judge(other, python, machine, platforms)
            if all(answer.support is not Support.REFUSED for answer in others.values()):
                taken = f"{build.name} is taken, by UV_TORCH_BACKEND={build.backend}"
                note = f"environment: {problem.message}, so that {taken}"
                return MatchedLock(spec=spec, lock=other, notes=(note, *_remarks(others)))
    if len(refused) == len(answers):
        remedy = "" if problem.remedy is None else f" {problem.remedy}"
        raise Conflict(
            f"{spec.name}: environment: it cannot work on the nodes that may get it: {problem.message}.{remedy}"
        )
    bad = [node for platform in refused for node in by_platform[platform]]
    good = [node for platform in answers.keys() - refused.keys() for node in by_platform[platform]]
    restricted = _restricted(spec, bad, good)
    if restricted is None:
        raise Conflict(
            f"{spec.name}: environment: {problem.message}, and no label tells its nodes from those on which it works. "
            "Name the GPUs, as in `resources: {gpu: H100}`, or label the pools with `fairlead.dev/pool`."
        )
    left_out = tuple(f"environment: {answer.message}, so that its nodes are left out" for answer in refused.values())
    return MatchedLock(spec=restricted, lock=lock, notes=(*left_out, *_remarks(answers)))


def _platforms(spec: Training, nodes: tuple[Node, ...], machine: str) -> dict[GpuPlatform, list[Node]]:
    """Return the nodes that may get pods of a run with GPUs, by driver and GPUs."""
    shape, barred = Shape.of(spec.resources), doors_of(nodes).barred_for_good(spec)
    platforms: dict[GpuPlatform, list[Node]] = {}
    for node in nodes:
        if node.name not in barred and matching(node, shape):
            platforms.setdefault(gpu_platform(node, machine), []).append(node)
    return platforms


def _judge(lock: str, python: str, machine: str, platforms: Iterable[GpuPlatform]) -> dict[GpuPlatform, GpuSupport]:
    packages = packages_of(lock.encode(), python, machine)
    return {platform: judge(packages, platform) for platform in platforms}


def _remarks(answers: Mapping[GpuPlatform, GpuSupport]) -> tuple[str, ...]:
    """Return what works where, and what is unknown."""
    sentences = []
    for platform, answer in answers.items():
        if answer.support is Support.WORKS:
            sentences.append(f"environment: on {platform.place} {answer.message}")
        elif answer.support is Support.UNKNOWN:
            sentences.append(f"environment: unknown whether it works on {platform.place}: {answer.message}")
    return tuple(dict.fromkeys(sentences))


def _restricted(spec: Training, bad: Iterable[Node], good: Iterable[Node]) -> Training | None:
    """Return a run that requires nodes without the labels of some; None if no label tells them from the others."""
    for label in SEPARATING_LABELS:
        values = {node.labels.get(label) for node in bad}
        if None not in values and values.isdisjoint(node.labels.get(label) for node in good):
            break
    else:
        return None
    own = {"key": label, "operator": "NotIn", "values": sorted(value for value in values if value is not None)}
    pod: dict[str, Any] = spec.kubernetes.pod
    of_nodes = pod.setdefault("spec", {}).setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = of_nodes.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    # Terms are alternatives, so that each gets the requirement.
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), own]} for term in terms
    ]
    return replace(spec, kubernetes=overlay(pod))
