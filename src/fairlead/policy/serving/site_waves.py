"""Decides which release of an endpoint each of its sites should have: wave by wave, and back at the first failure.

A site judges a release by itself, with the canary of its own endpoint, also while it is cut off. Here its verdict
counts: the first failure of a site that answers takes the release back everywhere. A wave waits for sites that are away
until its deadline; they get what they should have once they answer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.specs.quantities import format_duration
from fairlead.specs.serving import Serving
from fairlead.specs.serving_sites import ServingSite, Waves, divide
from fairlead.state.endpoint_detail import Revision, detail_of
from fairlead.state.site_rollouts import SiteReport, SiteRollout, SiteStage, SiteState
from fairlead.state.snapshot import Workload
from fairlead.text.lists import listed
from fairlead.text.quantities import plural

OWNER, RELEASE = "site-of", "release"
"""Labels of the endpoint at a site: the uid of the endpoint that it belongs to, and the release that it has."""
MOST_NAMED = 3
NOT_VISITED = "not visited yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesSnapshot:
    """The facts from which a decision on the sites of an endpoint follows.

    Attributes:
        target: The release that all sites should have in the end.
        good: The release that all waves had last; None before the first.
        failed: Whether the target was given up with no release to go back to.
        rollout: The result of the last decision.
        reports: Reports of sites by name; those that were not visited yet are missing.
    """

    sites: Mapping[str, ServingSite]
    waves: Waves
    target: int
    good: int | None
    failed: bool = False
    rollout: SiteRollout = SiteRollout()
    reports: Mapping[str, SiteReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesPlan:
    """A decision on the sites of an endpoint.

    Attributes:
        failure: Why the target is given up now; None if it is not.
        is_complete: Whether the target has now passed all waves.
        news: What has changed, each with the type of its event, the most important first.
    """

    rollout: SiteRollout
    failure: str | None = None
    is_complete: bool = False
    news: tuple[tuple[str, str], ...] = ()


def decide_sites(seen: SitesSnapshot, now: float) -> SitesPlan:
    """Return what each site should have now, and what there is to tell."""
    waves = divide(seen.waves.steps, seen.sites)
    before = seen.rollout
    rollout = replace(before, sites=tuple(_observed(seen)))
    news = [*_returns(seen, before, rollout)]
    if rollout.release != seen.target:
        is_return = seen.target == seen.good
        rollout = replace(rollout, release=seen.target, wave=len(waves) if is_return else 0, since=now)
        rollout = replace(rollout, passed_since=None)
        if not is_return:
            news.insert(0, ("WaveStarted", _say_wave(waves, 0, seen.target)))
    rollout = _ordered(seen, rollout, waves)
    if rollout.wave >= len(waves) or seen.failed:
        return SitesPlan(rollout=rollout, news=tuple(news))
    failing = next((site for site in rollout.sites if _fails(site, seen)), None)
    if failing is not None:
        failure = f"{failing.name}: {failing.message}"
        if seen.good is None:
            return SitesPlan(rollout=rollout, failure=failure, news=tuple(news))
        rollout = replace(rollout, release=seen.good, wave=len(waves), passed_since=None)
        rollout = _ordered(replace(seen, target=seen.good), rollout, waves)
        return SitesPlan(rollout=rollout, failure=failure, news=tuple(news))
    if not _may_pass(seen, rollout, waves[rollout.wave], now):
        return SitesPlan(rollout=replace(rollout, passed_since=None), news=tuple(news))
    since = now if rollout.passed_since is None else rollout.passed_since
    rollout = replace(rollout, passed_since=since)
    is_last = rollout.wave == len(waves) - 1
    if now < since + seen.waves.hold_s or (seen.waves.pause and not is_last):
        return SitesPlan(rollout=rollout, news=tuple(news))
    rollout = _ordered(seen, replace(rollout, wave=rollout.wave + 1, since=now, passed_since=None), waves)
    if not is_last:
        news.insert(0, ("WaveStarted", _say_wave(waves, rollout.wave, seen.target)))
    return SitesPlan(rollout=rollout, is_complete=is_last, news=tuple(news))


def next_wave_at(waves: Waves, rollout: SiteRollout) -> tuple[float, ...]:
    """Return when time alone may let a rollout proceed, in Unix seconds."""
    held = () if rollout.passed_since is None else (rollout.passed_since + waves.hold_s,)
    return rollout.since + waves.deadline_s, *held


def stage_of(endpoint: Workload[Serving], revision: Revision | None, now: float) -> tuple[SiteStage, str]:
    """Return how the endpoint of a site does with the revision that its spec describes, and why as a clause.

    Args:
        revision: That revision; None while its cluster has not looked at the spec yet.
    """
    detail, reason = detail_of(endpoint), endpoint.status.reason
    if endpoint.status.phase.is_final:
        return SiteStage.ROLLING, f"its endpoint is {endpoint.status.phase.value} there: {reason.message}"
    if revision is None:
        return SiteStage.ROLLING, reason.message
    if revision.failed is not None:
        return SiteStage.FAILED, revision.failed
    if detail.serving == revision.number and (detail.ready or not detail.wanted):
        return SiteStage.SERVING, ""
    if detail.serving is None and now >= revision.created_at + endpoint.spec.ready_within_s:
        within = format_duration(endpoint.spec.ready_within_s)
        return SiteStage.FAILED, f"no replica was ready within {within}; {reason.message}"
    return SiteStage.ROLLING, reason.message


def describe_sites(seen: SitesSnapshot, rollout: SiteRollout, failed: str | None) -> str:
    """Return the state of an endpoint at its sites, as a sentence.

    Args:
        failed: The release that was given up last and why, as a clause; None if none was.
    """
    waves = divide(seen.waves.steps, seen.sites)
    present = [site for site in rollout.sites if site.name in seen.sites]
    serving = [site for site in present if site.serves and site.release == rollout.release]
    message = f"r{rollout.release} serves at {len(serving)} of {plural(len(seen.sites), 'site')}"
    if rollout.wave < len(waves):
        message = f"wave {rollout.wave + 1} of {len(waves)}: {message}"
        if seen.waves.pause:
            message += "; no further wave begins while `waves.pause` is set"
    others = [site for site in present if not site.serves and site.away_since is None and site.wanted]
    if others:
        message += f"; {_some([f'{site.name}: {site.message or NOT_VISITED}' for site in others])}"
    away = [f"{site.name} ({_say_release(site)})" for site in present if site.away_since is not None]
    if away:
        message += f"; away: {listed(away, MOST_NAMED, separator='; ', joint='; and ')}"
    return message if failed is None else f"{message}; {failed}"


def _observed(seen: SitesSnapshot) -> Iterable[SiteState]:
    """Yield the states of sites as they report them; those removed from the spec until their endpoints are gone."""
    for name, site in seen.sites.items():
        context, namespace, home = site.place
        state = seen.rollout.site(name) or SiteState(name=name, wanted=seen.good or 0)
        state = replace(state, context=context, namespace=namespace, home=home)
        yield _reported(state, seen.reports.get(name))
    for state in seen.rollout.sites:
        if state.name not in seen.sites:
            state = replace(_reported(state, seen.reports.get(state.name)), wanted=0)
            if state.release or state.away_since is not None or state.stage is not SiteStage.ABSENT:
                yield state


def _reported(state: SiteState, report: SiteReport | None) -> SiteState:
    if report is None:
        return state
    if report.trouble is not None:
        away_since = report.since if state.away_since is None else state.away_since
        return replace(state, away_since=away_since, message=report.trouble)
    return replace(state, release=report.release, stage=report.stage, message=report.message, away_since=None)


def _ordered(seen: SitesSnapshot, rollout: SiteRollout, waves: tuple[tuple[str, ...], ...]) -> SiteRollout:
    """Return the rollout with the target for each site of the waves so far."""
    begun = {name for wave in waves[: rollout.wave + 1] for name in wave}
    sites = tuple(replace(site, wanted=seen.target) if site.name in begun else site for site in rollout.sites)
    return replace(rollout, sites=sites)


def _fails(site: SiteState, seen: SitesSnapshot) -> bool:
    has_target = site.wanted == seen.target == site.release
    return has_target and site.stage is SiteStage.FAILED and site.away_since is None


def _may_pass(seen: SitesSnapshot, rollout: SiteRollout, wave: tuple[str, ...], now: float) -> bool:
    """Return whether enough of a wave's sites serve the target for the next wave."""
    num_serving = sum(site.serves and site.away_since is None and site.name in wave for site in rollout.sites)
    if num_serving == len(wave):
        return True
    is_late = now >= rollout.since + seen.waves.deadline_s
    return is_late and num_serving >= max(1, math.ceil(seen.waves.min_share * len(wave) - 1e-9))


def _returns(seen: SitesSnapshot, before: SiteRollout, after: SiteRollout) -> Iterable[tuple[str, str]]:
    """Yield what sites that have left or returned have to tell."""
    left, came = [], []
    for site in after.sites:
        was = before.site(site.name) or SiteState(name=site.name)
        was_away = was.away_since
        if site.away_since is not None and was_away is None:
            left.append(f"{site.name} does not answer and keeps {_say_release(was)}: {site.message}")
        elif site.away_since is None and was_away is not None:
            report = seen.reports[site.name]
            missed = f"; meanwhile there: {report.missed}" if report.missed else ""
            away_s = max(0.0, report.since - was_away)
            came.append(f"{site.name} answers after {format_duration(round(away_s))} with {_say_release(was)}{missed}")
    if came:
        yield "SiteReturned", _some(came)
    if left:
        yield "SiteAway", _some(left)


def _say_wave(waves: tuple[tuple[str, ...], ...], number: int, release: int) -> str:
    wave = waves[number]
    names = ", ".join(wave) if len(wave) <= MOST_NAMED else plural(len(wave), "site")
    return f"r{release} goes to wave {number + 1} of {len(waves)}: {names}"


def _say_release(site: SiteState) -> str:
    return f"r{site.release}" if site.release else "no release"


def _some(clauses: list[str]) -> str:
    return listed(clauses, MOST_NAMED, separator="; ", joint="; and ")
