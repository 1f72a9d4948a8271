"""Formats endpoints for commands (address, demand, access), and waits until they are ready."""

import re
import time
from typing import Any, cast

from fairlead.cli.show import describe_event, message
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.gateway_proxy import read_report
from fairlead.errors import NotFound
from fairlead.gateway.proxying.programs import HAPROXY
from fairlead.policy.kinds.serving import asked_revision, replica_counts, share_of_canary
from fairlead.policy.serving.canary import judge_canary
from fairlead.policy.serving.routes import public_names
from fairlead.specs.quantities import format_duration
from fairlead.specs.serving import Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.snapshot import AnyWorkload, Phase, Workload
from fairlead.text.quantities import plural

LOOK_S = 0.2
NUDGE_S = 1.0
# Delay before reporting replicas that are not ready, since most soon are.
PATIENCE_S = 3.0
# Events of requests; later events are their consequences.
ASKED = ("Submitted", "Changed")


def is_endpoint(workload: AnyWorkload) -> bool:
    """Return whether a workload is an endpoint."""
    return isinstance(workload.spec, Serving)


def endpoint_json(cluster: ClusterClient, workload: AnyWorkload) -> dict[str, Any]:
    """Describe an endpoint beyond its state: address, serving revision and replicas, access, and demand."""
    serving = cast("Workload[Serving]", workload)
    detail, demand = detail_of(serving), None
    ready, wanted = replica_counts(serving)
    if cluster.machine is not None:
        demand = cluster.snapshot().demand.get(workload.uid)
    return {
        "url": cluster.endpoint_url(serving),
        "proxy": _proxy_json(cluster, serving),
        "revision": None if detail.serving is None else f"r{detail.serving}",
        "replicas": {"ready": ready, "wanted": wanted},
        "canary": _canary_json(serving),
        "access": _access_json(cluster, serving),
        "requests_per_second": None if demand is None else demand.rate(time.time()),
        "in_flight": None if demand is None else demand.in_flight,
    }


def _proxy_json(cluster: ClusterClient, serving: Workload[Serving]) -> dict[str, str | None] | None:
    """Return the proxy, and the reason if it does not route the endpoint's requests; None without a proxy."""
    if cluster.machine is None:
        return None
    state = read_report(cluster.machine.home)
    if state is None:
        return None
    return {"program": HAPROXY, "held": state["held"].get(public_names(cluster.snapshot()).get(serving.uid))}


def _access_json(cluster: ClusterClient, serving: Workload[Serving]) -> dict[str, Any] | None:
    """Return the teams with access and their number of keys; None for open access."""
    if serving.spec.access is None:
        return None
    teams = serving.spec.teams_with_access
    if cluster.machine is None:
        return {"teams": list(teams), "keys": None}  # the user may not read keys of other teams
    return {"teams": list(teams), "keys": sum(key.team in teams for key in cluster.access_keys())}


def _canary_json(serving: Workload[Serving]) -> dict[str, Any] | None:
    """Return the state of a canary; None without one."""
    detail, rules = detail_of(serving), serving.spec.canary
    trial = detail.canary
    if trial is None or rules is None:
        return None
    verdict = judge_canary(trial.seen, rules.margins, rules.confidence)
    return {
        "revision": f"r{detail.target}",
        "beside": f"r{trial.old}",
        "share": share_of_canary(serving.spec, trial),
        "evidence": verdict.evidence,
        "criteria": {
            name: {"pairs": counts.pairs, "worse": counts.worse, "better": counts.better}
            for name, counts in trial.seen.items()
        },
    }


def endpoint_facts(cluster: ClusterClient, workload: AnyWorkload) -> list[tuple[str, str]]:
    """Return the description as labelled texts."""
    fields = endpoint_json(cluster, workload)
    rate = fields["requests_per_second"]
    facts = [("url", fields["url"] or "-"), ("revision", fields["revision"] or "-")]
    proxy, access = fields["proxy"], fields["access"]
    if proxy is not None:
        facts.append(("requests by", proxy["program"] if proxy["held"] is None else f"the gateway: {proxy['held']}"))
    if access is not None:
        count = "keys" if access["keys"] is None else plural(access["keys"], "key")
        facts.append(("access", f"{count} of {', '.join(access['teams'])}"))
    return facts if rate is None else [*facts, ("requests", f"{rate:.3g}/s, {fields['in_flight']} in flight")]


def await_ready(cluster: ClusterClient, runs: list[AnyWorkload], *, json_: bool = False) -> int:
    """Wait until endpoints serve their requested revisions, and report what their replicas wait for.

    Returns:
        1 if a revision failed, an endpoint ended, or a first revision was not ready in time; else 0.
    """
    return max([_await(cluster, run, json_=json_) for run in runs], default=0)


def _await(cluster: ClusterClient, run: AnyWorkload, *, json_: bool) -> int:
    name, nudge_at = run.spec.name, 0.0
    tell_at, waits = time.monotonic() + PATIENCE_S, {""}
    begun = asked_revision(cast("Workload[Serving]", run))
    is_settled = begun is not None and begun.ready_at is not None  # its outcome was reported when it was requested
    last_id = max((event.id for event in cluster.events(run.uid) if is_settled or event.type in ASKED), default=0)
    while True:
        now = cast("Workload[Serving]", cluster.get(run.uid))
        for event in cluster.events(run.uid, after=last_id):
            last_id = event.id
            if not json_:
                message(f"{name}: {describe_event(event.type, event.reason)}")
        revision, detail = asked_revision(now), detail_of(now)
        if now.status.phase.is_final or now.status.phase is Phase.SUSPENDED:
            message(f"{name} is {now.status.phase.value}: {now.status.reason.message}")
            if now.status.phase is Phase.SUSPENDED:
                message(f"`fairlead resume {name}` lets it serve again.")
            return 1
        if revision is not None and revision.failed is not None:
            message(f"{name} was not changed: {revision.failed}")
            return 1
        if revision is not None and detail.canary is not None and revision.number == detail.target:
            message(f"{name} tries {revision.name} as a canary: `fairlead status {name}` shows how far it is.")
            return 0
        if revision is not None and revision.ready_at is not None and (detail.ready or not detail.wanted):
            url = cluster.endpoint_url(now)
            if url is not None:
                message(f"{name} serves {revision.name} at {url}")
                access = _access_json(cluster, now)
                if access is not None and access["keys"] == 0:
                    (team, *_) = access["teams"]
                    message(f"It refuses every request until there is a key: `fairlead keys create NAME --team {team}`")
                message(f"`fairlead status {name}` shows it, `fairlead stop {name}` ends it.")
                return 0
        why = now.status.reason.message
        if (
            revision is not None
            and detail.serving is None
            and time.time() >= revision.created_at + now.spec.ready_within_s
        ):
            within = format_duration(now.spec.ready_within_s)
            message(f"{name} is not ready after {within}, and keeps trying: {why}")
            message(f"`fairlead logs {name}` shows why. Correct the spec and run it again, or `fairlead stop {name}`.")
            return 1
        kind = re.sub(r"\d+", "", why)  # ports, exit codes and waits differ with each start, without new information
        if time.monotonic() >= tell_at and kind not in waits and not json_:
            waits.add(kind)
            message(f"{name}: {why}")
        if time.monotonic() >= nudge_at:
            cluster.nudge()
            nudge_at = time.monotonic() + NUDGE_S
        cluster.wait(LOOK_S)


def to_endpoint(workload: AnyWorkload) -> Workload[Serving]:
    """Cast a workload to an endpoint.

    Raises:
        NotFound: It is not an endpoint, or has ended.
    """
    if not is_endpoint(workload) or workload.status.phase.is_final:
        kind, phase = type(workload.spec).__name__, workload.status.phase.value
        raise NotFound(f"{workload.spec.name} is a {kind} that is {phase}, not an endpoint that serves.")
    return cast("Workload[Serving]", workload)
