"""Shows unfinished runs with their reasons, then finished ones, page by page."""

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlencode

from fairlead.cluster.listing import Cursor, Listing
from fairlead.control.pipelines.command import is_pipeline
from fairlead.frozen import dataclass
from fairlead.policy.kinds.progress import progress_of, warning_of
from fairlead.policy.kinds.table import KINDS
from fairlead.state.run_times import active_until
from fairlead.state.snapshot import AnyWorkload, Phase, is_leaf
from fairlead.text.quantities import describe_nodes, describe_resources
from fairlead.web.expected_starts import expected_starts
from fairlead.web.view import Answer, BadQuery, Question

MOST_UNFINISHED, MOST_OVER = 100, 20
STATES = ("any", *(phase.value for phase in Phase))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A workload in a table.

    Attributes:
        why: A warning, or else the reason for its state.
        starts_at: Latest start as a Unix time, if it is pending and a forecast exists.
    """

    run: AnyWorkload
    kind: str
    needs: str
    progress: str
    active_s: float
    why: str
    is_warning: bool
    starts_at: float | None = None


def runs(question: Question) -> Answer:
    """List runs as the query's ``q``, ``state``, ``team``, ``kind`` and ``all`` choose them."""
    cluster, query = question.cluster, question.query
    state = question.one_of("state", STATES, "any")
    kind = question.one_of("kind", ("any", *KINDS), "any")
    wanted = Listing(
        text=query.get("q", "").strip(),
        phases=frozenset() if state == "any" else frozenset({Phase(state)}),
        team=query.get("team", "").strip() or None,
        kind=None if kind == "any" else kind,
        top_only=not (query.get("all") or query.get("q", "").strip()),
    )
    part, after = _part(query.get("part", "")), _place(query.get("after", ""))
    unfinished: tuple[AnyWorkload, ...] = ()
    over: tuple[AnyWorkload, ...] = ()
    more_unfinished = more_over = None
    if part != "over" and (state == "any" or not Phase(state).is_final):
        listing = replace(wanted, is_over=False, after=after, limit=MOST_UNFINISHED + 1)
        unfinished, more_unfinished = _cut(cluster.page(listing), MOST_UNFINISHED)
    if part != "unfinished" and (state == "any" or Phase(state).is_final):
        listing = replace(wanted, is_over=True, after=after, limit=MOST_OVER + 1)
        over, more_over = _cut(cluster.page(listing), MOST_OVER)
    starts = expected_starts(question) if any(_waits(run) for run in unfinished) else {}
    counts = cluster.num_unfinished()
    return Answer(
        title="Runs",
        template="runs.html",
        values={
            "unfinished": [row_of(run, question.now, starts.get(run.uid)) for run in unfinished],
            "over": [row_of(run, question.now) for run in over],
            "more_unfinished": _link(query, "unfinished", more_unfinished),
            "more_over": _link(query, "over", more_over),
            "is_first": after is None,
            "counts": [(phase.value, counts[phase]) for phase in Phase if counts.get(phase)],
            "num_kept": cluster.num_kept(),
            "states": STATES,
            "kinds": ("any", *KINDS),
            "query": {name: query.get(name, "") for name in ("q", "state", "team", "kind", "all")},
            "is_filtered": any(query.get(name) for name in ("q", "team")) or state != "any" or kind != "any",
        },
    )


def row_of(run: AnyWorkload, now: float, starts_at: float | None = None) -> RunRow:
    """Return the row of a workload of any kind."""
    wrong = warning_of(run, now)
    leaf = is_leaf(run)
    return RunRow(
        run=run,
        kind=kind_of(run),
        needs=f"{describe_nodes(run.spec)}, {describe_resources(run.spec.resources)}" if is_leaf(run) else "-",
        progress=progress_of(run, short=leaf),
        active_s=active_until(run.status, now),
        why=run.status.reason.message if wrong is None else wrong.message,
        is_warning=wrong is not None,
        starts_at=starts_at,
    )


def kind_of(run: AnyWorkload) -> str:
    """Return the kind that was submitted; a pipeline is kept as the run that executes it."""
    return "Pipeline" if is_pipeline(run.spec) and run.parent is None else type(run.spec).__name__


def _waits(run: AnyWorkload) -> bool:
    return is_leaf(run) and run.status.phase in (Phase.PENDING, Phase.RESTARTING)


def _cut(runs: tuple[AnyWorkload, ...], most: int) -> tuple[tuple[AnyWorkload, ...], Cursor | None]:
    """Return one page, and the position after which more follow."""
    page = runs[:most]
    return page, Cursor(page[-1].created_at, page[-1].uid) if len(runs) > most else None


def _part(text: str) -> str:
    if text not in ("", "unfinished", "over"):
        raise BadQuery(f"There is no part {text!r}. Give one of: unfinished, over.")
    return text


def _place(text: str) -> Cursor | None:
    if not text:
        return None
    at, _, uid = text.partition("_")
    try:
        return Cursor(float(at), uid)
    except ValueError:
        raise BadQuery(f"{text!r} is not a place in the list. Go back to the first page of runs.") from None


def _link(query: Mapping[str, str], part: str, after: Cursor | None) -> str | None:
    if after is None:
        return None
    filters = {name: value for name, value in query.items() if name not in ("part", "after") and value}
    return "/?" + urlencode({**filters, "part": part, "after": f"{after.created_at!r}_{after.uid}"})
