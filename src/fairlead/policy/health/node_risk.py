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
from collections.abc import Mapping
from dataclasses import replace

from fairlead.state.node_health import MOST_RECENT, Histories, Incident, NodeFailure, NodeHistory
from fairlead.state.snapshot import Snapshot

DAY_S = 86400.0
HALF_LIFE_S = 60 * DAY_S
HEALTHY_PER_DAY, LEMON_PER_DAY = 0.0018, 0.4
PRIOR, PRIOR_RETURNED = 0.012, 0.1
"""The chance that a node is a lemon, before any failure: of a new one, and of one that comes back from repair."""
MOST_BITS = 16


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
    if failures <= 0:
        return 0
    days = service_days(history.since, now) + 1 / LEMON_PER_DAY
    log_ratio = math.lgamma(failures + 1) - failures * math.log(days * HEALTHY_PER_DAY)
    return min(max(int(log_ratio / math.log(2)), 0), MOST_BITS)


def risks_of(snapshot: Snapshot, now: float) -> dict[str, int]:
    """Return the evidence against each node against which there is any, by name; none if the rules do not use it."""
    if not snapshot.rules.places_by_risk:
        return {}
    histories = snapshot.node_health.items()
    bits = ((name, evidence_bits(history, now)) for name, history in histories if history.failures)
    return {name: risk for name, risk in bits if risk}


def charged(histories: Histories, incident: Incident, since: Mapping[str, float]) -> dict[str, NodeHistory]:
    """Return the histories with a failure charged to its node, or shared among the gang.

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
        share = rate / total
        failure = NodeFailure(at=at, run=incident.run, cause=incident.cause, share=share)
        result[history.node] = replace(
            history,
            failures=failures_at(history, at) + share,
            at=at,
            recent=(*history.recent, failure)[-MOST_RECENT:],
        )
    return result


def returned(history: NodeHistory, now: float) -> NodeHistory:
    """Return the history of a node that comes back after a test or repair: its failures no longer count."""
    return NodeHistory(node=history.node, since=now, at=now, recent=history.recent, was_out=True)
