"""Reads costs that the operator publishes in ConfigMaps, one for each day.

Users who may read those of the operator's namespace see all costs, including unused capacity; all others see those of
their own namespace.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.manifests.cost_objects import TEAM, WHOLE, DayCosts, date_of, name_of, read_costs
from fairlead.cluster.kubernetes.names import COSTS, MANAGED_BY, MANAGER, segment
from fairlead.cluster.ledger_tables import CostGrouping, Payer
from fairlead.errors import ClusterError, NotAllowed, NotFound
from fairlead.frozen import dataclass
from fairlead.ledger.bills import BillLine, Statement
from fairlead.ledger.usage import DAY_MS, Holder

NUM_THREADS = 8
NO_LOAD = (
    "The costs of these days were written by an operator that recorded no load. `fairlead install` brings the operator "
    "to this version, which records it from then on."
)
NOT_KEPT = (
    "No costs are kept on this cluster. `fairlead install --ledger volume` or `--ledger postgresql://...` has the "
    "operator keep them, from then on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLoad:
    """The load that runs were on the pools of a cluster, in Unix seconds from a beginning to an end.

    Attributes:
        pools: For each pool, how many milliseconds at least one of its nodes was busy, at least two, and so on.
            The nodes without a pool are one with an empty name.
        team: The team whose runs are counted; None for all.
    """

    pools: Mapping[str, tuple[int, ...]]
    start: float
    end: float
    team: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCosts:
    """The costs of some days.

    Attributes:
        team: The team whose costs they are; None for all costs, including unused capacity.
    """

    days: tuple[DayCosts, ...]
    team: str | None

    @property
    def at(self) -> float:
        """Time up to which the newest day is counted."""
        return max(costs.at for costs in self.days)

    def statement(self, by: CostGrouping, *, daily: bool = False) -> Statement[Payer]:
        """Return all lines by payer, separately for each day if ``daily``."""
        lines = tuple(self._lines(by, daily=daily or by is CostGrouping.DAY))
        billed: defaultdict[str, int] = defaultdict(int)
        for line in lines:
            billed[line.node] += line.microusd
        return Statement(billed=dict(billed), lines=lines)

    def load(self) -> PublishedLoad:
        """Return the load since the first of these days for which it was recorded.

        Raises:
            NotFound: It was recorded for none.
        """
        known = [costs for costs in self.days if costs.loads is not None]
        if not known:
            raise NotFound(NO_LOAD)
        sums: defaultdict[str, list[int]] = defaultdict(list)
        for loads in (costs.loads or {} for costs in known):
            for pool, busy_ms in loads.items():
                sums[pool] = [sum(both) for both in zip_longest(sums[pool], busy_ms, fillvalue=0)]
        start = min(costs.day for costs in known) * DAY_MS / 1000
        end = max(costs.at for costs in known)
        return PublishedLoad(
            pools={pool: tuple(busy) for pool, busy in sums.items()}, start=start, end=end, team=self.team
        )

    def holders(self) -> dict[str, Holder]:
        """The runs that pay, by uid."""
        return {line.key.uid: line.key for costs in self.days for line in costs.lines if line.key is not None}

    def _lines(self, by: CostGrouping, *, daily: bool) -> Iterator[BillLine[Payer]]:
        for costs in self.days:
            date = (date_of(costs.day),) if daily else ()
            for line in costs.lines:
                pool = costs.pools.get(line.node) or line.node
                payer = _payer(by, line.key, pool)
                key = None if payer is None and not date else (*date, *(payer or ()))
                yield BillLine(node=line.node, key=key, use=line.use, microusd=line.microusd, unit_ms=line.unit_ms)


def _payer(by: CostGrouping, holder: Holder | None, pool: str) -> tuple[str, ...] | None:
    if by is CostGrouping.POOL:
        return (pool,)
    if holder is None:
        return None
    if by is CostGrouping.DAY:
        return ()
    return (holder.run, holder.uid) if by is CostGrouping.RUN else (str(getattr(holder, by.value)),)


def read_published(
    client: Client, *, namespace: str, system: str, first_day: int, last_day: int, only_team: bool
) -> PublishedCosts:
    """Return the costs of these days, those of all teams if the user may read them.

    Args:
        only_team: Return only those of the namespace, whatever the user may read.

    Raises:
        NotFound: No costs are kept.
        NotAllowed: The user may read neither.
        ClusterError: They cannot be read.
    """
    if not only_team:
        try:
            days = _days(client, WHOLE, system, first_day, last_day)
        except ApiError as error:
            if error.status != 403:
                raise
        else:
            if days:
                return PublishedCosts(days=days, team=None)
    try:
        days = _days(client, TEAM, namespace, first_day, last_day)
    except ApiError as error:
        if error.status != 403:
            raise
        raise NotAllowed(
            f"Your account may not read the costs of the namespace {namespace!r}: {error.server_message}. Ask for the "
            "role fairlead-viewer there, or choose another with `--namespace`."
        ) from error
    if not days:
        raise NotFound(NOT_KEPT)
    return PublishedCosts(days=days, team=namespace)


def days_before(client: Client, namespace: str | None, before: float) -> list[tuple[str, str]]:
    """Return the objects of days that ended before a time: namespaces and names, the oldest day first.

    Args:
        namespace: One namespace; None for all.

    Raises:
        NotAllowed: The user may not list them.
    """
    where = "" if namespace is None else f"/namespaces/{segment(namespace)}"
    dated = []
    try:
        for configmap in client.items(
            f"/api/v1{where}/configmaps", {"labelSelector": f"{MANAGED_BY}={MANAGER},{COSTS}"}
        ):
            metadata = configmap["metadata"]
            date = str(metadata["name"])[-len("2026-01-31") :]
            if date < date_of(day_of(before)):
                dated.append((date, str(metadata["namespace"]), str(metadata["name"])))
    except ApiError as error:
        if error.status != 403:
            raise
        which = "of all namespaces" if namespace is None else f"of the namespace {namespace!r}"
        raise NotAllowed(f"Your account may not list the ConfigMaps {which}: {error.server_message}.") from error
    return [(namespace, name) for _, namespace, name in sorted(dated)]


def remove_days(client: Client, days: Iterable[tuple[str, str]]) -> int:
    """Remove these objects and return how many still existed. The ledger keeps their source data.

    Raises:
        NotAllowed: The user may not remove them.
    """
    num = 0
    for namespace, name in days:
        try:
            client.delete(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{segment(name)}")
        except ApiError as error:
            if error.status == 403:
                raise NotAllowed(
                    f"Your account may not remove {name} in {namespace}: {error.server_message}."
                ) from error
            if error.status != 404:
                raise
        else:
            num += 1
    return num


def _days(client: Client, kind: str, namespace: str, first_day: int, last_day: int) -> tuple[DayCosts, ...]:
    with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="costs") as threads:
        days = range(first_day, last_day + 1)
        costs = list(threads.map(lambda day: _day(client, kind, namespace, day), days))
    return tuple(day for day in costs if day is not None)


def _day(client: Client, kind: str, namespace: str, day: int) -> DayCosts | None:
    try:
        content = client.get(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{segment(name_of(kind, day))}")
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    try:
        return read_costs(content, day)
    except ValueError as error:
        raise ClusterError(f"In the namespace {namespace} {error}.") from error


def day_of(at: float) -> int:
    """Return the day of a time in Unix seconds, counted from 1970, UTC."""
    return round(at * 1000) // DAY_MS
