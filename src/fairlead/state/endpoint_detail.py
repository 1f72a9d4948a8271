"""The state of an endpoint besides its replicas: its revisions, the trial of one, and what was reported of it."""

from fairlead.frozen import dataclass
from fairlead.specs.serving import Serving
from fairlead.state.site_rollouts import SiteRollout
from fairlead.state.snapshot import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Counts of pairs by one criterion.

    Attributes:
        worse: Pairs in which only the new revision's request was bad.
        better: Pairs in which only the old revision's request was bad.
    """

    name: str
    pairs: int = 0
    worse: int = 0
    better: int = 0

    def __post_init__(self) -> None:
        if self.worse < 0 or self.better < 0 or self.worse + self.better > self.pairs:
            raise ValueError(f"{self.name}: {self.worse} worse and {self.better} better of {self.pairs} pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One version of an endpoint's replicas.

    Attributes:
        spec: The endpoint's whole spec, as stored.
        replica: Its identity: the spec of its replicas, as stored.
        created_at: When it was last requested.
        ready_at: When its first replica was ready since then; None before.
        served_at: When it first took over; None before.
        failed: Why it was given up; None if it was not.
    """

    number: int
    spec: str
    replica: str
    created_at: float
    ready_at: float | None = None
    failed: str | None = None
    served_at: float | None = None

    @property
    def name(self) -> str:
        """Return the display name."""
        return f"r{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """A replica to be removed."""

    name: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCounts:
    """Pairs of a trial counted by one gateway so far."""

    gateway: str
    counts: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Requests that a revision answered, and the part of them that failed."""

    requests: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTrial:
    """The canary trial of the target revision.

    Attributes:
        name: Its unique name, as passed to the gateway.
        old: The number of the revision it is compared with.
        began_at: When it began; later by the time for which the endpoint slept since.
        rules: The rules with which it began; other rules begin another trial.
        step: The current step, from 0.
        gateways: Counts of the gateways heard last.
        banked: The sum of counts of earlier ones.
        asleep_since: Since when the endpoint sleeps; None while it does not.
        uncompared_since: Since when no replica of the old revision is ready although one should be; None while one is.
        answers_alone: Whether the new revision gets all requests, as the old one does not come.
        alone: The answers of the new revision during such times.
        told: All answers of the new revision, as of the last evaluation.
    """

    name: str
    old: int
    began_at: float
    rules: str
    step: int = 0
    gateways: tuple[GatewayCounts, ...] = ()
    banked: tuple[Comparison, ...] = ()
    asleep_since: float | None = None
    uncompared_since: float | None = None
    answers_alone: bool = False
    alone: Answers = Answers()
    told: Answers = Answers()

    @property
    def seen(self) -> dict[str, Comparison]:
        """Return all counts, by criterion."""
        return summed(self.banked, *(gateway.counts for gateway in self.gateways))


def summed(*counts: tuple[Comparison, ...]) -> dict[str, Comparison]:
    """Return the sums of counts, by criterion."""
    sums: dict[str, Comparison] = {}
    for comparison in (comparison for comparisons in counts for comparison in comparisons):
        before = sums.get(comparison.name, Comparison(name=comparison.name))
        sums[comparison.name] = Comparison(
            name=comparison.name, pairs=before.pairs + comparison.pairs, worse=before.worse + comparison.worse,
            better=before.better + comparison.better,
        )  # fmt: skip
    return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingDetail:
    """The state of an endpoint besides its replicas.

    Attributes:
        revisions: The remembered revisions, oldest first.
        asked: The number of the revision that the spec describes.
        target: The number of the revision that should serve: that one, or the one before if it failed.
        serving: The number of the revision that served last; None before the first.
        wanted: The number of replicas wanted.
        ready: The number of ready replicas.
        count: The number of replica numbers assigned so far.
        going: Replicas to be removed.
        canary: The trial of the target; None without one.
        replaced: The number of ready replicas when the revision was requested, whose places the target takes; 0 once it
            has them.
        displaced: The last reported number of replicas above the base on on-demand nodes for lack of spot.
        spot_since: Since when spot nodes have had room for one of these; None while they have not.
        return_at: When it pays to move one of them back to spot; None for never.
        returning: The one being replaced by another on spot, and since when; None for none.
        unaddressed: The last reported reason for having no address; None for none.
        unmeasured: Whether it was reported that the query by which it scales has no answer.
        late: Whether it was reported that no number of replicas meets its targets for token times.
        url: Its address at an engine; None while unknown, and for Fairlead's own replicas.
        rollout: What its sites should have and have; None without sites. Then ``ready`` and ``wanted`` count sites.
    """

    revisions: tuple[Revision, ...] = ()
    asked: int = 0
    target: int = 0
    serving: int | None = None
    wanted: int = 0
    ready: int = 0
    count: int = 0
    going: tuple[Going, ...] = ()
    canary: CanaryTrial | None = None
    replaced: int = 0
    displaced: int = 0
    spot_since: float | None = None
    return_at: float | None = None
    returning: Going | None = None
    unaddressed: str | None = None
    unmeasured: bool = False
    late: bool = False
    url: str | None = None
    rollout: SiteRollout | None = None

    def revision(self, number: int | None) -> Revision | None:
        """Return the revision with a number."""
        return next((revision for revision in self.revisions if revision.number == number), None)


def detail_of(serving: Workload[Serving]) -> ServingDetail:
    """Return the state of an endpoint besides its replicas."""
    detail = serving.status.detail
    return detail if isinstance(detail, ServingDetail) else ServingDetail()
