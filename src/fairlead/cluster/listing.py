"""Selects workloads a page at a time."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from fairlead.cluster.client import ClusterClient
from fairlead.frozen import dataclass
from fairlead.state.snapshot import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlead.state.snapshot import AnyWorkload


class Cursor(NamedTuple):
    """A position in a listing: that of the last workload of the previous page."""

    created_at: float
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A request for a page of workloads, newest first.

    Attributes:
        is_over: True for finished workloads, False for unfinished ones; None for both.
        text: Only those whose names contain it, ignoring case; empty for all.
        phases: Only those in any of these; empty for all.
        team: Only this team's; None for all.
        kind: Only workloads of this kind, such as ``Sweep``; None for all.
        top_only: Leave out those that a parent submitted.
        after: The position after which the page begins; None for the first page.
        limit: Maximum number of workloads, from 1.
    """

    is_over: bool | None = None
    text: str = ""
    phases: frozenset[Phase] = frozenset()
    team: str | None = None
    kind: str | None = None
    top_only: bool = False
    after: Cursor | None = None
    limit: int = 50


def page_of(workloads: "Iterable[AnyWorkload]", listing: Listing) -> "tuple[AnyWorkload, ...]":
    """Choose a page out of all workloads, newest first."""
    runs = [run for run in workloads if _is_meant(run, listing)]
    # The order of a listing is the descending order of its positions.
    runs.sort(key=_place_of, reverse=True)
    if listing.after is not None:
        runs = [run for run in runs if _place_of(run) < listing.after]
    return tuple(runs[: listing.limit])


def _is_meant(run: "AnyWorkload", listing: Listing) -> bool:
    phase = run.status.phase
    return (
        listing.is_over in (None, phase.is_final)
        and listing.text.lower() in run.spec.name.lower()
        and (not listing.phases or phase in listing.phases)
        and listing.team in (None, run.spec.team)
        and listing.kind in (None, type(run.spec).__name__)
        and not (listing.top_only and run.parent is not None)
    )


def _place_of(run: "AnyWorkload") -> Cursor:
    return Cursor(run.created_at, run.uid)


class PagedClient(ClusterClient, Protocol):
    """A client that reads workloads a page at a time, whatever their number."""

    def page(self, listing: Listing) -> "tuple[AnyWorkload, ...]":
        """Return the workloads of a page, newest first; reads few more than it returns."""
        ...

    def num_kept(self) -> int:
        """Count the stored workloads, finished ones included."""
        ...

    def num_unfinished(self) -> "Mapping[Phase, int]":
        """Count the unfinished workloads by phase; phases without any are missing."""
        ...
