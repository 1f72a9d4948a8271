"""Simulates NVIDIA's MIG manager, or device plugin: applying a layout takes the time that the pool specifies."""

from dataclasses import replace

from fairlead.cluster.simulated.faults import PartitionNode
from fairlead.cluster.simulated.simulation_state import Due, SimulationState
from fairlead.policy.gpu.device_inventory import in_layout, layout_of
from fairlead.state.partitions import ManagerState, PartitionAction, PartitionChange, PartitionedNode, PartitionStep
from fairlead.state.snapshot import Leaving, Node


def note_partitions(state: SimulationState, node: Node) -> None:
    """Record the initial layout of a node, without a request."""
    pool = state.pool_of.get(node.name)
    if pool is not None:
        layout = layout_of(pool, node.gpus, None)
        state.partitioned[node.name] = PartitionedNode(node=node.name, pool=pool, layout=layout, requested=layout)


def carry_out_step(state: SimulationState, step: PartitionStep, now: float) -> bool:
    """Apply a step to a node, unless the node is gone or in another state; return whether it was applied."""
    node_state, node = state.partitioned.get(step.node), state.nodes.get(step.node)
    if node_state is None or node is None or (node_state.change is None) is not (step.action is PartitionAction.CORDON):
        return False
    if step.failed is not None:
        node_state = replace(node_state, failed={**node_state.failed, step.failed: now})
    if step.action is PartitionAction.CORDON:
        node_state = replace(
            node_state, change=PartitionChange(to=step.to, back=node_state.layout or step.to, since=now)
        )
        why = f"its GPUs are to have the layout {step.to}"
        node = replace(node, closed=f"cordoned: {why}", leaving=Leaving(why=why, gpus_only=True))
    elif step.action in (PartitionAction.RELABEL, PartitionAction.REVERT):
        partitions = node_state.pool.partitions
        assert node_state.change is not None, "it is on its way"
        assert partitions is not None, "it has layouts"
        change = replace(node_state.change, to=step.to, since=now)
        node_state = replace(node_state, change=change, requested=step.to, manager_state=ManagerState.PENDING)
        ready_at = now + partitions.reconfigure_s
        state.push(ready_at, Due.FAULT, "", PartitionNode(node=step.node, layout=step.to))
    else:
        node_state = replace(node_state, change=None)
        node = replace(node, closed=None, leaving=None)
    state.partitioned[step.node], state.nodes[step.node] = node_state, node
    state.partition_steps.append((now, step))
    state.touch()
    return True


def carry_out_layout(state: SimulationState, done: PartitionNode) -> None:
    """Apply the layout last requested for a node's GPUs, or record that its manager failed to."""
    node_state, node = state.partitioned.get(done.node), state.nodes.get(done.node)
    if (
        node_state is None
        or node is None
        or node_state.requested != done.layout
        or node_state.manager_state is not ManagerState.PENDING
    ):
        return
    if done.works:
        state.nodes[done.node] = replace(node, gpus=in_layout(node_state.pool, done.layout, done.node))
        node_state = replace(node_state, layout=done.layout)
    outcome = ManagerState.SUCCESS if done.works else ManagerState.FAILED
    state.partitioned[done.node] = replace(node_state, manager_state=outcome)
    state.touch()
