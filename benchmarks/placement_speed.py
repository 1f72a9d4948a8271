"""Speed of placement, and the growth of the cost of one decision with the cluster.

    python -m benchmarks.placement_speed [--nodes 1000,5000,15000] [--decisions 5000] [--json]

Two cases, both by the placement code of production. *Steady*: clusters of mixed nodes, filled to 85 %,
where pods of 48 shapes come and go; every filter takes part (readiness, cores, memory, GPU model with alternatives, GPU
memory, shares). *New nodes*: 40,151 pods in six shapes planned onto at most 8,031 empty nodes of 16 cores and 64 GiB.
The shapes are ours, chosen so that about five pods fill a node: cores and GiB of 1/2, 2/8, 2/4, 3/12, 4/16 and 6/24 in
equal parts. The bars are 1,100 decisions a second at 5,000 nodes, growth no faster than the square root of the number
of nodes, and 59 s for the new nodes. Seconds are CPU seconds of one process.
"""

import argparse
import json
import math
import time
from collections import deque

import numpy as np

from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.gang_placement import place_one, release
from fairlead.policy.placement.packing import Packing
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.task_mix import TaskMix
from fairlead.state.snapshot import Gpu, Node

GIB = 1024**3
MODELS = (("A100-SXM4-80GB", 80), ("H100-80GB", 80), ("L4", 24), ("T4", 16))
SIX = ((1, 2), (2, 8), (2, 4), (3, 12), (4, 16), (6, 24))
NUM_PODS, NUM_NEW_NODES, SECONDS = 40_151, 8_031, 59.0
FILLED = 0.85
RATE, RATE_NODES = 1_100.0, 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1000,5000,15000", help="sizes of clusters (default 1000,5000,15000)")
    parser.add_argument("--decisions", type=int, default=5000, help="decisions that are timed (default 5000)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.nodes.split(",")]
    seconds = {size: steady(size, arguments.decisions) for size in sizes}
    took, used = new_nodes()
    if arguments.json:
        steadily = {size: 1 / each for size, each in seconds.items()}
        print(json.dumps({"decisions_per_s": steadily, "new_nodes_s": took, "new_nodes_used": used}))
        return
    least = min(sizes)
    for size, each in seconds.items():
        growth, bar = each / seconds[least], math.sqrt(size / least)
        note = f"bar: {RATE:,.0f}" if size == RATE_NODES else ""
        print(f"{size:>7,} nodes {1 / each:>9,.0f} decisions/s   cost x{growth:.2f} (bar: x{bar:.2f})   {note}")
    print(f"{NUM_PODS:,} pods on {used:,} new nodes (bar: {NUM_NEW_NODES:,}) in {took:.1f} s (bar: {SECONDS:.0f} s)")


def steady(num_nodes: int, num_decisions: int) -> float:
    """Mean seconds of one decision, that is to choose, to take and now and then to learn anew."""
    rng = np.random.default_rng(0)
    fleet = FleetArrays([_node(i) for i in range(num_nodes)])
    shapes = _shapes()
    packing = Packing(fleet, TaskMix())
    held: deque[tuple[Shape, Spot]] = deque()

    def arrive() -> None:
        shape = shapes[rng.integers(len(shapes))]
        packing.observe(shape)
        spots = place_one(shape, fleet, packing)
        if spots is not None:
            held.append((shape, spots[0]))

    full = FILLED * sum(len(node.gpus) for node in fleet.nodes if node.ready) * WHOLE_GPU
    while fleet.total_gpu_milli - fleet.free_gpu_milli < full:
        arrive()
    began = time.process_time()
    for _ in range(num_decisions):
        while fleet.total_gpu_milli - fleet.free_gpu_milli > full:
            release(*held.popleft(), fleet)
        arrive()
    return (time.process_time() - began) / num_decisions


def new_nodes() -> tuple[float, int]:
    """Seconds to plan all pods onto new nodes, and how many nodes they need."""
    rng = np.random.default_rng(0)
    nodes = [Node(name=f"new-{i}", cpu_milli=16_000, memory_bytes=64 * GIB) for i in range(NUM_NEW_NODES)]
    shapes = [Shape(cpu_milli=1000 * cores, memory_bytes=gib * GIB) for cores, gib in SIX]
    began = time.process_time()
    fleet = FleetArrays(nodes)
    packing = Packing(fleet, TaskMix())
    used = set()
    for i in rng.permutation(NUM_PODS):
        shape = shapes[i % len(shapes)]
        packing.observe(shape)
        spots = place_one(shape, fleet, packing)
        if spots is None:
            raise RuntimeError(f"{NUM_NEW_NODES} nodes do not hold the pods")
        used.add(spots[0].node)
    return time.process_time() - began, len(used)


def _node(i: int) -> Node:
    model, gib = MODELS[i % len(MODELS)]
    num = (8, 8, 4, 2)[i % len(MODELS)]
    gpus = tuple(Gpu(uuid=f"{i}-{j}", model=model, memory_bytes=gib * GIB) for j in range(num))
    return Node(
        name=f"node-{i}", cpu_milli=12_000 * num, memory_bytes=64 * num * GIB, gpus=gpus, ready=i % 50 != 0
    )  # fmt: skip


def _shapes() -> list[Shape]:
    """48 shapes: shares and whole devices, of any model, of some, or with enough memory."""
    shapes = []
    for cores in (2, 4, 8, 12):
        for num, milli in ((1, 160), (1, 470), (1, 810), (1, 1000), (2, 1000), (4, 1000)):
            for model, gib in ((None, None), (("A100|H100", None) if milli == 1000 else (None, 24))):
                shapes.append(
                    Shape(
                        cpu_milli=1000 * cores * num,
                        memory_bytes=4 * cores * num * GIB,
                        num_gpus=num,
                        gpu_milli=milli,
                        gpu_model=model,
                        min_gpu_memory_bytes=None if gib is None else gib * GIB,
                    )
                )
    return shapes


if __name__ == "__main__":
    main()
