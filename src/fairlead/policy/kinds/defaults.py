"""Chooses values that a spec leaves open, by the cluster it will run on, each with a note for the plan."""

from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.specs.training import Framework, Training
from fairlead.state.snapshot import Node
from fairlead.text.quantities import describe_cpu, describe_of_each, plural

INTERVAL_LATER = (
    "checkpoint.every: by the run itself, from what its saves cost and how often it fails; `status` says it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedSpec:
    """A spec without open values, and notes on the choices."""

    spec: Training
    notes: tuple[str, ...]


def complete(spec: Training, nodes: tuple[Node, ...]) -> CompletedSpec:
    """Fill in ranks and CPU.

    CPU is one core per rank, or an equal share of the machine if the gang has more ranks than it has cores: a small
    machine is used entirely, so that the next run waits instead of slowing both.
    """
    notes: list[str] = []
    if spec.ranks_per_node is None:
        ranks = spec.ranks_on_each_node
        why = "one for each GPU" if spec.resources.gpu is not None else "no GPU asked for"
        why = "Ray starts its own processes" if spec.framework is Framework.RAY else why
        notes.append(f"ranks_per_node: {ranks} ({why})")
        spec = replace(spec, ranks_per_node=ranks)
    notes.append(describe_rendezvous(spec))
    if spec.checkpoint.every_auto:
        notes.append(INTERVAL_LATER)
    if spec.resources.cpu_milli is None and nodes:
        largest = max(node.cpu_milli for node in nodes)
        members = -(-(spec.most_nodes or spec.nodes) // len(nodes))
        share = max(1, min(spec.ranks_on_each_node * 1000, largest // members))
        of_ranks = share == spec.ranks_on_each_node * 1000
        why = "one core for each rank" if of_ranks else f"an equal share of {describe_cpu(largest)}"
        until = " until it is known what such runs use" if spec.resources.cpu_auto else ""
        notes.append(f"resources.cpu: {describe_cpu(share)}{describe_of_each(spec)} ({why}){until}")
        spec = replace(spec, resources=replace(spec.resources, cpu_milli=share))
    if spec.checkpoint.to is None:
        notes.append("checkpoint.to: the run's own directory on this cluster")
    return CompletedSpec(spec=spec, notes=tuple(notes))


def describe_rendezvous(spec: Training) -> str:
    """Return whether its processes get the variables of torchrun, and why."""
    if not spec.has_rendezvous:
        return "launch: a lone rank starts by itself, without RANK and MASTER_ADDR; `launch: torchrun` sets them"
    if spec.framework is Framework.RAY:
        return "launch: on the first node alone, once each node is one of the Ray cluster at RAY_ADDRESS"
    if spec.framework not in (None, Framework.TORCH, Framework.LIGHTNING):
        return f"launch: with the variables of {spec.framework} beside RANK, MASTER_ADDR and what else torchrun sets"
    if spec.most_nodes is not None:
        why = "an elastic gang"
    else:
        why = plural(spec.world_size, "rank") if spec.world_size > 1 else "as asked for"
    return f"launch: with RANK, MASTER_ADDR and what else torchrun sets ({why})"
