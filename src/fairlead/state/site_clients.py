"""The report of a federation's client in another cluster, as the last visit saw it."""

from fairlead.frozen import dataclass
from fairlead.state.phases import Intent, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """The result of the last visit of a site of a federation.

    Attributes:
        trouble: Why the site does not answer; None if it does. What follows is then of the last visit that it answered.
        since: Since when it answers, or does not.
        phase: Phase of the client's run; None without one.
        message: Why it does not take part, as a clause; empty if nothing is known to keep it away.
        loss: The loss that it reported last; None if none is reported.
        attempt: The attempt of the run of which the public key is known; None if it is not.
        settled: SUSPEND if the run is suspended, STOP if it is over, DELETE if it is absent; None otherwise.
    """

    trouble: str | None = None
    since: float = 0.0
    phase: Phase | None = None
    message: str = ""
    loss: float | None = None
    attempt: int | None = None
    settled: Intent | None = None

    @property
    def is_steady(self) -> bool:
        """Return whether nothing is expected to change soon: it runs, or is over."""
        return self.trouble is None and (self.attempt is not None or self.settled is not None)
