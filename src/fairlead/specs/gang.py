"""The attributes of a run that decisions and agents may read, for any kind.

The protocols are structural; specs need not inherit anything. ``Training`` has the attributes, and so must every later
kind whose runs have pods. A mypy error names a missing attribute and its reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fairlead.specs.data import DataSource
    from fairlead.specs.engines import Engine
    from fairlead.specs.network import Network
    from fairlead.specs.overlay import Overlay
    from fairlead.specs.parallel import Parallel
    from fairlead.specs.resources import Resources
    from fairlead.specs.secret_reference import SecretReference
    from fairlead.specs.training import Capacity, Checkpoint, Framework, Logs, Retry


class GangSpec(Protocol):
    """The attributes of a run that the queue, placement, preemption, elastic sizes and GPU sharing read.

    ``Training`` documents each of them with its unit and range.
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
    def ranks_on_each_node(self) -> int: ...

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
    def network(self) -> Network: ...

    @property
    def kubernetes(self) -> Overlay: ...

    def at(self, num_nodes: int) -> GangSpec:
        """Return the same gang with a number of nodes, from 1 to its maximum."""

    def on(self, *, spot: bool) -> GangSpec:
        """Return the same gang on spot nodes only, or on none."""

    def away_from(self, names: tuple[str, ...]) -> GangSpec:
        """Return the same gang on any nodes except these."""


class ProgramSpec(GangSpec, Protocol):
    """The further attributes that agents read to create pods of a gang and run its program in them."""

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
    def secrets(self) -> tuple[SecretReference, ...]: ...

    @property
    def data(self) -> Mapping[str, DataSource]: ...

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
    def world_size(self) -> int: ...

    @property
    def framework(self) -> Framework | None: ...

    @property
    def has_rendezvous(self) -> bool: ...

    @property
    def may_fork(self) -> bool: ...

    def at(self, num_nodes: int) -> ProgramSpec:
        """Return the same gang with a number of nodes, from 1 to its maximum."""
