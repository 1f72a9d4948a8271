"""All of a gang or none of it, whatever chooses the nodes."""

from typing import Protocol

import numpy as np

from fairlead.policy.fleet import Fleet, Spot
from fairlead.policy.shapes import Shape


class Chooser(Protocol):
    """Chooses among the nodes of a fleet."""

    def choose(self, shape: Shape) -> Spot | None:
        """Node and devices for one pod as things stand; None where it fits nowhere. Takes nothing."""
        ...


def place_gang(shape: Shape, count: int, fleet: Fleet, chooser: Chooser) -> tuple[Spot, ...] | None:
    """Spots for so many members of one shape, taken from the fleet; None, with nothing taken, if not all fit."""
    if not holds(shape, count, fleet):
        return None
    spots: list[Spot] = []
    for _ in range(count):
        chosen = chooser.choose(shape)
        if chosen is None:
            for spot in spots:
                fleet.release(spot.node, shape.cpu_milli, shape.memory_bytes, spot.devices, shape.gpu_milli)
            return None
        fleet.take(chosen.node, shape.cpu_milli, shape.memory_bytes, chosen.devices, shape.gpu_milli)
        spots.append(chosen)
    fleet.num_placed += count
    return tuple(spots)


def holds(shape: Shape, count: int, fleet: Fleet) -> bool:
    """Whether so many members of one shape fit: what one takes from its node leaves the others as they are."""
    everywhere = np.arange(len(fleet))
    usable = fleet.usable(everywhere, shape)
    most = np.full(len(fleet), count)
    if shape.cpu_milli:
        most = np.minimum(most, fleet.cpu_milli // shape.cpu_milli)
    if shape.memory_bytes:
        most = np.minimum(most, fleet.memory_bytes // shape.memory_bytes)
    if shape.is_share:
        most = np.minimum(most, (usable * (fleet.gpu_milli // shape.gpu_milli)).sum(axis=1))
    elif shape.num_gpus:
        most = np.minimum(most, usable.sum(axis=1) // shape.num_gpus)
    return int(most[fleet.fits(everywhere, shape, usable)].sum()) >= count


def release(shape: Shape, spot: Spot, fleet: Fleet) -> None:
    """Give back what a member held that is over."""
    fleet.num_left += 1
    fleet.release(spot.node, shape.cpu_milli, shape.memory_bytes, spot.devices, shape.gpu_milli)
