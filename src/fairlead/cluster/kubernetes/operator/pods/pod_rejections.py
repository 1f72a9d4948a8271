"""Explains why the API server refuses a pod or an object that it needs: one sentence, with a remedy.
Pure."""

import re

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.objects import quantity
from fairlead.state.snapshot import PodPhase

# The message of Kubernetes' admission plugin ResourceQuota for resources that exceed the quota.
QUOTA = re.compile(r"exceeded quota: (.+?), requested: (.+?), used: (.+?), limited: (.+)")
# The message of kube-apiserver for a ValidatingAdmissionPolicy.
POLICY = re.compile(r"ValidatingAdmissionPolicy '(.+?)' with binding '.+?' denied request: (.+)")


def explain(error: ApiError, namespace: str, *, num_pods: int = 1, kind: str = "Pod") -> tuple[PodPhase | None, str]:
    """Return the state of a pod after a refusal.

    Refused by a quota, which may have room later; Lost if a later attempt may pass otherwise; Failed if not; None if
    the answer does not say.

    Args:
        num_pods: The number of pods of its gang, which are created all or not at all.
        kind: The kind that was refused: the pod, or an object that pods need.
    """
    what = "pod" if kind == "Pod" else f"{kind} that its pods need"
    message = " ".join(error.server_message.split())
    if "exceeded quota" in message:
        return PodPhase.REFUSED, _quota(message, namespace, num_pods)
    if "being terminated" in message:
        return PodPhase.LOST, f"namespace {namespace} is being deleted; submit the run in another"
    if "admission webhook" in message and "denied the request" in message:
        name = message.partition('admission webhook "')[2].partition('"')[0] or "of this cluster"
        why = message.partition("denied the request")[2].lstrip(": ") or "it gave no reason"
        return PodPhase.FAILED, f"the admission webhook {name} denied the {what}: {why}; {_change(kind)}"
    denied = POLICY.search(message)
    if denied is not None:
        return PodPhase.FAILED, f"the admission policy {denied[1]} denied the {what}: {denied[2]}; {_change(kind)}"
    if "failed calling webhook" in message:
        name = message.partition('webhook "')[2].partition('"')[0]
        return PodPhase.LOST, (
            f"the admission webhook {name} did not answer ({message.rpartition(': ')[2]}), and the cluster accepts "
            "nothing without it; check its pods"
        )
    if "violates PodSecurity" in message:
        return PodPhase.FAILED, (
            f"namespace {namespace} does not admit the pod: {message.partition('violates ')[2]}; leave that out under "
            "`kubernetes:` in the spec"
        )
    if "maximum" in message and "limit" in message.lower() and error.status == 403:
        return PodPhase.FAILED, f"a LimitRange of namespace {namespace} forbids the pod: {message}; ask for less"
    if error.status in (400, 422):
        whence = "; this comes from `kubernetes:` in the spec" if kind == "Pod" else ""
        return PodPhase.FAILED, f"the API server rejected the {what}: {message}{whence}"
    if error.status == 404:
        return PodPhase.LOST, f"namespace {namespace} is gone"
    if error.status == 403:
        # An API server that has just started answers so too, until it has read its roles: before any pod exists, asking
        # again costs no attempt.
        return (
            PodPhase.LOST if kind == "Pod" else None,
            f"the operator may not create the {what} in namespace {namespace}: {message}; "
            "`fairlead doctor` says what is missing",
        )
    return None, message


def _change(kind: str) -> str:
    if kind == "Pod":
        return "change what it objects to, if need be under `kubernetes:` in the spec"
    return "ask the administrators of the cluster to allow it"


def _quota(message: str, namespace: str, num_pods: int) -> str:
    """Return which quota it is, what it holds, what the pod requests, and what would free it."""
    match = QUOTA.search(message)
    if match is None:
        return f"the quota of namespace {namespace} is used up ({message}); have it raised, or ask for less"
    name, (requested, used, most) = match[1], (_numbers(part) for part in match.groups()[1:])
    numbers = "; ".join(
        f"{what}: {number} asked for, {used.get(what, '0')} of {most.get(what, '0')} used"
        for what, number in requested.items()
    )
    if any(num_pods * quantity(number) > quantity(most.get(what, "0")) for what, number in requested.items()):
        whole = "" if num_pods == 1 else f"; the gang needs {num_pods} times as much"
        return (
            f"the quota {name} of namespace {namespace} can never hold it ({numbers}{whole}); have the quota raised, "
            "or ask for less"
        )
    return (
        f"the quota {name} of namespace {namespace} is used up ({numbers}); wait for other pods there to end, ask for "
        "less, or have the quota raised"
    )


def _numbers(listed: str) -> dict[str, str]:
    """Read amounts such as ``pods=1,requests.memory=4Gi``."""
    return {what: number for what, _, number in (part.partition("=") for part in listed.split(","))}
