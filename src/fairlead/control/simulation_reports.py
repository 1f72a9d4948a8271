"""Keeps the newest reports of simulations in the state directory, for the web page.

A report has what the page shows of it, not every run, and a bounded size whatever the trace has.

See decision 141.
"""

import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace

from fairlead.cluster.local.disk_errors import explained
from fairlead.cluster.local.home import Home
from fairlead.cluster.records import build, plain
from fairlead.control.outcomes import Summary, averaged, gpus_held, gpus_up, queue_length, thinned, wait_shares
from fairlead.control.simulation_figures import Result
from fairlead.errors import ClusterError, NotFound
from fairlead.frozen import dataclass
from fairlead.runtime.podfiles import read_json, write_json

MOST_REPORTS = 50
"""Number of reports that are kept; a new one replaces the oldest."""
MOST_TEAMS = MOST_POOLS = 40
"""Teams with the most runs, and the first pools, that a report has by themselves."""
MOST_POINTS = 240
"""Maximum steps of a line, one for each pixel or two of the page's charts."""
NUM_AVERAGES = 80
"""Averages in the line of held GPUs: else it changes with each run, and lines of policies hide each other."""

_NAME = re.compile(r"[0-9]{13}-[0-9a-f]{6}")
_VERSION = 1
_DRAFT_S = 3600.0
"""Age in seconds from which a draft is a leftover of a process that was killed."""

Line = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """The results of one policy. Lines are steps of (seconds since the start of the trace, level).

    Attributes:
        summary: Limited to ``MOST_TEAMS`` teams and ``MOST_POOLS`` pools.
        num_teams, num_pools: Numbers of all teams and pools, shown or not.
        gpus_held: Averages of equal stretches of the longest simulation of the report.
        waits: Share of the runs that waited no longer than so many seconds.
    """

    policy: str
    summary: Summary
    num_teams: int
    num_pools: int
    gpus_up: Line
    gpus_held: Line
    runs_waiting: Line
    waits: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """The results of one simulation, for each policy.

    Attributes:
        at: Unix time at which it was made.
        settings: Options that change the result, such as ``--declare 2``.
        num_nodes: Maximum number of nodes; ``num_gpus`` likewise.
    """

    title: str
    at: float
    settings: tuple[str, ...]
    num_runs: int
    num_nodes: int
    num_gpus: int
    policies: tuple[PolicyReport, ...]


def report_of(title: str, settings: Sequence[str], results: Sequence[Result], at: float) -> SimulationReport:
    """Return the report of a simulation."""
    outcome, span_s = results[0][1], max(figures.ended_s for _, figures, _ in results)
    return SimulationReport(
        title=title,
        at=at,
        settings=tuple(settings),
        num_runs=len(outcome.runs),
        num_nodes=outcome.num_nodes,
        num_gpus=outcome.num_gpus,
        policies=tuple(_policy_report(result, span_s) for result in results),
    )


def keep_report(home: Home, report: SimulationReport) -> str:
    """Store a report, remove the oldest ones beyond ``MOST_REPORTS``, and return its name.

    Raises:
        ClusterError: It cannot be written.
    """
    name = f"{round(report.at * 1000):013d}-{uuid.uuid4().hex[:6]}"
    try:
        home.simulations.mkdir(mode=0o700, exist_ok=True)
        write_json(home.simulations / f"{name}.json", {"version": _VERSION, **plain(report)}, durably=False)
        for old in [report_name for report_name in report_names(home) if report_name != name][MOST_REPORTS - 1 :]:
            (home.simulations / f"{old}.json").unlink(missing_ok=True)
        for draft in home.simulations.glob("*.tmp"):
            if report.at - draft.stat().st_mtime > _DRAFT_S:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise explained(home.path, error) from error
    return name


def report_names(home: Home) -> list[str]:
    """Return the names of all kept reports, the newest first."""
    try:
        entries = os.listdir(home.simulations)
    except FileNotFoundError:
        return []
    names = (entry.removesuffix(".json") for entry in entries if entry.endswith(".json"))
    return sorted(filter(_NAME.fullmatch, names), reverse=True)


def read_report(home: Home, name: str) -> SimulationReport:
    """Return a kept report.

    Raises:
        NotFound: There is none of that name.
        ClusterError: The file is damaged, or was written by another version.
    """
    path = home.simulations / f"{name}.json"
    if _NAME.fullmatch(name) is None or not path.is_file():
        raise NotFound(f"There is no report {name!r} here; the newest {MOST_REPORTS} are kept.")
    try:
        content = read_json(path)
        if content is None or content.get("version") != _VERSION:
            raise ValueError("it is not a report of this version")
        return build(SimulationReport, content)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ClusterError(
            f"{path} cannot be read: {error}. Remove the file, and simulate again for a new report."
        ) from error


def _policy_report(result: Result, span_s: float) -> PolicyReport:
    policy, outcome, summary = result
    largest_teams = sorted(summary.teams, key=lambda team: (-summary.teams[team].num_runs, team))[:MOST_TEAMS]
    return PolicyReport(
        policy=policy,
        summary=replace(
            summary,
            teams={team: figures for team, figures in summary.teams.items() if team in largest_teams},
            pools=dict(list(summary.pools.items())[:MOST_POOLS]),
        ),
        num_teams=len(summary.teams),
        num_pools=len(summary.pools),
        gpus_up=_line(gpus_up(outcome)),
        gpus_held=_line(averaged(gpus_held(outcome), span_s, NUM_AVERAGES)),
        runs_waiting=_line(queue_length(outcome)),
        waits=_line(wait_shares([run.waited_s for run in outcome.runs])),
    )


def _line(steps: Sequence[tuple[float, float]]) -> Line:
    return tuple((round(at, 3), round(level, 6)) for at, level in thinned(steps, MOST_POINTS))
