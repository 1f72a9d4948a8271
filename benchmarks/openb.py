"""The public openb lists (Alibaba, cluster-trace-gpu-v2023) as Fairlead's values, and their arrival orders."""

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import numpy as np

from fairlead.policy.placement.pod_shapes import Shape
from fairlead.state.snapshot import Gpu, Node

MIB = 1024**2
WORKLOADS = (
    "default", "cpu050", "cpu100", "cpu200", "cpu250", "gpushare40", "gpushare60", "gpushare80", "gpushare100",
    "gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33", "multigpu20", "multigpu30", "multigpu40", "multigpu50",
)  # fmt: skip
SEEDS = (42, 43, 44, 45, 46)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A list of pods and the orders in which they arrive.

    Attributes:
        shapes: Each pod of the list.
        orders: For each seed, positions in ``shapes`` in the order of arrival; a pod may arrive again as a clone.
    """

    name: str
    shapes: tuple[Shape, ...]
    orders: dict[int, tuple[int, ...]]

    def arrivals(self, seed: int) -> Iterator[Shape]:
        """Shapes in the order of arrival; for a seed without a published order in one that is drawn likewise."""
        return (self.shapes[i] for i in self.orders.get(seed) or self._drawn(seed))

    def _drawn(self, seed: int) -> Iterator[int]:
        """The list in random order, then any of its pods again, until as many GPUs are asked for as in other orders."""
        rng = np.random.default_rng(seed)
        left_milli = sum(self.shapes[i].total_gpu_milli for i in next(iter(self.orders.values())))
        num = len(self.shapes)
        for i in chain((int(i) for i in rng.permutation(num)), (int(rng.integers(num)) for _ in count())):
            left_milli -= self.shapes[i].total_gpu_milli
            if left_milli < 0:
                return
            yield i


def read_nodes(data: Path) -> tuple[Node, ...]:
    """The 1,213 nodes with GPUs."""
    with (data / "openb" / "openb_node_list_gpu_node.csv").open(newline="") as file:
        return tuple(_node(row) for row in csv.DictReader(file))


def read_workload(data: Path, name: str) -> Workload:
    """One of ``WORKLOADS``, or another list of the same form."""
    with (data / "openb" / "pods" / f"{name}.csv").open(newline="") as file:
        shapes = tuple(_shape(row) for row in csv.DictReader(file))
    orders: dict[int, tuple[int, ...]] = {}
    with gzip.open(data / "openb" / "arrival_orders" / f"{name}.csv.gz", "rt") as lines:
        next(lines)
        for line in lines:
            seed, _, rows = line.partition(",")
            orders[int(seed)] = tuple(int(row) for row in rows.split())
    return Workload(name=name, shapes=shapes, orders=orders)


def read_published(data: Path) -> dict[tuple[str, str, int], float]:
    """GPUs allocated at 130 % arrival as a percentage, by workload, policy as we name it, and seed."""
    names = {"06-FGD": "fgd", "05-BestFit": "best-fit"}
    with (data / "openb" / "published" / "allo.csv").open(newline="") as file:
        return {
            (row["workload"], names[row["sc_policy"]], int(row["seed"])): float(row["130"])
            for row in csv.DictReader(file)
            if row["sc_policy"] in names
        }


def _node(row: dict[str, str]) -> Node:
    gpus = tuple(Gpu(uuid=f"{row['sn']}-{i}", model=row["model"], memory_bytes=0) for i in range(int(row["gpu"])))
    return Node(
        name=row["sn"], cpu_milli=int(row["cpu_milli"]), memory_bytes=int(row["memory_mib"]) * MIB, gpus=gpus
    )  # fmt: skip


def _shape(row: dict[str, str]) -> Shape:
    num = int(row["num_gpu"])
    return Shape(
        cpu_milli=int(row["cpu_milli"]),
        memory_bytes=int(row["memory_mib"]) * MIB,
        num_gpus=num,
        gpu_milli=int(row["gpu_milli"]) if num else 0,
        gpu_model=(row.get("gpu_spec") or None) if num else None,
    )
