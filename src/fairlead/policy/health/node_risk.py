"""Estimates how unreliable a node is, from its failures and its time of service.

A node is healthy, and fails ``HEALTHY_PER_DAY`` times a day, or a lemon, whose rate has a gamma distribution of shape
1. The posterior odds of a lemon after n failures in d days of service are

    prior odds * Gamma(n + 1) b / (d + b)^(n + 1) / (r^n exp(-r d)),   b = 1 / mean rate of a lemon, r = healthy rate.

Failures and days halve in ``HALF_LIFE_S``, since healthy nodes become lemons. A failure whose node is unknown is
shared among the gang in proportion to the expected rates of its nodes. Rates and prior are those that reproduce
Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (HPCA 2025): 6.5 failures in
1,000 node days, 1.2 % lemons, and 14 % of large jobs that fail, 4 % without lemons.

See decision 233.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from fairlead.state.node_health import (
    MOST_RECENT,
    OF_HARDWARE,
    Histories,
    Incident,
    NodeFailure,
    NodeHistory,
    NodeOutage,
)
from fairlead.state.snapshot import Snapshot

DAY_S = 86400.0
HALF_LIFE_S = 60 * DAY_S
HEALTHY_PER_DAY, LEMON_PER_DAY = 0.0018, 0.4
PRIOR, PRIOR_RETURNED = 0.012, 0.1
"""The chance that a node is a lemon, before any failure: of a new one, and of one that comes back from repair."""
MOST_BITS = 16
LEAST_EVIDENCE = math.log(2) / math.log(LEMON_PER_DAY / HEALTHY_PER_DAY)
"""Fewer failures than this are no evidence against any node, however short its service: the first bit takes more."""
MOST_OF_TEAM = 1.0
"""The failures of a node, less than it takes to take it out, that one team accounts for by what its programs do."""
MOST_TEAMS = 8
"""Teams whose parts of a node's failures are known; the smallest are forgotten."""
MOST_NODES = 1000
LEAST_WEIGHT = 0.05
"""A sum of failures below which a history says nothing any more."""
SAME_S = 3600.0
"""The time within which what a node and its detectors report is one failure: a lost node takes all its runs along."""
LISTED_S = 30 * DAY_S
"""The time for which failures are counted for people."""


def service_days(since: float, now: float) -> float:
    """Return the days since a time, where each counts half as much after ``HALF_LIFE_S``."""
    mean_s = HALF_LIFE_S / math.log(2)
    return mean_s * -math.expm1(-max(0.0, now - since) / mean_s) / DAY_S


def failures_at(history: NodeHistory, now: float) -> float:
    """Return the sum of a node's failures, as of now."""
    return history.failures * math.exp2(-max(0.0, now - history.at) / HALF_LIFE_S)


def lemon_chance(history: NodeHistory, now: float) -> float:
    """Return the posterior probability that a node is a lemon."""
    failures, days = failures_at(history, now), service_days(history.since, now)
    prior = PRIOR_RETURNED if history.was_out else PRIOR
    mean_days = 1 / LEMON_PER_DAY
    log_odds = (
        math.log(prior / (1 - prior))
        + math.lgamma(failures + 1)
        + math.log(mean_days)
        - (failures + 1) * math.log(days + mean_days)
        - failures * math.log(HEALTHY_PER_DAY)
        + HEALTHY_PER_DAY * days
    )
    return 1 / (1 + math.exp(-log_odds)) if log_odds > -700 else 0.0


def lemon_rate(history: NodeHistory, now: float) -> float:
    """Return the expected failures a day of a node if it is a lemon."""
    return (failures_at(history, now) + 1) / (service_days(history.since, now) + 1 / LEMON_PER_DAY)


def failure_rate(history: NodeHistory, now: float) -> float:
    """Return the expected failures a day of a node."""
    chance = lemon_chance(history, now)
    return chance * lemon_rate(history, now) + (1 - chance) * HEALTHY_PER_DAY


def evidence_bits(history: NodeHistory, now: float) -> int:
    """Return how much its failures speak for a lemon: the whole bits of the likelihood ratio, 0 to ``MOST_BITS``.

    Unlike the probability it hardly changes with time alone, and is 0 for every node that has not failed.
    """
    failures = failures_at(history, now)
    if failures < LEAST_EVIDENCE:
        return 0
    days = service_days(history.since, now) + 1 / LEMON_PER_DAY
    log_ratio = math.lgamma(failures + 1) - failures * math.log(days * HEALTHY_PER_DAY)
    return min(max(int(log_ratio / math.log(2)), 0), MOST_BITS)


def risks_of(snapshot: Snapshot, now: float) -> dict[str, int]:
    """Return the evidence against each node against which there is any, by name; none if the rules do not use it."""
    if not snapshot.rules.places_by_risk:
        return {}
    histories = snapshot.node_health.items()
    bits = ((name, evidence_bits(history, now)) for name, history in histories if history.failures >= LEAST_EVIDENCE)
    return {name: risk for name, risk in bits if risk}


def gang_failures_per_day(snapshot: Snapshot, nodes: Collection[str], now: float) -> float | None:
    """Return the expected failures a day of a gang on some nodes, by their histories.

    A node without a history never failed, so it counts as healthy.

    Returns:
        None if no node has a history, or the rules do not use risk.
    """
    histories = [snapshot.node_health.get(name) for name in set(nodes)]
    if not snapshot.rules.places_by_risk or not any(histories):
        return None
    return sum(HEALTHY_PER_DAY if history is None else failure_rate(history, now) for history in histories)


def charged(histories: Histories, incident: Incident, since: Mapping[str, float]) -> dict[str, NodeHistory]:
    """Return the histories with a failure charged to its node, or shared among the gang.

    Of failures that a program can bring about, those of one run count once for a node, and those of one team no more
    than ``MOST_OF_TEAM``: nobody can spoil the history of a node by failing there.

    Args:
        since: The beginning of service of nodes that have no history yet; that of others is now.
    """
    result = dict(histories)
    at = incident.at
    own = [
        histories.get(name) or NodeHistory(node=name, since=since.get(name, at), at=at)
        for name in dict.fromkeys(incident.nodes)
    ]
    rates = [failure_rate(history, at) for history in own]
    total = sum(rates)
    for history, rate in zip(own, rates, strict=True):
        result[history.node] = _with_failure(history, incident, rate / total if incident.is_charged else 0.0)
    return result


def _with_failure(history: NodeHistory, incident: Incident, share: float) -> NodeHistory:
    """Return the history of one node with its share in a failure, as far as that counts."""
    at, cause = incident.at, incident.cause
    halved = math.exp2(-max(0.0, at - history.at) / HALF_LIFE_S)
    by_team = {team: part * halved for team, part in history.by_team.items()}
    rest, known = history.recent, 0.0
    if cause in OF_HARDWARE:
        is_known = any(one.cause in OF_HARDWARE and abs(at - one.at) < SAME_S and one.share > 0 for one in rest)
        share = 0.0 if is_known else share
    else:
        of_run = [
            one for one in rest if one.cause not in OF_HARDWARE and (one.team, one.run) == (incident.team, incident.run)
        ]
        rest = tuple(one for one in rest if one not in of_run or one.cause is not cause)
        known = sum(one.share for one in of_run if one.cause is cause)
        counted = sum(one.share for one in of_run)
        share = max(0.0, min(share - counted, MOST_OF_TEAM - by_team.get(incident.team, 0.0)))
        by_team[incident.team] = by_team.get(incident.team, 0.0) + share
        largest = sorted(by_team, key=lambda team: (-by_team[team], team))[:MOST_TEAMS]
        by_team = {team: by_team[team] for team in largest if by_team[team] > 0}
    failure = NodeFailure(at=at, team=incident.team, run=incident.run, cause=cause, share=known + share)
    recent = (*rest, failure)
    if len(recent) > MOST_RECENT:
        least = min(recent, key=lambda one: (one.share * math.exp2((one.at - at) / HALF_LIFE_S), one.at))
        recent = tuple(one for one in recent if one is not least)
    failures = history.failures * halved + share
    return replace(history, failures=failures, at=max(at, history.at), by_team=by_team, recent=recent)


def forgotten(histories: Histories, nodes: Collection[str], now: float) -> dict[str, NodeHistory]:
    """Return the histories that still say something: of at most ``MOST_NODES`` nodes, those that weigh most.

    A node that does not exist any more keeps its history for as long as its failures weigh anything, since it may come
    back under its name.

    Args:
        nodes: The nodes that exist.
    """
    old = now - LISTED_S
    left = {
        name: history
        for name, history in histories.items()
        if failures_at(history, now) >= LEAST_WEIGHT
        or (name in nodes and (history.out is not None or history.was_out))
        or any(one.at >= old for one in history.recent)
    }
    if len(left) <= MOST_NODES:
        return left
    weight = {name: (history.out is not None, failures_at(history, now)) for name, history in left.items()}
    largest = sorted(left, key=lambda name: (weight[name], name), reverse=True)[:MOST_NODES]
    return {name: left[name] for name in sorted(largest)}


def taken_out(history: NodeHistory, why: str, now: float) -> NodeHistory:
    """Return the history of a node that is taken out now."""
    return replace(history, out=NodeOutage(since=now, why=why))


def returned(history: NodeHistory, now: float) -> NodeHistory:
    """Return the history of a node that comes back after a test or repair: its failures no longer count."""
    return NodeHistory(node=history.node, since=now, at=now, recent=history.recent, was_out=True)
