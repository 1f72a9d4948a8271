"""Visits the sites of endpoints: gives their clusters the release that was decided, and reports how it does there.

At a site the endpoint is an ordinary one of that cluster, which serves whether or not anybody visits it. A visit
compares it with the order and changes what differs, so that visits may be lost, late or repeated. Each has a thread of
its own, so that a site that hangs delays no other; nothing is stored here.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

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
from fairlead.state.site_rollouts import SiteReport, SiteStage, SiteState
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from fairlead.text.quantities import plural

log = logging.getLogger("fairlead.sites")

# Seconds between visits of a site that changes, of one that does not, and of one that does not answer.
CHANGING_S, STEADY_S, AWAY_S = 1.0, 15.0, 10.0
# A visit that takes longer counts as no answer; it goes on.
VISIT_S = 30.0
AT_ONCE = 64

Open = Callable[[SiteState], ClusterClient]


def open_site(site: SiteState) -> ClusterClient:
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


class SiteVisits:
    """Visits of all sites of the endpoints of a machine.

    Args:
        edited: Returns the names of files that have changed since a release was submitted.
    """

    def __init__(
        self, *, open_site: Open = open_site, edited: Callable[[SiteOrder], tuple[str, ...]] = lambda _: ()
    ) -> None:
        self._open = open_site
        self._edited = edited
        self._places: dict[tuple[str, str], _Place] = {}
        self._slots = threading.Semaphore(AT_ONCE)

    def look(self, seen: Snapshot, now: float) -> Mapping[str, Mapping[str, SiteReport]]:
        """Return the reports by uid of endpoint and name of site, and begin the visits that are due."""
        reports: dict[str, dict[str, SiteReport]] = {}
        used = set()
        for order in orders(seen):
            key = (order.owner.uid, order.site.name)
            used.add(key)
            place = self._places.setdefault(key, _Place())
            if place.is_due(order, now) and self._slots.acquire(blocking=False):
                place.begin(order, now)
                threading.Thread(target=self._visit, args=(place, order, now), daemon=True, name="site").start()
            report = place.report_at(now)
            if report is not None:
                reports.setdefault(order.owner.uid, {})[order.site.name] = report
        self._places = {key: place for key, place in self._places.items() if key in used}
        return reports

    def _visit(self, place: "_Place", order: SiteOrder, now: float) -> None:
        try:
            report = visit(order, place.last, place.applied, now, open_site=self._open, edited=self._edited)
        except FairleadError as error:  # any error concerns this site alone, and it is visited again
            place.end(None, _away(place.last, str(error), now), now)
        except Exception as error:
            log.exception("visiting %s", order.site.name)
            place.end(None, _away(place.last, f"{type(error).__name__} here: {error}", now), now)
        else:
            place.end(order.spec, report, now)
        finally:
            self._slots.release()


class _Place:
    """The last visit of one site, and the one under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last: SiteReport | None = None
        self.applied: Serving | None = None
        self._order: tuple[Serving | None, Intent] | None = None
        self._begun_at: float | None = None
        self._due_at = 0.0

    def is_due(self, order: SiteOrder, now: float) -> bool:
        with self._lock:
            return self._begun_at is None and (now >= self._due_at or self._order != (order.spec, order.intent))

    def begin(self, order: SiteOrder, now: float) -> None:
        with self._lock:
            self._begun_at, self._order = now, (order.spec, order.intent)

    def end(self, applied: Serving | None, report: SiteReport, now: float) -> None:
        with self._lock:
            wait_s = CHANGING_S
            if report.trouble is not None:
                wait_s = AWAY_S
            elif report.stage is SiteStage.SERVING:
                wait_s = STEADY_S
            self.applied = applied if report.trouble is None else self.applied
            self.last, self._begun_at, self._due_at = report, None, now + wait_s

    def report_at(self, now: float) -> SiteReport | None:
        with self._lock:
            if self._begun_at is not None and now > self._begun_at + VISIT_S:
                return _away(self.last, "no answer in time", self._begun_at)
            return self.last


def _away(last: SiteReport | None, trouble: str, now: float) -> SiteReport:
    last = SiteReport() if last is None else last
    return replace(last, trouble=trouble, since=now if last.trouble is None else last.since, missed="")


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
    applied: Serving | None,
    now: float,
    *,
    open_site: Open = open_site,
    edited: Callable[[SiteOrder], tuple[str, ...]] = lambda _: (),
) -> SiteReport:
    """Bring the endpoint of a site closer to an order, and return how it does.

    Args:
        last: The report before; None before the first.
        applied: The spec that the endpoint was last given; None if unknown.
        edited: Returns the names of files that have changed since a release was submitted.

    Raises:
        ClusterError: The site does not answer.
    """
    client = open_site(order.site)
    try:
        if (trouble := client.trouble()) is not None:
            raise ClusterError(trouble)
        report = _at(client, order, applied, edited, now)
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
        return SiteReport(settled=True)
    intent = Intent.DELETE if order.spec is None else order.intent
    phase = endpoint.status.phase
    if endpoint.intent is not intent and not (phase.is_final and intent is not Intent.DELETE):
        client.set_intent(endpoint.uid, intent)
        client.nudge()
    is_settled = phase.is_final if intent is Intent.STOP else phase is Phase.SUSPENDED and intent is Intent.SUSPEND
    return SiteReport(
        release=_release_of(endpoint), stage=SiteStage.ROLLING, message=f"it is {phase.value} there", settled=is_settled
    )


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
