"""Follows the pods and nodes of a cluster and records what they held and what that costs; only the leader does.

Everything comes from objects: what happened while no operator led is read from them later. A pod that disappeared in
between is charged up to the last moment at which it is known to have existed. Nothing waits for a database that does
not answer: the leader goes on, and writes everything once the database is back.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from fairlead.cluster.kubernetes.api.objects import NodeObject, PodObject
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.node_capacity import node_of
from fairlead.cluster.kubernetes.informers.pod_status import observe_pod
from fairlead.cluster.kubernetes.informers.snapshot_cache import everyone
from fairlead.cluster.kubernetes.operator.controller import Controller
from fairlead.cluster.kubernetes.operator.ledger.node_prices import catalogue, price_of
from fairlead.cluster.kubernetes.operator.ledger.usage_ledger import Ended, HeldPod, UsageLedger, day_of
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject
from fairlead.cluster.ledger_tables import Price, holder_of, month_of
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.ledger.activity import ended_ms
from fairlead.ledger.bills import Statement, cost_of, statement, stretches_of
from fairlead.ledger.goodput import Goodput, goodput
from fairlead.ledger.outage import carried_on
from fairlead.ledger.run_cost import RunCost
from fairlead.ledger.usage import DAY_MS, WHOLE, Holder, UsageInterval, Use, milliseconds, share_of
from fairlead.policy.placement.node_eligibility import price_label
from fairlead.specs.pool import Pool
from fairlead.state.plan import CreatePod
from fairlead.state.pod_uids import pod_uid
from fairlead.state.snapshot import Grant, Node, Pod, PodPhase, Progress, Snapshot, Spending, Workload
from fairlead.text.money import MICROUSD

log = logging.getLogger(__name__)

# How often the time up to which everything is known is written.
MARK_S = 10.0
# How long to wait before retrying a database that does not answer; at most a tenth of the time is spent on it.
RETRY_S, RETRY_TIMES = 5.0, 9
GONE = "gone"
NO_RUN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastSpending:
    """The latest known spending; ``has_accounts`` is whether that of teams was requested."""

    at: float
    spending: Spending
    has_accounts: bool


@dataclass(slots=True, kw_only=True)
class _Backlog:
    """Records that are not written yet. They accumulate while the database is unavailable.

    Attributes:
        held: Pods that hold resources, by uid, as they were last seen.
        ended: Pods that have ended, by uid.
        prices: Prices of nodes with their pools, in order of arrival.
        gone: Runs whose objects are gone.
    """

    held: dict[str, HeldPod] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    prices: list[tuple[Price, str | None]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayBills:
    """The bills of a day.

    Attributes:
        pools: The pool of each node.
        held: What was held then, and perhaps before and after; a part of a node each.
    """

    statement: Statement[Holder | None]
    pools: Mapping[str, str]
    held: tuple[UsageInterval, ...]


class LedgerKeeper(Controller):
    """The operator's ledger. Thread-safe.

    Args:
        database: A path, or a URL ``postgresql://...``.
        namespace: Charge only runs of this namespace; None for all.
        progress_of: Returns the latest report of a run, if it is newer than its object.
        pools: Returns the current Pool objects.
    """

    name = "the ledger"

    def __init__(
        self,
        view: Informers,
        database: str,
        *,
        namespace: str | None = None,
        progress_of: Callable[[str], Progress | None] = lambda _: None,
        pools: Callable[[], Iterable[Pool]] = lambda: (),
    ) -> None:
        self._view = view
        self._database = database
        self._namespace = namespace
        self._progress_of = progress_of
        self._pools_of = pools
        self._lock = threading.RLock()
        self._ledger: UsageLedger | None = None
        # True while all below follows the cluster: from when the ledger was read until another operator leads.
        self._is_following = False
        self._backlog = _Backlog()
        self._marks = view.marks()
        self._runs: set[str] = set()
        self._nodes: set[str] = set()
        # By run; pods of no run are at NO_RUN.
        self._open: dict[str, dict[str, HeldPod]] = {}
        self._closed: dict[str, set[str]] = {}
        # Uids of open pods of no run, by node.
        self._pods_without_run: defaultdict[str, set[str]] = defaultdict(set)
        # How long the resources of each open pod were idle, by hour.
        self._idle: dict[str, dict[int, int]] = {}
        # Nodes seen while this operator led.
        self._present: set[str] = set()
        # Pods last seen by a previous operator.
        self._inherited: set[str] = set()
        self._inherited_ms = 0
        self._pools: tuple[Pool, ...] = ()
        self._prices: dict[str, Price] = {}
        self._pool_names: dict[str, str] = {}
        self._marked_at = 0.0
        self._retry_at = 0.0
        self._touched_days: set[int] = set()
        self._summaries: dict[str, list[UsageInterval]] = {}
        self._spent: tuple[str, dict[tuple[str, str], int]] | None = None
        self._last_spending: _LastSpending | None = None
        self.trouble: str | None = None

    def prepare(self, now: float) -> None:
        """Write what has changed. An error is logged, and what it delayed is retried."""
        if now < self._retry_at and not self._is_following:
            return
        begun = time.monotonic()
        with self._lock:
            try:
                self._update(now)
            except ClusterError as error:
                self._fail(error, now, time.monotonic() - begun)
            else:
                if self.trouble is not None and self._ledger is not None:
                    log.info("the ledger is written again")
                    self.trouble = None

    def add_idle(self, measured: Sequence[tuple[str, int, int, float]], now: float) -> None:
        """Record the measured use of what pods hold; what cannot be written now counts as not measured."""
        with self._lock:
            if self._ledger is None or now < self._retry_at:
                return
            try:
                self._ledger.add_idle(measured)
                for uid, *_ in measured:
                    self._idle[uid] = self._ledger.idle_of(uid)
            except ClusterError as error:
                self._fail(error, now)

    def settle(self, item: TrainingObject) -> None:
        """Charge the ended pods of a run, before its object forgets them."""
        now = time.time()
        with self._lock:
            if not self._is_following:
                return
            self._charge([item], now)
            if self._ledger is None:
                return  # recorded here, and written by ``act``, which limits how often an unavailable database is tried
            try:
                self._write(now)
            except ClusterError as error:
                self._fail(error, now)

    def rest(self) -> None:
        """Close the database; the next leader reads from the objects what was not written."""
        with self._lock:
            self._is_following = False
            self._backlog = _Backlog()
            self._close_ledger()

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def stop(self) -> None:
        self.rest()

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        spending = self.spending(snapshot, now)
        return snapshot if spending is None else replace(snapshot, spending=spending)

    def price_per_hour(self, node: NodeObject) -> float | None:
        """Return the price of a node in dollars an hour; None if it is unknown."""
        price = self._prices.get(node.key)
        if price is None or price.rate is None:
            return price_label(node.labels)
        return price.rate / MICROUSD

    def spending(self, snapshot: Snapshot, now: float) -> Spending | None:
        """Return the spending of teams and projects with a limit; None if there is no limit or nothing is known."""
        bounded = [run.uid for run in snapshot.workloads if run.spec.max_cost is not None]
        has_budgets = any(team.has_budgets for team in snapshot.teams)
        if not (bounded or has_budgets):
            return None
        with self._lock:
            if all(price.rate is None for price in self._prices.values()):
                return None
            if self._ledger is None:
                return self._carried_on(snapshot, has_budgets, now)
            try:
                spent = self._spent_this_month(now) if has_budgets else Spending()
                spent = replace(spent, by_run={uid: self._spent_by_run(uid, now) for uid in bounded})
            except ClusterError as error:
                self._fail(error, now)
                return self._carried_on(snapshot, has_budgets, now)
            self._last_spending = _LastSpending(at=now, spending=spent, has_accounts=has_budgets)
            return spent

    def _carried_on(self, snapshot: Snapshot, has_budgets: bool, now: float) -> Spending | None:
        """Return the spending as far as it is known without the ledger; None if the operator started without it."""
        last = self._last_spending
        if last is None or (has_budgets and not (last.has_accounts and month_of(last.at) == month_of(now))):
            return None
        spent = carried_on(last.spending, snapshot, last.at, now)
        self._last_spending = replace(last, at=now, spending=spent)
        return spent

    def spent_this_month(self, now: float) -> Spending | None:
        """Return the spending of this month by team and project; None while the ledger is unavailable."""
        with self._lock:
            if self._ledger is None:
                return None
            try:
                return self._spent_this_month(now)
            except ClusterError as error:
                self._fail(error, now)
                return None

    def cost_of(self, workload: Workload, now: float) -> RunCost | None:
        """Return what a run has cost and costs now; None while the ledger is unavailable."""
        with self._lock:
            ledger = self._ledger
            if ledger is None:
                return None
            uid, now_ms = workload.uid, milliseconds(now)
            try:
                if uid not in self._summaries:
                    self._summaries[uid] = ledger.of_run(uid)
                changes = ledger.price_changes()
            except ClusterError as error:
                self._fail(error, now)
                return None
            held = [*self._summaries[uid], *self._live(now_ms, uid)]
            spent = cost_of(held, changes)
            rate = 0
            for pod_held in self._open.get(uid, {}).values():
                price = self._prices.get(pod_held.pod.node)
                if price is not None and price.rate is not None:
                    rate += price.rate * pod_held.share // WHOLE
            if spent is None and not rate and not held:
                return None
            until = workload.status.finished_at
            figures: Goodput = goodput(held, created_at=workload.created_at, until=now if until is None else until)
            return RunCost(
                microusd=spent, microusd_per_hour=rate, at=now, goodput=figures.ratio, seconds=figures.seconds,
                waiting_s=figures.waiting_s,
            )  # fmt: skip

    def touched_days(self, now: float) -> set[int]:
        """Return the days whose costs may have changed since the last call, including today."""
        today = day_of(milliseconds(now))
        with self._lock:
            # Today is included again at the next call, for its last seconds.
            days, self._touched_days = self._touched_days, {today}
        return days | {today}

    def costs_of(self, day: int, now: float) -> DayBills | None:
        """Return the bills of a day up to now; None while the ledger is unavailable."""
        with self._lock:
            if self._ledger is None:
                return None
            start, end = day * DAY_MS, min((day + 1) * DAY_MS, milliseconds(now))
            held = [*self._ledger.of_day(day), *self._live(end)]
            prices = dict(self._ledger.price_changes())
            pools = self._ledger.pools()
        stretches = stretches_of(prices, held, start, end, key=lambda stretch: stretch.holder, rest=lambda _: None)
        return DayBills(statement=statement(stretches), pools=pools, held=tuple(held))

    def is_first_notice(self, account: str, percent: int, now: float) -> bool:
        """Record that this share of a budget is spent; return whether it had not been reported this month."""
        month = month_of(now)[0]
        with self._lock:
            if self._ledger is None:
                return False
            try:
                if self._ledger.is_told(account, month, percent):
                    return False
                self._ledger.note_told(account, month, percent)
            except ClusterError as error:
                self._fail(error, now)
                return False
            return True

    def _update(self, now: float) -> None:
        if not self._is_following:
            self._follow(now)
        runs, nodes = self._marks.take()
        self._runs |= runs
        self._nodes |= nodes
        pools = tuple(sorted(self._pools_of(), key=lambda pool: pool.name))
        if pools != self._pools:
            self._pools = pools
            self._nodes |= {node.key for node in self._view.nodes.all()}
        self._charge_pods_without_run(now)
        self._price(now)
        items = [item for uid in self._runs if (item := self._view.find(uid)) is not None]
        self._charge(items, now, missing=self._runs - {item.uid for item in items})
        self._runs = set()
        self._write(now)

    def _follow(self, now: float) -> None:
        """Read the pods and prices of the ledger, and follow the cluster from there."""
        ledger = self._opened()
        held, closed = ledger.open_pods(), ledger.closed_pods()
        self._prices, self._pool_names = ledger.newest_prices(), ledger.pools()
        seen_ms = ledger.seen_ms()
        self._idle = {uid: idle for uid in held if (idle := ledger.idle_of(uid))}
        self._open = {}
        for uid, pod_held in held.items():
            self._open.setdefault(pod_held.pod.workload_uid, {})[uid] = pod_held
        self._closed = dict(closed)
        self._inherited = set(held)
        # A clock that was ahead once must not charge what is gone beyond now.
        self._inherited_ms = milliseconds(now) if seen_ms is None else min(seen_ms, milliseconds(now))
        self._summaries, self._spent, self._present = {}, None, set()
        self._touched_days = set(range(day_of(self._inherited_ms), day_of(milliseconds(now)) + 1))
        self._runs = ({run.uid for run in self._view.runs()} | set(self._open)) - {NO_RUN}
        others = self._open.get(NO_RUN, {}).values()
        self._nodes = {node.key for node in self._view.nodes.all()} | set(self._prices)
        self._nodes |= {other.pod.node for other in others}
        self._pods_without_run = defaultdict(set)
        for other in others:
            self._pods_without_run[other.pod.node].add(other.pod.uid)
        self._is_following = True
        log.info("the ledger has %d pods that hold something", len(held))

    def _opened(self) -> UsageLedger:
        if self._ledger is None:
            self._ledger = UsageLedger(self._database)
        return self._ledger

    def _fail(self, error: ClusterError, now: float, took_s: float = 0.0) -> None:
        if self.trouble is None:
            log.error("%s Runs go on; what they hold is written down when the ledger is there again.", error)
        self.trouble = str(error)
        self._retry_at = now + took_s + max(RETRY_S, RETRY_TIMES * took_s)
        self._close_ledger()

    def _price(self, now: float) -> None:
        """Record the price of each node that has changed."""
        changes: list[tuple[Price, str | None]] = []
        for name in tuple(self._nodes):
            node, known = self._view.nodes.get(name), self._prices.get(name)
            if node is None:
                if known is not None and known.rate is not None:
                    gone_ms = milliseconds(now) if name in self._present else self._inherited_ms
                    gone_ms = max(gone_ms, known.from_ms + 1)
                    changes.append((Price(node=name, from_ms=gone_ms, rate=None, source=GONE), None))
                continue
            listed = price_of(node.labels, self._pools, catalogue())
            if known is None or (known.rate, known.source) != (listed.rate, listed.source):
                since = milliseconds(now)
                if known is None or known.source == GONE:
                    # A node that exists when the ledger begins costs from its own creation.
                    since = max(milliseconds(node.created_at), 0 if known is None else known.from_ms + 1)
                changes.append((Price(node=name, from_ms=since, rate=listed.rate, source=listed.source), listed.pool))
            elif self._pool_names.get(name) != listed.pool:
                changes.append((known, listed.pool))
            self._present.add(name)
        self._backlog.prices += changes
        self._nodes.clear()
        for price, pool in changes:
            self._prices[price.node] = price
            if pool is not None:
                self._pool_names[price.node] = pool
            self._touched_days.add(day_of(price.from_ms))
            self._view.look_again_at_node(price.node)

    def _charge_pods_without_run(self, now: float) -> None:
        """Record what pods of no run hold of nodes where something has changed.

        They begin when they were bound, and end when they are seen to be gone. An operator that sees runs of one
        namespace alone charges none of them.
        """
        if self._namespace is not None:
            return
        pods = self._open.setdefault(NO_RUN, {})
        for name in self._nodes:
            node = self._view.nodes.get(name)
            bound = (*self._view.pods_on(name), *self._view.placeholders_on(name))
            # What the view shows on a node has a run only if that has it.
            present = {pod.uid: pod for pod in bound if not pod.run_uid}
            for uid in self._pods_without_run[name] - present.keys():
                ended_pod = self._vanished(pods.pop(uid), None, now)
                self._pods_without_run[name].discard(uid)
                self._inherited.discard(uid)
                self._backlog.held.pop(uid, None)
                self._backlog.ended[uid] = ended_pod
            self._inherited -= present.keys()
            if node is None:
                continue
            capacity = _capacity(node)
            for uid, pod in present.items():
                share = 0 if uid in pods else share_of(_grant(pod), capacity)
                if share:
                    pods[uid] = self._backlog.held[uid] = HeldPod(
                        pod=Pod(
                            uid=uid, workload_uid=NO_RUN, attempt=0, index=0, node=name, grant=_grant(pod),
                            phase=PodPhase.RUNNING, created_at=pod.created_at if pod.bound_at is None else pod.bound_at,
                        ),
                        holder=None,
                        share=share,
                        use=_use_of(pod),
                    )  # fmt: skip
                    self._pods_without_run[name].add(uid)

    def _charge(self, items: Iterable[TrainingObject], now: float, missing: Iterable[str] = ()) -> None:
        """Record what the pods of some runs hold and held; ``missing`` are runs whose objects are gone."""
        held: list[HeldPod] = []
        ended: list[Ended] = []
        for item in items:
            if self._namespace in (None, item.namespace):
                self._update_run(item, now, held, ended)
        gone = [uid for uid in missing if uid in self._open or uid in self._closed]
        for uid in gone:
            ended += [self._vanished(one, None, now) for one in self._open.get(uid, {}).values()]
        for held_pod in held:
            self._open.setdefault(held_pod.pod.workload_uid, {})[held_pod.pod.uid] = held_pod
            self._backlog.held[held_pod.pod.uid] = held_pod
        for one in ended:
            pod = one.held.pod
            self._open.get(pod.workload_uid, {}).pop(pod.uid, None)
            self._closed.setdefault(pod.workload_uid, set()).add(pod.uid)
            self._inherited.discard(pod.uid)
            self._backlog.held.pop(pod.uid, None)
            self._backlog.ended[pod.uid] = one
        for uid in gone:
            self._open.pop(uid, None)
            self._closed.pop(uid, None)
            self._backlog.gone.add(uid)

    def _write(self, now: float) -> None:
        """Write what was recorded, unless the database is being left alone.

        Each part is removed once it is written, and counts once even if written twice: what may have been written when
        the connection broke is written again.
        """
        backlog = self._backlog
        is_news = backlog.held or backlog.ended or backlog.prices or backlog.gone
        if now < self._retry_at or not (is_news or self._ledger is None or now - self._marked_at >= MARK_S):
            return
        ledger = self._opened()
        if backlog.prices:  # before the pods that are charged by them
            ledger.set_prices(backlog.prices)
            backlog.prices = []
        ledger.write(backlog.held.values(), backlog.ended.values(), milliseconds(now))
        self._marked_at = now
        for ended_pod in backlog.ended.values():
            pod = ended_pod.held.pod
            self._idle.pop(pod.uid, None)
            self._summaries.pop(pod.workload_uid, None)
            self._spent = None
            # What a pod of no run held is of one use, so its end changes no earlier day.
            first_ms = ended_pod.end_ms if ended_pod.held.holder is None else milliseconds(pod.created_at)
            self._touched_days |= set(range(day_of(first_ms), day_of(ended_pod.end_ms) + 1))
        backlog.held, backlog.ended = {}, {}
        if backlog.gone:
            ledger.forget(backlog.gone)
            for uid in backlog.gone:
                self._summaries.pop(uid, None)
            backlog.gone = set()

    def _update_run(self, item: TrainingObject, now: float, held: list[HeldPod], ended: list[Ended]) -> None:
        run = item.workload
        if run is None:
            return
        open_pods, closed = self._open.get(item.uid, {}), self._closed.get(item.uid, set())
        holder = holder_of(item.uid, run.spec)
        progress = self._progress_of(item.uid) or run.progress
        seen: set[str] = set()
        for pod in (*everyone(self._view, item), *self._earlier(item)):
            seen.add(pod.uid)
            if pod.uid in closed:
                continue
            held_pod = self._held(pod, holder, open_pods.get(pod.uid))
            if held_pod is None:
                continue
            if pod.phase.is_final:
                is_unseen = pod.uid in self._inherited and not pod.exits
                at = self._inherited_ms / 1000 if is_unseen else now
                ended.append(Ended(held=held_pod, progress=progress, end_ms=ended_ms(held_pod.pod, at)))
                continue
            if pod.phase is not PodPhase.CREATED:  # its object exists and is bound
                self._inherited.discard(pod.uid)
            held_before = open_pods.get(pod.uid)
            if held_before is None or _interval_values(held_before.pod) != _interval_values(held_pod.pod):
                held.append(held_pod)
            elif held_before.pod is not held_pod.pod:
                # Values that change all the time are kept in memory only.
                open_pods[pod.uid] = held_pod
        ended += [
            self._vanished(held_pod, item, now, progress) for uid, held_pod in open_pods.items() if uid not in seen
        ]

    def _held(self, pod: Pod, holder: Holder, known: HeldPod | None) -> HeldPod | None:
        """Return the pod with its share of its node; None if that is unknown."""
        if known is not None and known.pod.node == pod.node:
            known_pod = known.pod
            # The grant of an earlier attempt is no longer known, and for a pod whose object is gone not even its
            # beginning.
            # A pod that had no object yet begins when its object does, which a busy API server creates later.
            is_gone = pod.phase.is_final and not pod.exits
            has_come = known_pod.phase is PodPhase.CREATED and pod.phase is not PodPhase.CREATED and not is_gone
            pod = replace(
                pod,
                grant=known_pod.grant,
                created_at=pod.created_at if has_come else min(known_pod.created_at, pod.created_at),
                started_at=known_pod.started_at if pod.started_at is None else pod.started_at,
            )
            return replace(known, pod=pod)
        node = self._view.nodes.get(pod.node)
        pod_object = self._made_by_engine(pod)
        if pod_object is not None:
            pod = replace(pod, grant=_grant(pod_object))
        return None if node is None else HeldPod(pod=pod, holder=holder, share=share_of(pod.grant, _capacity(node)))

    def _made_by_engine(self, pod: Pod) -> PodObject | None:
        """Return the object of a pod that an engine created, whose devices were not granted; None for any other."""
        for pod_object in self._view.pods_of(pod.workload_uid).values():
            if (pod_object.attempt, pod_object.index) == (pod.attempt, pod.index):
                return pod_object if pod_object.engine else None
        return None

    def _earlier(self, item: TrainingObject) -> Iterable[Pod]:
        """Return ended pods whose objects still exist of earlier attempts, or that were replaced."""
        run, gang = item.workload, item.state.gang
        if run is None or gang is None:
            return
        ranks = run.spec.ranks_on_each_node
        for pod in self._view.pods_of(item.uid).values():
            if pod.is_over and not gang.has(pod.attempt, pod.index, pod.replacement):
                uid = pod_uid(pod.run_uid, pod.attempt, pod.index, pod.replacement)
                open_pod = self._open.get(item.uid, {}).get(uid)
                member = CreatePod(
                    attempt=pod.attempt,
                    index=pod.index,
                    node=pod.node,
                    grant=open_pod.pod.grant if open_pod else _grant(pod),
                )
                pod_ranks = range(pod.index * ranks, (pod.index + 1) * ranks)
                told_at = open_pod.pod.terminating_since if open_pod else None
                node = self._view.nodes.get(pod.node)
                yield observe_pod(pod, member, ranks=pod_ranks, told_at=told_at, node=node, gone=False)

    def _vanished(
        self, held: HeldPod, item: TrainingObject | None, now: float, progress: Progress | None = None
    ) -> Ended:
        """Return the end of a pod that has disappeared.

        A pod last seen by a previous operator ended at the latest when the next attempt began, and at the earliest when
        that operator was last active; in between, the run's first event shows when something happened.
        """
        at_ms = milliseconds(now)
        if held.pod.uid in self._inherited:
            at_ms = self._inherited_ms
            if item is not None:
                times = [round(event.at * 1000) for event in item.state.events]
                at_ms = next((at for at in sorted(times) if at >= at_ms), at_ms)
        return Ended(held=held, progress=progress, end_ms=max(at_ms, milliseconds(held.pod.created_at)))

    def _live(self, until_ms: int, uid: str | None = None) -> list[UsageInterval]:
        """Return what live pods hold, of one run or of all."""
        runs = self._open if uid is None else {uid: self._open.get(uid, {})}
        return [
            interval
            for run, pods in runs.items()
            for pod in pods.values()
            if milliseconds(pod.pod.created_at) < until_ms
            for interval in pod.intervals(self._progress_of(run), until_ms, self._idle.get(pod.pod.uid))
        ]

    def _spent_this_month(self, now: float) -> Spending:
        month, since = month_of(now)
        if self._ledger is None:
            return Spending()
        if self._spent is None or self._spent[0] != month:
            self._spent = month, self._ledger.spent_by_account(month)
        by_project = defaultdict(int, self._spent[1])
        changes, since_ms = self._ledger.price_changes(), milliseconds(since)
        live: defaultdict[tuple[str, str], list[UsageInterval]] = defaultdict(list)
        held = (interval for uid in self._open if uid != NO_RUN for interval in self._live(milliseconds(now), uid))
        for interval in held:
            if interval.holder is not None and interval.end_ms > since_ms:
                part = replace(interval, start_ms=max(interval.start_ms, since_ms))
                live[interval.holder.team, interval.holder.project].append(part)
        for account, parts in live.items():
            by_project[account] += cost_of(parts, changes) or 0
        by_team = defaultdict[str, int](int)
        for (team, _), amount in by_project.items():
            by_team[team] += amount
        return Spending(by_team=dict(by_team), by_project=dict(by_project))

    def _spent_by_run(self, uid: str, now: float) -> int:
        if self._ledger is None:
            return 0
        live = cost_of(self._live(milliseconds(now), uid), self._ledger.price_changes())
        return self._ledger.spent_by_run(uid) + (live or 0)


def _use_of(pod: PodObject) -> Use:
    """Return what a pod of no run is for: a node kept in advance, a node for a run that waits, or anything else."""
    if not pod.room_for:
        return Use.SYSTEM
    return Use.KEPT_FREE if pod.pool else Use.PLACEHOLDER


def _interval_values(pod: Pod) -> tuple[object, ...]:
    """Return the values that determine a pod's intervals and are kept nowhere else."""
    return pod.node, pod.created_at, pod.started_at, pod.terminating_since


def _capacity(node: NodeObject) -> Node:
    return node_of(node, 0)


def _grant(pod: PodObject) -> Grant:
    """Return the amounts that a pod requests when its devices are unknown: as many of the same kind."""
    devices = tuple(f"{name}#{number}" for name, count in pod.requests.devices for number in range(count))
    return Grant(
        cpu_milli=pod.requests.cpu_milli,
        memory_bytes=pod.requests.memory_bytes,
        gpu_uuids=devices,
        gpu_milli=1000 if devices else 0,
    )
