"""The words that decisions and agents read of a run, whatever its kind: they may use no others.

A spec has these attributes or it has not; none needs to inherit anything. ``Training`` has them, and so has to every
later kind whose runs have pods. A mypy error here says which attribute is missing, and who reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fairlead.specs.engines import Engine
    from fairlead.specs.overlay import Overlay
    from fairlead.specs.parallel import Parallel
    from fairlead.specs.resources import Resources
    from fairlead.specs.training import Capacity, Checkpoint, Framework, Logs, Retry


class GangSpec(Protocol):
    """The words that the queue, placement, preemption, elastic sizes and the sharing of GPUs read of a run.

    ``Training`` says what each of them means, in its unit and its range.
    """

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def team(self) -> str: ...

    @property
    def nodes(self) -> int: ...

    @property
    def most_nodes(self) -> int | None: ...

    @property
    def resources(self) -> Resources: ...

    @property
    def capacity(self) -> Capacity: ...

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def priority(self) -> int: ...

    @property
    def max_duration_s(self) -> float | None: ...

    @property
    def max_cost(self) -> float | None: ...

    @property
    def expected_duration_s(self) -> float | None: ...

    @property
    def engine(self) -> Engine | None: ...

    @property
    def deadline_s(self) -> float | None: ...

    @property
    def stall_timeout_s(self) -> float | None: ...

    @property
    def grace_s(self) -> float: ...

    @property
    def kubernetes(self) -> Overlay: ...

    def at(self, num_nodes: int) -> GangSpec:
        """Return the same gang with just so many nodes, from 1 to as many as it may have."""

    def on(self, *, spot: bool) -> GangSpec:
        """Return the same gang with nothing but spot nodes, or with none of them."""

    def away_from(self, names: tuple[str, ...]) -> GangSpec:
        """Return the same gang on any nodes but these."""


class ProgramSpec(GangSpec, Protocol):
    """The words that agents read besides, to make pods of a gang and to run its program in them."""

    @property
    def run(self) -> str: ...

    @property
    def setup(self) -> str | None: ...

    @property
    def workdir(self) -> str | None: ...

    @property
    def image(self) -> str | None: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def retry(self) -> Retry: ...

    @property
    def logs(self) -> Logs: ...

    @property
    def parallel(self) -> Parallel | None: ...

    @property
    def snapshot(self) -> bool: ...

    @property
    def terminate_on_nan(self) -> bool: ...

    @property
    def ranks_on_each_node(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def framework(self) -> Framework | None: ...

    @property
    def has_rendezvous(self) -> bool: ...

    @property
    def may_fork(self) -> bool: ...

    def at(self, num_nodes: int) -> ProgramSpec:
        """Return the same gang with just so many nodes, from 1 to as many as it may have."""
