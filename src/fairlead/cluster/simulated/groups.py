"""Pools with the simulated behaviour of their nodes."""

from collections.abc import Iterable, Iterator, Sequence

from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass
from fairlead.policy.capacity.pool_nodes import node_of
from fairlead.specs.pool import CapacityType, Pool
from fairlead.specs.simulation import Failures, Interference, Programs, Provisioning, Reclaims, Simulation, Store
from fairlead.state.snapshot import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """A pool with the behaviour of its nodes; None for behaviour that is not simulated."""

    pool: Pool
    failures: Failures | None = None
    reclaims: Reclaims | None = None
    provisioning: Provisioning | None = None

    @property
    def num_always(self) -> int:
        """Return the number of nodes that exist from the beginning."""
        return self.pool.nodes if self.provisioning is None else self.provisioning.min_nodes

    def node(self, number: int) -> Node:
        """Return the node of a number, from 0, named ``<pool>-<number>``."""
        return node_of(self.pool, f"{self.pool.name}-{number}")

    def nodes(self) -> tuple[Node, ...]:
        """Return every node that the pool may have."""
        return tuple(self.node(number) for number in range(self.pool.nodes))


def groups_of(pools: Sequence[Pool], simulations: Sequence[Simulation] = ()) -> tuple[NodeGroup, ...]:
    """Combine each pool with its simulated behaviour; a simulation that names the pool outweighs a general one.

    Raises:
        InvalidSpec: Two simulations conflict on one pool, a pool does not exist, or reclaims are for one that is not
            spot.
    """
    problems = list(_problems(pools, simulations))
    if problems:
        raise InvalidSpec(tuple(problems))
    groups = []
    for pool in pools:
        failures = _setting(simulations, pool, "failures")
        reclaims = _setting(simulations, pool, "reclaims")
        provisioning = _setting(simulations, pool, "provisioning")
        is_spot = pool.capacity_type is CapacityType.SPOT
        assert failures is None or isinstance(failures, Failures)
        assert reclaims is None or isinstance(reclaims, Reclaims)
        assert provisioning is None or isinstance(provisioning, Provisioning)
        groups.append(
            NodeGroup(
                pool=pool,
                failures=failures,
                reclaims=reclaims if is_spot else None,
                provisioning=provisioning,
            )
        )
    return tuple(groups)


def programs_of(simulations: Iterable[Simulation]) -> Programs:
    """Return the costs of starting and saving."""
    return next((simulation.programs for simulation in simulations if simulation.programs is not None), Programs())


def interference_of(simulations: Iterable[Simulation]) -> Interference | None:
    """Return the slowdown of pods beside others; None if it is not simulated."""
    return next((simulation.interference for simulation in simulations if simulation.interference is not None), None)


def store_of(simulations: Iterable[Simulation]) -> Store | None:
    """Return the store that runs read from; None if reading is not simulated."""
    return next((simulation.store for simulation in simulations if simulation.store is not None), None)


_OF_POOLS = ("failures", "reclaims", "provisioning")
_OF_ALL = ("programs", "interference", "store")


def _setting(simulations: Sequence[Simulation], pool: Pool, what: str) -> object | None:
    named = (getattr(simulation, what) for simulation in simulations if pool.name in simulation.pools)
    general = (getattr(simulation, what) for simulation in simulations if not simulation.pools)
    return next((value for value in (*named, *general) if value is not None), None)


def _problems(pools: Sequence[Pool], simulations: Sequence[Simulation]) -> Iterator[str]:
    known = {pool.name: pool for pool in pools}
    owners: dict[tuple[str, str], str] = {}
    for simulation in simulations:
        for name in simulation.pools:
            if name not in known:
                yield (
                    f"Simulation {simulation.name}: pools: no Pool of the file is called {name}; "
                    f"it has {', '.join(known)}"
                )
        for what in (*_OF_POOLS, *_OF_ALL):
            for name in simulation.pools or ("",) if getattr(simulation, what) is not None else ():
                other = owners.setdefault((name, what), simulation.name)
                if other != simulation.name:
                    where = f"pool {name}" if name else "all pools" if what in _OF_POOLS else "the whole cluster"
                    yield (
                        f"Simulation {simulation.name}: {what}: Simulation {other} has it for {where} too; "
                        "keep one of them"
                    )
        if simulation.interference is not None and any(other.store is not None for other in simulations):
            yield (
                f"Simulation {simulation.name}: interference: it is not simulated together with `store`, as nothing "
                "says how much of a slowdown is reading; leave one of them out"
            )
        if simulation.reclaims is not None:
            named = [known[name] for name in simulation.pools if name in known] if simulation.pools else list(pools)
            spot = [pool for pool in named if pool.capacity_type is CapacityType.SPOT]
            if (simulation.pools and len(spot) < len(named)) or not spot:
                others = ", ".join(pool.name for pool in named if pool not in spot)
                yield (
                    f"Simulation {simulation.name}: reclaims: only spot nodes are taken away, and {others} "
                    "is none; give that Pool `capacity_type: spot`, or name others in `pools`"
                )
    for pool in pools:
        provisioning = _setting(simulations, pool, "provisioning")
        if isinstance(provisioning, Provisioning) and provisioning.min_nodes > pool.nodes:
            yield (
                f"Simulation: provisioning.min_nodes: {provisioning.min_nodes} is more than the {pool.nodes} nodes "
                f"that pool {pool.name} can have; give at most those"
            )
