"""Shows kept reports of ``fairlead simulate``: all of them, and one with its policies side by side."""

from collections.abc import Callable, Sequence
from typing import Any

from fairlead.cluster.local.home import Home
from fairlead.control.outcomes import time_spent
from fairlead.control.simulation_figures import describe_cost, pool_rows, team_rows
from fairlead.control.simulation_reports import (
    MOST_REPORTS,
    NUM_AVERAGES,
    PolicyReport,
    SimulationReport,
    read_report,
    report_names,
)
from fairlead.errors import ClusterError, NotFound
from fairlead.text.quantities import describe_duration, plural
from fairlead.web.step_charts import Levels, StepChart, step_chart
from fairlead.web.view import Answer, Missing, Question

LOOK_AGAIN_S = 5.0  # a new report is no change of this machine's runs
ELSEWHERE = "Reports of `fairlead simulate` are kept on the machine that made them; `fairlead ui` shows them there."


def simulations(question: Question) -> Answer:
    """List the reports that are kept on this machine, the newest first; on a cluster there are none."""
    home = _home(question)
    rows = [] if home is None else question.paced.value("simulations", lambda: _rows(home))
    values = {"rows": rows, "is_local": home is not None, "most": MOST_REPORTS}
    return Answer(title="Simulations", template="simulations.html", values=values, look_again_s=LOOK_AGAIN_S)


def simulation(question: Question, name: str) -> Answer:
    """Show one report.

    Raises:
        Missing: There is none of that name.
        ClusterError: It cannot be read.
    """
    home = _home(question)
    if home is None:
        raise Missing(ELSEWHERE)
    try:
        report = read_report(home, name)
    except NotFound as error:
        raise Missing(str(error)) from None
    summaries = [(policy.policy, policy.summary) for policy in report.policies]
    values = {
        "report": report,
        "policies": _policies(report),
        "uses": [_uses(policy) for policy in report.policies],
        "charts": _charts(report),
        "teams": team_rows(summaries),
        "pools": pool_rows(summaries),
        "head": 2 if len(report.policies) > 1 else 1,  # the column of the team or pool, after that of the policy
        "left_out": _left_out(report),
    }
    return Answer(title=report.title, template="simulation.html", values=values, look_again_s=60.0)


def _home(question: Question) -> Home | None:
    machine = question.cluster.machine
    return None if machine is None else machine.home


def _rows(home: Home) -> list[dict[str, Any]]:
    """Return a row for each policy of each report, or for a report that cannot be read."""
    rows = list[dict[str, Any]]()
    for name in report_names(home):
        try:
            report = read_report(home, name)
        except NotFound:  # replaced meanwhile by a newer one
            continue
        except ClusterError as error:
            rows.append({"name": name, "trouble": str(error)})
            continue
        rows += [{"name": name, "trouble": None, "report": report, **_figures(policy)} for policy in report.policies]
    return rows


def _figures(of: PolicyReport) -> dict[str, Any]:
    summary = of.summary
    return {
        "policy": of.policy,
        "unfinished": summary.whole.unfinished,
        "wait": _duration(summary.whole.average_wait_s),
        "long_wait": _duration(summary.whole.p99_wait_s),
        "completion": _duration(summary.whole.average_completion_s),
        "held": _share(summary.gpu_utilisation),
        "goodput": _share(summary.goodput),
        "cost": describe_cost(summary.cost),
        "idle_cost": describe_cost(summary.idle_cost),
    }


def _policies(report: SimulationReport) -> list[dict[str, Any]]:
    """Return the figures of each policy, with the widths of their bars: each on one scale for all policies."""
    waits = _widths([policy.summary.whole.average_wait_s for policy in report.policies])
    costs = _widths([policy.summary.cost for policy in report.policies])
    return [
        {
            **_figures(policy),
            "style": number,
            "wait_width": waits[number],
            "held_width": 100 * (policy.summary.gpu_utilisation or 0.0),
            "cost_width": costs[number],
        }
        for number, policy in enumerate(report.policies)
    ]


def _widths(values: Sequence[float | None]) -> list[float]:
    highest = max((value for value in values if value is not None), default=0.0)
    return [100 * (value or 0.0) / highest if highest else 0.0 for value in values]


def _uses(of: PolicyReport) -> dict[str, Any]:
    """Divide the GPU time of a policy by use: each with its share and its part of a bar, in percent."""
    whole, parts, at = of.summary.capacity_gpu_hours, [], 0.0
    for use, hours in time_spent(of.summary).items():
        width = 100 * hours / whole if whole else 0.0
        if width >= 0.05:
            parts.append({"use": use, "share": _share(hours / whole), "begin": at, "width": width})
        at += width
    return {"policy": of.policy, "gpu_hours": f"{whole:,.1f}", "parts": parts}


def _charts(report: SimulationReport) -> list[StepChart]:
    """Draw runs that wait, GPUs that runs hold, and waits: a line for each policy, all policies on one scale."""
    span_s = max(policy.summary.makespan_s for policy in report.policies)
    gpus = max((level for policy in report.policies for _, level in policy.gpus_up), default=0.0)
    longest_s = max((policy.waits[-1][0] for policy in report.policies if policy.waits), default=0.0)

    def lines(of: Callable[[PolicyReport], Sequence[tuple[float, float]]]) -> list[Levels]:
        return [
            Levels(name=policy.policy, steps=of(policy), style=number) for number, policy in enumerate(report.policies)
        ]

    charts = [
        step_chart("Runs that wait for their first start", lines(lambda policy: policy.runs_waiting), span_s=span_s),
        step_chart(
            "Share of runs that waited no longer than",
            lines(lambda policy: policy.waits),
            span_s=longest_s,
            top=1.0,
            say=lambda share: f"{share:.0%}",
        ),
    ]
    if gpus:
        title = f"GPUs that runs hold, averaged over {describe_duration(span_s / NUM_AVERAGES)}"
        held = step_chart(title, lines(lambda policy: policy.gpus_held), span_s=span_s, top=gpus)
        charts.insert(0, held)
    return charts


def _left_out(report: SimulationReport) -> str:
    """Name the teams and pools that the report does not have by themselves; empty for none."""
    first = report.policies[0]
    teams, pools = first.num_teams - len(first.summary.teams), first.num_pools - len(first.summary.pools)
    parts = [plural(teams, "smaller team")] if teams else []
    parts += [plural(pools, "pool")] if pools else []
    return " and ".join(parts)


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else describe_duration(seconds)


def _share(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"
