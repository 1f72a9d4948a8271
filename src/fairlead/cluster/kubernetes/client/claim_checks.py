"""Finds claims of a run's data that are missing or that its pods could not mount, at its submission."""

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.names import segment
from fairlead.specs.training import Training

ONE_NODE = {"ReadWriteOnce", "ReadWriteOncePod"}
"""Access modes of a claim by which one node alone mounts it."""


def claim_problem(client: Client, namespace: str, spec: Training) -> str | None:
    """Return why a run's pods cannot mount a claim, as a clause with the key; None where nothing is known."""
    for name, source in spec.data.items():
        claim = source.claim
        if claim is None:
            continue
        try:
            content = client.get(f"/api/v1/namespaces/{segment(namespace)}/persistentvolumeclaims/{segment(claim)}")
        except ApiError as error:
            if error.status == 403:  # kubelet mounts it, whoever submits
                continue
            if error.status != 404:
                raise
            return (
                f"data.{name}: there is no PersistentVolumeClaim `{claim}` in namespace {namespace}; `kubectl -n "
                f"{namespace} get pvc` lists those there are"
            )
        modes = set((content.get("spec") or {}).get("accessModes") or ())
        if source.write and modes == {"ReadOnlyMany"}:
            return f"data.{name}.write: the claim `{claim}` is read-only; leave `write` out, or give another claim"
        if (spec.most_nodes or spec.nodes) > 1 and modes and modes <= ONE_NODE:
            return (
                f"data.{name}: the claim `{claim}` is {', '.join(sorted(modes))}, which one node mounts, and the run "
                "has several; give a claim that is ReadOnlyMany or ReadWriteMany, or `nodes: 1`"
            )
    return None
