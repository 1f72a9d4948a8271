"""Simulates NVIDIA's MIG manager, or device plugin: applying a layout takes the time that the pool specifies."""

from dataclasses import replace

from fairlead.cluster.simulated.faults import PartitionNode
from fairlead.cluster.simulated.simulation_state import Due, State
from fairlead.policy.gpu.device_inventory import in_layout, layout_of
from fairlead.state.partitions import ManagerState, PartitionAction, PartitionChange, PartitionedNode, PartitionStep
from fairlead.state.snapshot import Leaving, Node


def note_partitions(state: State, node: Node) -> None:
    """Record the initial layout of a node, without a request."""
    pool = state.pool_of.get(node.name)
    if pool is not None:
        layout = layout_of(pool, node.gpus, None)
        state.partitioned[node.name] = PartitionedNode(node=node.name, pool=pool, layout=layout, requested=layout)


def carry_out_step(state: State, step: PartitionStep, now: float) -> bool:
    """Apply a step to a node, unless the node is gone or in another state; return whether it was applied."""
    each, node = state.partitioned.get(step.node), state.nodes.get(step.node)
    if each is None or node is None or (each.change is None) is not (step.action is PartitionAction.CORDON):
        return False
    if step.failed is not None:
        each = replace(each, failed={**each.failed, step.failed: now})
    if step.action is PartitionAction.CORDON:
        each = replace(each, change=PartitionChange(to=step.to, back=each.layout or step.to, since=now))
        why = f"its GPUs are to have the layout {step.to}"
        node = replace(node, closed=f"cordoned: {why}", leaving=Leaving(why=why, gpus_only=True))
    elif step.action in (PartitionAction.RELABEL, PartitionAction.REVERT):
        partitions = each.pool.partitions
        assert each.change is not None, "it is on its way"
        assert partitions is not None, "it has layouts"
        change = replace(each.change, to=step.to, since=now)
        each = replace(each, change=change, requested=step.to, said=ManagerState.PENDING)
        ready_at = now + partitions.reconfigure_s
        state.push(ready_at, Due.FAULT, "", PartitionNode(node=step.node, layout=step.to))
    else:
        each = replace(each, change=None)
        node = replace(node, closed=None, leaving=None)
    state.partitioned[step.node], state.nodes[step.node] = each, node
    state.partition_steps.append((now, step))
    state.touch()
    return True


def carry_out_layout(state: State, done: PartitionNode) -> None:
    """Apply the layout last requested for a node's GPUs, or record that its manager failed to."""
    each, node = state.partitioned.get(done.node), state.nodes.get(done.node)
    if each is None or node is None or each.requested != done.layout or each.said is not ManagerState.PENDING:
        return
    if done.works:
        state.nodes[done.node] = replace(node, gpus=in_layout(each.pool, done.layout, done.node))
        each = replace(each, layout=done.layout)
    said = ManagerState.SUCCESS if done.works else ManagerState.FAILED
    state.partitioned[done.node] = replace(each, said=said)
    state.touch()
