"""Detects what adds nodes: Karpenter by its NodePools, the Cluster Autoscaler by the status that it writes.

They are read only while runs wait, and again for every run that begins to wait, so no answer is outdated.

See decision 142.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.api.objects import MODEL_LABELS, quantity
from fairlead.cluster.kubernetes.devices import WHOLE
from fairlead.cluster.kubernetes.manifests.capacity_objects import GROUP, REQUESTS, REQUESTS_VERSION
from fairlead.cluster.kubernetes.names import AUTOSCALER_STATUS
from fairlead.policy.placement.device_matching import ALTERNATIVES, matches
from fairlead.policy.placement.node_eligibility import PRICE_LABEL, SPOT_MARKS, price_label
from fairlead.state.capacity_requests import PATIENCE_S, PAUSE_S, Amount, Growth, Source
from fairlead.state.snapshot import Intent, Phase, Workload

NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
STATUS = f"/api/v1/namespaces/kube-system/configmaps/{AUTOSCALER_STATUS}"
UPDATED = "cluster-autoscaler.kubernetes.io/last-updated"
# The Cluster Autoscaler updates its status every 10 s; a status this old means that it is not running.
STALE_S = 600.0
EVERY_S = 30.0
# With new runs in each pass, each pass would wait for these answers.
LEAST_S = 2.0
# The labels by which a cloud's Karpenter chooses among its machines.
GROUP_LABELS = {"karpenter.k8s.aws": "karpenter.k8s.aws/instance-gpu-name"}
GPU_NAMES = (*MODEL_LABELS, "karpenter.azure.com/sku-gpu-name")


class Autoscalers:
    """The cluster's autoscalers, as they were last read."""

    def __init__(self, client: Client, *, patience_s: float = PATIENCE_S, pause_s: float = PAUSE_S) -> None:
        self._client = client
        self._patience_s = patience_s
        self._pause_s = pause_s
        self._looked_at = 0.0
        self.growth: Growth | None = None
        self.pools: tuple[Object, ...] = ()

    def look(self, runs: Iterable[Workload], now: float) -> bool:
        """Read them again if a run waits since before the last answer; return whether the answer has changed.

        Raises:
            ClusterError: The API server does not answer.
        """
        waiting = (Phase.PENDING, Phase.RESTARTING)
        since = [
            run.status.since
            for run in runs
            if run.intent is Intent.RUN and (run.status.phase in waiting or run.status.missing)
        ]
        age_s = now - self._looked_at
        if not since or 0 <= age_s < LEAST_S or (self._looked_at > max(since) and age_s < EVERY_S):
            return False
        before = self.growth
        return self.ask(now) != before

    def ask(self, now: float) -> Growth | None:
        """Read what adds nodes to this cluster.

        Raises:
            ClusterError: The API server does not answer.
        """
        pools = self._pools()
        growth = read_pools(pools) or (None if pools else self._cluster_autoscaler(now))
        self._looked_at = now
        self.pools = tuple(pools)
        self.growth = growth and replace(growth, patience_s=self._patience_s, pause_s=self._pause_s)
        return self.growth

    def _cluster_autoscaler(self, now: float) -> Growth | None:
        growth = read_status(self._status(), now)
        if growth is None:
            return None
        return replace(growth, by_request=serves(self._client, f"/apis/{GROUP}/{REQUESTS_VERSION}", REQUESTS))

    # What the operator may not read counts as absent: no run is then held back for nodes that nobody can request.

    def _pools(self) -> list[Object]:
        try:
            return list(self._client.items(NODE_POOLS))
        except ApiError as error:
            if error.status in (403, 404):
                return []
            raise

    def _status(self) -> Object:
        try:
            return self._client.get(STATUS)
        except ApiError as error:
            if error.status in (403, 404):
                return {}
            raise


def read_pools(pools: Iterable[Object]) -> Growth | None:
    """Read Karpenter's NodePools; None if none of them is ready."""
    sources = tuple(_source(pool) for pool in pools if _is_ready(pool))
    look = "`kubectl describe nodepools,nodeclaims`"
    return Growth(by="Karpenter", look=look, sources=sources) if sources else None


def read_status(content: Object, now: float) -> Growth | None:
    """Read the Cluster Autoscaler's ConfigMap; None if there is none that is up to date."""
    if not content:
        return None
    written = ((content.get("metadata") or {}).get("annotations") or {}).get(UPDATED)
    try:
        at = None if written is None else datetime.fromisoformat(str(written)[:19]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        at = None
    if at is not None and now - at > STALE_S:
        return None
    look = f"`kubectl -n kube-system describe configmap {AUTOSCALER_STATUS}`"
    # Only the cloud knows the machines of its groups; the autoscaler reports if none fits.
    return Growth(by="the Cluster Autoscaler", look=look, sources=(Source(name="its node groups"),))


def gpu_labels(pools: Iterable[Object], wanted: str) -> list[tuple[str, str]]:
    """Return labels, key and value, of new nodes that have the GPU model; none if nothing distinguishes them.

    Labels set by drivers appear only with the node, unless the NodePool has them in its template.
    """
    labels: list[tuple[str, str]] = []
    for pool in pools:
        own = _labels(pool)
        labels += [(key, value) for key, value in own if matches(value, 0, wanted, None)]
        spec = ((pool.get("spec") or {}).get("template") or {}).get("spec") or {}
        key = GROUP_LABELS.get(str((spec.get("nodeClassRef") or {}).get("group")))
        if not own and key is not None:
            labels += [(key, name.strip().lower()) for name in wanted.split(ALTERNATIVES)]
    return list(dict.fromkeys(labels))


def spot_labels(pools: Collection[Object]) -> tuple[tuple[str, str], ...]:
    """Return labels, key and value, of new spot nodes.

    With NodePools only Karpenter's own: it would add any label whose absence a pod requests.
    """
    return tuple(mark for mark in SPOT_MARKS if not pools or mark[0].startswith("karpenter.sh/"))


def prices_within(pools: Iterable[Object], max_price: float) -> tuple[str, ...]:
    """Return the values of ``PRICE_LABEL`` on new nodes that cost at most so many dollars an hour."""
    templates = (_template_labels(pool) for pool in pools)
    return tuple(
        dict.fromkeys(
            str(labels[PRICE_LABEL])
            for labels in templates
            if (price := price_label(labels)) is not None and price <= max_price
        )
    )


def _source(pool: Object) -> Source:
    limits = (pool.get("spec") or {}).get("limits") or {}
    used = (pool.get("status") or {}).get("resources") or {}
    return Source(
        name=f"NodePool {pool['metadata']['name']}",
        models=tuple(dict.fromkeys(value for _, value in _labels(pool))),
        price_per_hour=price_label(_template_labels(pool)),
        most=_amount(limits, {}),
        left=_amount(limits, used),
    )


def _amount(limits: Mapping[str, Any], used: Mapping[str, Any]) -> Amount:
    def left(name: str, per: int = 1) -> int | None:
        return max(0, int((quantity(limits[name]) - quantity(used.get(name, 0))) * per)) if name in limits else None

    gpu = next((name for name in WHOLE if name in limits), "")
    return Amount(cpu_milli=left("cpu", 1000), memory_bytes=left("memory"), gpus=left(gpu))


def _labels(pool: Object) -> list[tuple[str, str]]:
    """Return the GPU models that the nodes of a pool are labelled with, or may be."""
    template = (pool.get("spec") or {}).get("template") or {}
    labels = _template_labels(pool)
    models = [(key, str(labels[key])) for key in GPU_NAMES if key in labels]
    for requirement in (template.get("spec") or {}).get("requirements") or ():
        if requirement.get("key") in GPU_NAMES and requirement.get("operator") == "In":
            models += [(str(requirement["key"]), str(value)) for value in requirement.get("values") or ()]
    return models


def _template_labels(pool: Object) -> Mapping[str, Any]:
    """Return the labels that every node of a pool gets."""
    template = (pool.get("spec") or {}).get("template") or {}
    return (template.get("metadata") or {}).get("labels") or {}


def _is_ready(pool: Object) -> bool:
    """Return whether it creates nodes: neither deleted, nor reported as not ready."""
    conditions = (pool.get("status") or {}).get("conditions") or ()
    is_unready = any(c.get("type") == "Ready" and c.get("status") == "False" for c in conditions)
    return "deletionTimestamp" not in pool["metadata"] and not is_unready


def serves(client: Client, base: str, resource: str) -> bool:
    """Return whether the API server has a resource in a version of a group.

    Raises:
        ClusterError: It does not answer.
    """
    try:
        listing = client.get(base)
    except ApiError as error:
        if error.status in (403, 404):
            return False
        raise
    return any(entry.get("name") == resource for entry in listing.get("resources") or ())
