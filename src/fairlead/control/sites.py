"""Visits sites in other clusters: gives them the endpoints or clients that were decided, and reports how they do there.

At a site an endpoint is an ordinary one of that cluster, which serves whether or not anybody visits it; so is the run
of a federation's client. A visit compares it with the order and changes what differs, so that visits may be lost, late
or repeated. Each has a thread of its own, so that a site that hangs delays no other; nothing is stored here.

See decisions 273 and 278.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.selection import RunSelection
from fairlead.control.admission import admit
from fairlead.control.opening import open_kubernetes
from fairlead.errors import CannotFit, ClusterError, Conflict, FairleadError, InvalidSpec, NameTaken, NotAllowed
from fairlead.frozen import dataclass
from fairlead.policy.kinds.serving import asked_revision, spec_of
from fairlead.policy.serving.site_waves import OWNER, RELEASE, stage_of
from fairlead.specs.serving import Serving
from fairlead.specs.serving_sites import Waves
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.site_clients import ClientReport
from fairlead.state.site_rollouts import SiteReport, SiteStage, SiteState
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Snapshot, Workload
from fairlead.text.quantities import plural

log = logging.getLogger("fairlead.sites")

# Seconds between visits of a site that changes, of one that does not, and of one that does not answer.
CHANGING_S, STEADY_S, AWAY_S = 1.0, 15.0, 10.0
# A visit that takes longer counts as no answer; it goes on.
VISIT_S = 30.0
AT_ONCE = 64


class Place(Protocol):
    """The cluster of a site: a context of the kubeconfig, or a state directory of this machine."""

    @property
    def context(self) -> str | None: ...

    @property
    def namespace(self) -> str | None: ...

    @property
    def home(self) -> str | None: ...


Open = Callable[[Place], ClusterClient]
AnyReport: TypeAlias = SiteReport | ClientReport


def open_site(site: Place) -> ClusterClient:
    """Open the cluster of a site.

    Raises:
        ClusterError: Its context or state directory cannot be used.
    """
    if site.home is None:
        return open_kubernetes(context=site.context, namespace=site.namespace)
    home = Path(site.home)
    if not home.is_dir():
        raise ClusterError(f"there is no directory {home}")
    return LocalCluster.open(home)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOrder:
    """The endpoint that a site should have.

    Attributes:
        owner: The endpoint that it belongs to.
        spec: Its own spec; None for no endpoint.
        intent: What it should do.
    """

    owner: Workload[Serving]
    site: SiteState
    spec: Serving | None
    intent: Intent

    @property
    def key(self) -> tuple[str, str]:
        """Return the uid of the endpoint, and the name of the site."""
        return self.owner.uid, self.site.name

    @property
    def content(self) -> object:
        """Return what the endpoint should be and do."""
        return self.spec, self.intent

    def away(self, last: AnyReport | None, trouble: str, now: float) -> SiteReport:
        """Return the report of a site that does not answer."""
        before = last if isinstance(last, SiteReport) else SiteReport()
        return replace(before, trouble=trouble, since=now if before.trouble is None else before.since, missed="")


class AnyOrder(Protocol):
    """A thing that a site should have: an endpoint, or the client of a federation."""

    @property
    def key(self) -> tuple[str, str]:
        """Return the uid of the owner, and the name of the site."""
        ...

    @property
    def content(self) -> object:
        """Return a value that differs when the site has to be visited at once."""
        ...

    def away(self, last: AnyReport | None, trouble: str, now: float) -> AnyReport:
        """Return the report of a site that does not answer."""
        ...


class SiteVisits:
    """Visits of all sites of the endpoints and federations of a machine.

    Args:
        visit: Brings a site closer to an order; takes the report and the order before, and the time in Unix seconds.
        orders: Returns the orders of a snapshot.
    """

    def __init__(
        self,
        visit: Callable[[Any, Any, Any, float], AnyReport],
        orders: Callable[[Snapshot, float], Sequence[AnyOrder]],
    ) -> None:
        self._visit_site = visit
        self._orders = orders
        self._places: dict[tuple[str, str], _Place] = {}
        self._slots = threading.Semaphore(AT_ONCE)

    def look(self, seen: Snapshot, now: float) -> Mapping[str, Mapping[str, AnyReport]]:
        """Return the reports by uid of owner and name of site, and begin the visits that are due."""
        reports: dict[str, dict[str, AnyReport]] = {}
        used = set()
        for order in self._orders(seen, now):
            owner, name = order.key
            used.add(order.key)
            place = self._places.setdefault(order.key, _Place())
            if place.is_due(order, now) and self._slots.acquire(blocking=False):
                place.begin(order, now)
                threading.Thread(target=self._visit, args=(place, order, now), daemon=True, name="site").start()
            report = place.report_at(order, now)
            if report is not None:
                reports.setdefault(owner, {})[name] = report
        self._places = {key: place for key, place in self._places.items() if key in used}
        return reports

    def _visit(self, place: "_Place", order: AnyOrder, now: float) -> None:
        try:
            report = self._visit_site(order, place.last, place.applied, now)
        except FairleadError as error:  # any error concerns this site alone, and it is visited again
            place.end(None, order.away(place.last, str(error), now), now)
        except Exception as error:
            log.exception("visiting %s", order.key[1])
            place.end(None, order.away(place.last, f"{type(error).__name__} here: {error}", now), now)
        else:
            place.end(order, report, now)
        finally:
            self._slots.release()


class _Place:
    """The last visit of one site, and the one under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last: AnyReport | None = None
        self.applied: AnyOrder | None = None
        self._content: object = None
        self._begun_at: float | None = None
        self._due_at = 0.0

    def is_due(self, order: AnyOrder, now: float) -> bool:
        with self._lock:
            return self._begun_at is None and (now >= self._due_at or self._content != order.content)

    def begin(self, order: AnyOrder, now: float) -> None:
        with self._lock:
            self._begun_at, self._content = now, order.content

    def end(self, applied: AnyOrder | None, report: AnyReport, now: float) -> None:
        with self._lock:
            wait_s = CHANGING_S
            if report.trouble is not None:
                wait_s = AWAY_S
            elif report.is_steady:
                wait_s = STEADY_S
            self.applied = applied if report.trouble is None else self.applied
            self.last, self._begun_at, self._due_at = report, None, now + wait_s

    def report_at(self, order: AnyOrder, now: float) -> AnyReport | None:
        with self._lock:
            if self._begun_at is not None and now > self._begun_at + VISIT_S:
                return order.away(self.last, "no answer in time", self._begun_at)
            return self.last


def orders(seen: Snapshot) -> list[SiteOrder]:
    """Return what each site of the unfinished endpoints of a snapshot should have."""
    result = []
    for parent in seen.parents:
        rollout = detail_of(cast("Workload[Serving]", parent)).rollout if isinstance(parent.spec, Serving) else None
        if rollout is None or (parent.status.phase.is_final and parent.intent is not Intent.DELETE):
            continue
        owner = cast("Workload[Serving]", parent)
        for site in rollout.sites:
            spec = release_spec(owner, site) if site.wanted else None
            intent = owner.intent if spec is not None else Intent.DELETE
            result.append(SiteOrder(owner=owner, site=site, spec=spec, intent=intent))
    return result


def release_spec(owner: Workload[Serving], site: SiteState) -> Serving | None:
    """Return the spec of the endpoint of a site at the release that it should have; None if that is not known."""
    detail = detail_of(owner)
    revision = detail.revision(site.wanted)
    if revision is None:
        return None
    # What is no part of a revision, such as the number of replicas, is that of the newest spec.
    spec = owner.spec if site.wanted == detail.asked else spec_of(revision)
    own = owner.spec.sites.get(site.name)
    resources = spec.resources if own is None or own.resources is None else own.resources
    labels = {**spec.labels, OWNER: owner.uid, RELEASE: revision.name}
    return replace(spec, sites={}, waves=Waves(), labels=labels, resources=resources)


def visit(
    order: SiteOrder,
    last: SiteReport | None,
    applied: SiteOrder | None,
    now: float,
    *,
    open_site: Open = open_site,
    edited: Callable[[SiteOrder], tuple[str, ...]] = lambda _: (),
) -> SiteReport:
    """Bring the endpoint of a site closer to an order, and return how it does.

    Args:
        last: The report before; None before the first.
        applied: The order that it was last given; None if unknown.
        edited: Returns the names of files that have changed since a release was submitted.

    Raises:
        ClusterError: The site does not answer.
    """
    client = open_site(order.site)
    try:
        if (trouble := client.trouble()) is not None:
            raise ClusterError(trouble)
        report = _at(client, order, None if applied is None else applied.spec, edited, now)
        is_news = last is None or last.trouble is not None
        since = now if is_news or last is None else last.since
        missed = ""
        if last is not None and last.trouble is not None:
            missed = _missed(client, order, last.since)
        refused = report.message.startswith(REFUSED)
        if refused and (last is None or last.message != report.message):
            # Another change at the same moment may be the cause; the next visit knows.
            report = replace(report, stage=SiteStage.ROLLING)
        return replace(report, since=since, missed=missed)
    finally:
        client.close()


REFUSED = "it is refused there: "


def _at(
    client: ClusterClient,
    order: SiteOrder,
    applied: Serving | None,
    edited: Callable[[SiteOrder], tuple[str, ...]],
    now: float,
) -> SiteReport:
    endpoint = _endpoint_of(client, order)
    if order.spec is None or order.intent is not Intent.RUN:
        return _halted(client, order, endpoint)
    try:
        if endpoint is None or endpoint.status.phase.is_final or _release_of(endpoint) != order.site.wanted:
            files = edited(order) if _known(endpoint, order) is None else ()
            if files:
                message = f"{', '.join(files[:3])} changed since r{order.site.wanted} was submitted; run its file again"
                return SiteReport(release=_release_of(endpoint), stage=SiteStage.ROLLING, message=message)
            endpoint = _launch(client, order, endpoint)
        elif endpoint.intent is not Intent.RUN:
            endpoint = cast("Workload[Serving]", client.set_intent(endpoint.uid, Intent.RUN))
        elif applied is not None and applied != order.spec:
            endpoint = _launch(client, order, endpoint, code=endpoint.spec.code)
        client.nudge()
    except (InvalidSpec, Conflict, CannotFit, NameTaken, NotAllowed) as error:
        return SiteReport(release=order.site.wanted, stage=SiteStage.FAILED, message=f"{REFUSED}{error}")
    stage, message = stage_of(endpoint, asked_revision(endpoint), now)
    return SiteReport(release=_release_of(endpoint), stage=stage, message=message)


def _halted(client: ClusterClient, order: SiteOrder, endpoint: Workload[Serving] | None) -> SiteReport:
    """Stop, suspend or delete the endpoint of a site."""
    if endpoint is None:
        return SiteReport(settled=Intent.DELETE)
    intent = Intent.DELETE if order.spec is None else order.intent
    phase = endpoint.status.phase
    if endpoint.intent is not intent and not (phase.is_final and intent is not Intent.DELETE):
        client.set_intent(endpoint.uid, intent)
        client.nudge()
    return SiteReport(
        release=_release_of(endpoint), stage=SiteStage.ROLLING, message=f"it is {phase.value} there",
        settled=settled_as(endpoint),
    )  # fmt: skip


def settled_as(run: AnyWorkload) -> Intent | None:
    """Return the strongest intent in whose state a workload of a site is; None if it goes on."""
    if run.status.phase.is_final:
        return Intent.STOP
    return Intent.SUSPEND if run.status.phase is Phase.SUSPENDED and run.intent is not Intent.RUN else None


def _endpoint_of(client: ClusterClient, order: SiteOrder) -> Workload[Serving] | None:
    """Return the unfinished endpoint of an owner at a site, or else the newest."""
    label = RunSelection(labels=((OWNER, order.owner.uid),))
    mine = [run for run in client.select(label) if isinstance(run.spec, Serving)]
    chosen = next((run for run in mine if not run.status.phase.is_final), mine[0] if mine else None)
    return cast("Workload[Serving] | None", chosen)


def _release_of(endpoint: Workload[Serving] | None) -> int:
    name = "" if endpoint is None else endpoint.spec.labels.get(RELEASE, "")
    return int(name[1:]) if name[1:].isdigit() else 0


def _known(endpoint: Workload[Serving] | None, order: SiteOrder) -> Serving | None:
    """Return the spec with which a site had a release before, with the code that it keeps of it."""
    if endpoint is None or endpoint.status.phase.is_final:
        return None
    name = f"r{order.site.wanted}"
    for revision in reversed(detail_of(endpoint).revisions):
        spec = spec_of(revision)
        if spec.labels.get(RELEASE) == name:
            return spec
    return None


def _launch(
    client: ClusterClient, order: SiteOrder, endpoint: Workload[Serving] | None, code: str = ""
) -> Workload[Serving]:
    assert order.spec is not None
    if not code and (known := _known(endpoint, order)) is not None:
        return client.launch(known)
    spec = replace(client.in_its_team(order.spec), code=code)
    admitted = admit(client, spec, Path(spec.workdir or Path.home()))
    return client.launch(admitted.spec, directory=admitted.directory)


def _missed(client: ClusterClient, order: SiteOrder, since: float) -> str:
    """Return what happened to an endpoint while nobody could visit it."""
    endpoint = _endpoint_of(client, order)
    if endpoint is None:
        return "its endpoint was deleted"
    events = [event for event in client.events(endpoint.uid) if event.at >= since]
    if not events:
        return "nothing but requests"
    last = events[-1]
    return f"{plural(len(events), 'event')}, the last {last.type}: {last.reason.message}"
