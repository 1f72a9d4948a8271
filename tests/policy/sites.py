"""Sites that are simulated on a virtual clock: their links come and go, and each judges a release by itself."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.serving import judge
from fairlead.specs.serving import Serving
from fairlead.specs.serving_sites import ServingSite, Waves
from fairlead.state.endpoint_detail import ServingDetail, detail_of
from fairlead.state.plan import Event
from fairlead.state.site_rollouts import SiteReport, SiteRollout, SiteStage
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.builders import status

NAMES = tuple(f"s{number:02}" for number in range(50))


def endpoint(names: Iterable[str] = NAMES, waves: Waves | None = None, run: str = "serve 1") -> Serving:
    """Return an endpoint at sites."""
    sites = {name: ServingSite(context=name) for name in names}
    return Serving(
        name="hello", run=run, sites=sites, waves=waves or Waves(steps=("1", "20%", "60%"), deadline_s=600.0)
    )


@dataclass
class SimulatedSite:
    """A site with an endpoint of its own.

    Attributes:
        serves: The release that answers requests; 0 before the first.
        asked: The release that it was given last.
        size: Bytes of it that are still to be transferred.
        failed: Why it was given up here.
        since: Since when the release is complete here.
    """

    name: str
    serves: int = 0
    asked: int = 0
    left: float = 0.0
    complete_at: float | None = None
    failed: str = ""
    unanswered: int = 0
    served: set[int] = field(default_factory=set)

    def give(self, release: int, size: float) -> None:
        """Take an order, as its cluster does; a release that was here before is not transferred again."""
        if release == self.asked:
            return
        self.asked, self.failed, self.complete_at = release, "", None
        self.left = 0.0 if release in self.served else size


@dataclass
class World:
    """An endpoint and its sites.

    Attributes:
        bad: Releases that fail the gate of a site, by number; ``unsigned`` ones are refused before they are loaded.
        link: Whether a site can be reached at a time.
    """

    spec: Serving
    link: Callable[[str, float], bool]
    bad: frozenset[int] = frozenset()
    unsigned: frozenset[int] = frozenset()
    transfer_s: float = 20.0
    gate_s: float = 30.0
    step_s: float = 10.0
    now: float = 1_000_000.0
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sites = {name: SimulatedSite(name) for name in self.spec.sites}
        self.reports: dict[str, SiteReport] = {}
        self.serving: Workload[Serving] = Workload(
            uid="e", spec=self.spec, intent=Intent.RUN, status=status(Phase.PENDING), version=1, created_at=self.now
        )
        self.ordered: dict[int, set[str]] = {}

    @property
    def detail(self) -> ServingDetail:
        return detail_of(self.serving)

    @property
    def rollout(self) -> SiteRollout:
        assert self.detail.rollout is not None
        return self.detail.rollout

    def change(self, **changes: object) -> None:
        """Submit the endpoint's file again."""
        self.spec = replace(self.spec, **changes)  # type: ignore[arg-type]
        self.serving = replace(self.serving, spec=self.spec)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end and not until():
            self.now += self.step_s
            self.step()

    def step(self) -> None:
        """Decide once, and let every site that can be reached take its order; the others go on with what they have."""
        reports: Mapping[str, SiteReport | None] = {name: self.reports.get(name) for name in self.sites}
        change = judge(self.serving, Family(children={}, sites=reports), self.now)
        if change is not None:
            assert change.status is not None
            self.serving = replace(self.serving, status=change.status)
            self.events += [] if change.event is None else [change.event]
        for state in self.rollout.sites:
            site = self.sites[state.name]
            is_up = self.link(site.name, self.now)
            last = self.reports.get(site.name)
            if is_up and state.wanted:
                self.ordered.setdefault(state.wanted, set()).add(site.name)
                site.give(state.wanted, self.transfer_s)
            self._live(site, is_up)
            if not is_up:
                since = last.since if last is not None and last.trouble is not None else self.now
                self.reports[site.name] = replace(last or SiteReport(), trouble="no route to host", since=since)
                continue
            since = self.now if last is None or last.trouble is not None else last.since
            self.reports[site.name] = SiteReport(
                since=since, release=site.asked, stage=self._stage(site), message=site.failed or "starts"
            )

    def _stage(self, site: SimulatedSite) -> SiteStage:
        if site.failed:
            return SiteStage.FAILED
        return SiteStage.SERVING if site.serves == site.asked and site.asked else SiteStage.ROLLING

    def _live(self, site: SimulatedSite, is_up: bool) -> None:
        """Transfer, check, judge and serve, as a site does by itself; only a transfer needs the link."""
        if site.asked and site.asked != site.serves and not site.failed:
            if is_up:
                site.left = max(0.0, site.left - self.step_s)  # it continues where the link broke
            if site.left <= 0 and site.complete_at is None:
                site.complete_at = self.now
            if site.complete_at is not None and site.asked in self.unsigned:
                site.failed = "its signature is not that of the key"
            elif site.complete_at is not None and self.now >= site.complete_at + self.gate_s:
                if site.asked in self.bad:
                    site.failed = "of 40 pairs of requests only its own failed in 31"
                else:
                    site.serves = site.asked
                    site.served.add(site.asked)
        site.unanswered += not site.serves


def links(seed: int, names: Iterable[str], up_s: float = 600.0, down_s: float = 200.0) -> Callable[[str, float], bool]:
    """Return links that come and go at random, with mean times for which they are there and not."""
    changes: dict[str, list[float]] = {}
    for name in names:
        random, at = Random(f"{seed} {name}"), 1_000_000.0
        changes[name] = []
        for _ in range(200):
            changes[name].append(at := at + random.expovariate(1 / up_s))
            changes[name].append(at := at + random.expovariate(1 / down_s))
    return lambda name, now: bisect_right(changes[name], now) % 2 == 0
