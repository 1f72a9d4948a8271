"""Why the API server does not take a pod, as one sentence with what would mend it. Pure."""

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.state.snapshot import PodPhase


def explain(error: ApiError, namespace: str) -> tuple[PodPhase | None, str]:
    """What a refusal makes of the pod: Lost if a later try may pass, Failed if not, None if it says nothing of it."""
    said = " ".join(error.said.split())
    if "exceeded quota" in said:
        _, _, numbers = said.partition("exceeded quota: ")
        return PodPhase.LOST, (
            f"the quota of namespace {namespace} is used up ({numbers}); wait for other runs to end, ask for less, or "
            "have the quota raised"
        )
    if "being terminated" in said:
        return PodPhase.LOST, f"namespace {namespace} is being deleted; submit the run in another"
    if "admission webhook" in said and "denied the request" in said:
        name = said.partition('admission webhook "')[2].partition('"')[0] or "of this cluster"
        why = said.partition("denied the request")[2].lstrip(": ") or "it gave no reason"
        return PodPhase.FAILED, (
            f"the admission webhook {name} denied the pod: {why}; change what it objects to, if need be under "
            "`kubernetes:` in the spec"
        )
    if "failed calling webhook" in said:
        name = said.partition('webhook "')[2].partition('"')[0]
        return PodPhase.LOST, (
            f"the admission webhook {name} cannot be asked ({said.rpartition(': ')[2]}), and nothing passes without "
            "it; look after its own pods"
        )
    if "violates PodSecurity" in said:
        return PodPhase.FAILED, (
            f"namespace {namespace} does not admit the pod: {said.partition('violates ')[2]}; leave that out under "
            "`kubernetes:` in the spec"
        )
    if "maximum" in said and "limit" in said.lower() and error.status == 403:
        return PodPhase.FAILED, f"a LimitRange of namespace {namespace} forbids the pod: {said}; ask for less"
    if error.status in (400, 422):
        return PodPhase.FAILED, f"the API server finds the pod wrong: {said}; this comes from `kubernetes:` in the spec"
    if error.status == 404:
        return PodPhase.LOST, f"namespace {namespace} is gone"
    if error.status == 403:
        # An API server that has just started says so too, until it has read its roles.
        return (
            PodPhase.LOST,
            f"the operator may not create pods in namespace {namespace}: {said}; "
            "`fairlead doctor` says what is missing",
        )
    return None, said
