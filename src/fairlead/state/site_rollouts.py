"""An endpoint at many sites: what each site was last ordered and reports, and how far a rollout is."""

from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.state.phases import Intent


class SiteStage(StrEnum):
    """The state of a site's endpoint in regard to the release that it has."""

    ABSENT = "absent"
    ROLLING = "rolling"
    SERVING = "serving"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReport:
    """The result of the last visit of a site.

    Attributes:
        trouble: Why the site does not answer; None if it does. What follows is then of the last visit that it answered.
        since: Since when it answers, or does not.
        release: The release that its endpoint was last given; 0 without an endpoint.
        stage: How that release does there.
        message: Why it is so, as a clause; empty if there is nothing to say.
        missed: What happened there while it did not answer, as a clause; empty if it has not just returned.
        settled: SUSPEND if the endpoint is suspended, STOP if it is over, DELETE if it is absent; None otherwise.
    """

    trouble: str | None = None
    since: float = 0.0
    release: int = 0
    stage: SiteStage = SiteStage.ABSENT
    message: str = ""
    missed: str = ""
    settled: Intent | None = None

    @property
    def is_steady(self) -> bool:
        """Return whether nothing is expected to change soon."""
        return self.stage is SiteStage.SERVING


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteState:
    """A site within its endpoint.

    Attributes:
        context, namespace, home: Its cluster, also after it was removed from the spec.
        wanted: The release that it should have; 0 for no endpoint.
        release: The release that it has, as it reported last.
        stage: How that does.
        message: Why it is so; empty if there is nothing to say.
        away_since: Since when it does not answer; None while it does.
    """

    name: str
    context: str | None = None
    namespace: str | None = None
    home: str | None = None
    wanted: int = 0
    release: int = 0
    stage: SiteStage = SiteStage.ABSENT
    message: str = ""
    away_since: float | None = None

    @property
    def serves(self) -> bool:
        """Return whether it serves what it should."""
        return self.wanted == self.release and self.stage is SiteStage.SERVING


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRollout:
    """The rollout of the newest release over sites.

    Attributes:
        release: The release that is rolled out.
        wave: The wave under way, from 0; the number of waves once all have begun and passed.
        since: When that wave began.
        passed_since: Since when it could be followed by the next one; None while it could not.
        sites: All sites that have, or should have, an endpoint.
    """

    release: int = 0
    wave: int = 0
    since: float = 0.0
    passed_since: float | None = None
    sites: tuple[SiteState, ...] = ()

    def site(self, name: str) -> SiteState | None:
        """Return the site of a name."""
        return next((site for site in self.sites if site.name == name), None)
