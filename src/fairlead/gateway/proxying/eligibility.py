"""Decides which services a proxy forwards by itself: those whose requests need no decision of the gateway.

See decisions 84 and 194.
"""

from fairlead.gateway.routes import ServiceRoute

ASLEEP = "no replica is ready: requests are held"


def held_because(route: ServiceRoute) -> str | None:
    """Return why requests of a service stay with the gateway; None if they may go directly to its replicas."""
    for applies, why in (
        (route.keys is not None, "keys are compared with each request (`access`)"),
        (any(revision.shadow for revision in route.revisions), "requests are copied to a shadow"),
        (route.canary is not None, "a canary is compared pair by pair"),
        (route.idempotent, "what may have been begun is sent again (`idempotent`)"),
        (route.by_prefix, "each goes to the replica that has its prefix (`routing: prefix`)"),
        (route.max_concurrency is not None, "requests wait for a place (`max_concurrency`)"),
        (route.most_in_flight is not None, "requests that would be late are refused (`scale.shed`)"),
        (route.counts_tokens, "it records when tokens come (`scale.time_to_first_token`, `scale.time_per_token`)"),
        (not any(revision.replicas and revision.weight for revision in route.revisions), ASLEEP),
        (not _shares_follow_replicas(route), "revisions have shares of the requests"),
    ):
        if applies:
            return why
    return None


def _shares_follow_replicas(route: ServiceRoute) -> bool:
    """Return whether weights of revisions are proportional to their replicas, so that all replicas are equal."""
    revisions = [revision for revision in route.revisions if revision.replicas]
    if not all(revision.weight for revision in revisions):
        return False  # these replicas must get no requests
    counts = [(revision.weight, len(revision.replicas)) for revision in revisions]
    return all(weight * counts[0][1] == counts[0][0] * count for weight, count in counts)
