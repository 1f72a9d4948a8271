"""Finds nodes eligible for a run regardless of capacity: by taints, price, and `kubernetes:` as kube-scheduler does.

GPU taints repel no run: they mark hardware, and placement decides by capacity alone. A node with a cloud's spot label
counts as tainted with it, as some clouds do themselves. Preferences and a run's constraints on other pods are left to
kube-scheduler, with one exception: that no two of its own pods share a node.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

from fairlead.frozen import dataclass
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.placement.networks import why_unconnected
from fairlead.specs.gang import GangSpec
from fairlead.specs.network import Network
from fairlead.specs.overlay import Overlay
from fairlead.specs.training import Capacity, Tier
from fairlead.state.snapshot import Node, Taint
from fairlead.text.quantities import describe_dollars

GPU_TAINTS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "gpu.intel.com/i915", "habana.ai/gaudi", "sku")
# Labels of spot nodes, and taints with the same keys and values.
SPOT_MARKS = (
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-provisioning", "spot"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
)
# Marks a node as spot without repelling runs, as the pools of a simulation do.
CAPACITY_TYPE_LABEL = "fairlead.dev/capacity-type"
PRICE_LABEL = "fairlead.dev/price-per-hour"
PRICE_NODES = (
    f"Say what the nodes cost: label them {PRICE_LABEL}=DOLLARS on Kubernetes, or give the Pool of a simulation its "
    "`price_per_hour`; or leave `capacity.max_price` out."
)
# The number of cached requirements on nodes for one state of the nodes.
MOST_KNOWN = 1024
HOSTNAME = "kubernetes.io/hostname"
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a node does not accept a run.

    Attributes:
        why: Continues "node a is".
        remedy: One sentence.
        lasts: Whether it holds for as long as the run and the node stay as they are.
    """

    why: str
    remedy: str
    lasts: bool


class Eligibility:
    """The eligibility of some nodes for runs; runs with equal requirements are evaluated once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._marked = [
            node
            for node in nodes
            if any(taint.key not in GPU_TAINTS for taint in node.taints) or not _SPOT_KEYS.isdisjoint(node.labels)
        ]
        self._known: dict[tuple[Overlay, Capacity, Network], Mapping[str, Refusal]] = {}

    def barred(self, spec: GangSpec) -> Mapping[str, Refusal]:
        """Return the nodes that do not accept the run, by name."""
        key = (spec.kubernetes, spec.capacity, spec.network)
        if key not in self._known:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            demands = _demands(*key)
            nodes = self._nodes if demands.is_choosy else self._marked
            judged = ((node.name, demands.refusal(node)) for node in nodes)
            self._known[key] = {name: refusal for name, refusal in judged if refusal is not None}
        return self._known[key]

    def barred_for_good(self, spec: GangSpec) -> Mapping[str, Refusal]:
        """Return those of them that never will."""
        return {name: refusal for name, refusal in self.barred(spec).items() if refusal.lasts}


@cached_last
def doors_of(nodes: tuple[Node, ...]) -> Eligibility:
    """Return the eligibility of these nodes."""
    return Eligibility(nodes)


@lru_cache(maxsize=1024)
def keeps_apart(laid: Overlay) -> bool:
    """Return whether a run's pods must not share a node, by a required anti-affinity to labels of their overlay."""
    pod: Object = laid.pod
    own = (pod.get("metadata") or {}).get("labels") or {}
    against = ((pod.get("spec") or {}).get("affinity") or {}).get("podAntiAffinity") or {}
    return any(
        term["topologyKey"] == HOSTNAME and _is_meant(own, term.get("labelSelector"))
        for term in against.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    )


def tolerations(spec: GangSpec) -> list[dict[str, str]]:
    """Return tolerations for the taints of GPU and spot nodes of the usual providers."""
    entries = []
    if spec.resources.gpu is not None:
        entries += [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in GPU_TAINTS]
    return entries + (_SPOT if spec.capacity.spot else [])


def tolerates(entries: Iterable[Object], taint: Taint) -> bool:
    """Return whether one of these tolerations matches the taint."""
    return any(_is_for(toleration, taint) for toleration in entries)


def spot_label(node: Node) -> Taint | None:
    """Return the spot label of a node's cloud, as the taint that it stands for; None without one."""
    label = next(((key, value) for key, value in SPOT_MARKS if node.labels.get(key) == value), None)
    return None if label is None else Taint(key=label[0], value=label[1])


def is_spot(node: Node) -> bool:
    """Return whether a label or a taint marks the node as spot."""
    return (
        node.labels.get(CAPACITY_TYPE_LABEL) == "spot"
        or spot_label(node) is not None
        or any((taint.key, taint.value) in SPOT_MARKS for taint in node.taints)
    )


def selects(name: str, labels: Mapping[str, str], selector: Object, affinity: Object) -> bool:
    """Return whether a node matches a selector and a required node affinity."""
    return all(labels.get(key) == value for key, value in selector.items()) and _is_required(name, labels, affinity)


def price_label(labels: Mapping[str, str]) -> float | None:
    """Return dollars per hour from a node's labels; None if absent or invalid."""
    try:
        price = float(labels.get(PRICE_LABEL, ""))
    except ValueError:
        return None
    return price if 0 <= price < float("inf") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demands:
    """The requirements of a run on nodes, from the fields of its pods."""

    selector: Object
    affinity: Object
    tolerations: tuple[Object, ...]
    max_price: float | None
    only_spot: bool | None = None
    is_base: bool = False
    avoided: tuple[str, ...] = ()
    network: Network = field(default_factory=Network)

    @property
    def is_choosy(self) -> bool:
        return (
            bool(self.selector)
            or bool(_terms(self.affinity))
            or self.max_price is not None
            or self.only_spot is not None
            or self.is_base
            or bool(self.avoided)
            or self.network.is_required
        )

    def refusal(self, node: Node) -> Refusal | None:
        for name, value in self.selector.items():
            if node.labels.get(name) != value:
                remedy = "Correct `kubernetes.spec.nodeSelector`, or label the nodes that are meant."
                return Refusal(why=f"not labelled {name}={value}", remedy=remedy, lasts=True)
        if not _is_required(node.name, node.labels, self.affinity):
            remedy = "Correct `kubernetes.spec.affinity`, or label the nodes that are meant."
            return Refusal(why="not what its `affinity` requires", remedy=remedy, lasts=True)
        if (why := why_unconnected(self.network, node.labels, node.extended)) is not None:
            return Refusal(why=why, remedy=_NO_FABRIC, lasts=True)
        if node.name in self.avoided:
            return Refusal(why="one that did not start its pods the time before", remedy=_LOOK_AT_NODE, lasts=False)
        if self.is_base and is_spot(node):
            return Refusal(why="a spot node, and it is of its endpoint's base", remedy=_MORE_ON_DEMAND, lasts=False)
        if self.only_spot is not None and is_spot(node) is not self.only_spot:
            kind = "an on-demand node, and its deadline leaves time for spot" if self.only_spot else "a spot node, for "
            late = "" if self.only_spot else "which its deadline leaves no time"
            return Refusal(why=f"{kind}{late}", remedy=_MORE_TIME, lasts=False)
        for taint in node.taints:
            if taint.key not in GPU_TAINTS and not tolerates(self.tolerations, taint):
                return _tainted(taint)
        mark = spot_label(node)
        if mark is not None and not tolerates(self.tolerations, mark):
            return Refusal(why=f"a spot node, labelled {mark.key}={mark.value}", remedy=_ALLOW_SPOT, lasts=True)
        return None if self.max_price is None else _price_refusal(node.price_per_hour, self.max_price)


@lru_cache(maxsize=1024)
def _demands(overlay: Overlay, capacity: Capacity, network: Network) -> _Demands:
    laid: Object = overlay.pod.get("spec") or {}
    return _Demands(
        network=network,
        selector=laid.get("nodeSelector") or {},
        affinity=laid.get("affinity") or {},
        tolerations=(*(_SPOT if capacity.spot else ()), *(laid.get("tolerations") or ())),
        max_price=capacity.max_price,
        only_spot=capacity.only_spot,
        is_base=capacity.tier is Tier.BASE,
        avoided=capacity.avoided,
    )


def _price_refusal(price: float | None, max_price: float) -> Refusal | None:
    """Return why a node with this price per hour is too expensive; None if it is not."""
    if price is None:
        return Refusal(
            why=f"of unknown price, and its `max_price` is {describe_dollars(max_price)} an hour",
            remedy=PRICE_NODES,
            lasts=True,
        )
    if price <= max_price:
        return None
    return Refusal(
        why=f"dearer than its `max_price`: {describe_dollars(price)} an hour, {describe_dollars(max_price)} at most",
        remedy=f"Raise `capacity.max_price` to {describe_dollars(price).removeprefix('$')}, or leave it out.",
        lasts=True,
    )


def _tainted(taint: Taint) -> Refusal:
    text = f"tainted with {taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
    if (taint.key, taint.value) in SPOT_MARKS:
        return Refusal(why=f"a spot node, {text}", remedy=_ALLOW_SPOT, lasts=True)
    remedy = f"Tolerate {taint.key} under `kubernetes.spec.tolerations`, or take the taint away."
    return Refusal(why=text, remedy=remedy, lasts=False)


def _is_for(toleration: Object, taint: Taint) -> bool:
    """Return whether a toleration matches a taint, as Kubernetes' ``Toleration.ToleratesTaint``."""
    if toleration.get("effect") and toleration["effect"] != taint.effect:
        return False
    key, operator = toleration.get("key"), toleration.get("operator") or "Equal"
    if key and key != taint.key:
        return False
    if operator == "Exists":
        return True
    return bool(key) and operator == "Equal" and (toleration.get("value") or "") == taint.value


def _terms(affinity: Object) -> list[Object]:
    of_nodes = affinity.get("nodeAffinity") or {}
    required = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms: list[Object] = required.get("nodeSelectorTerms") or []
    return terms


def _is_required(name: str, labels: Mapping[str, str], affinity: Object) -> bool:
    """Return whether a node meets an affinity; terms are alternatives, requirements within a term are all necessary."""
    terms = _terms(affinity)
    fields = {"metadata.name": name}
    return not terms or any(
        all(_holds(expression, labels) for expression in term.get("matchExpressions") or ())
        and all(_holds(expression, fields) for expression in term.get("matchFields") or ())
        for term in terms
    )


def _is_meant(labels: Mapping[str, str], selector: Object | None) -> bool:
    """Return whether a pod selector matches those labels; None matches nothing, an empty one everything."""
    return (
        selector is not None
        and all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
        and all(_holds(expression, labels) for expression in selector.get("matchExpressions") or ())
    )


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    """Return whether a requirement holds, as Kubernetes' ``labels.Requirement.Matches``."""
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not _is_whole(value) or not values or not _is_whole(values[0]):
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
        case _:
            return False


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


_SPOT_KEYS = frozenset(key for key, _ in SPOT_MARKS)
_NO_FABRIC = "Install the fabric's device plugin on the nodes that are meant, or use plain TCP by `network: auto`."
_LOOK_AT_NODE = "Look at that node; a run avoids it until it has run elsewhere."
_MORE_TIME = "This changes with time: `capacity: {spot: auto}` follows the run's `deadline`."
_MORE_ON_DEMAND = "Add on-demand nodes, or make `capacity.base` of the endpoint smaller."
_ALLOW_SPOT = "`capacity: {spot: true}` lets it use spot nodes."
_SPOT = [{"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"} for key, value in SPOT_MARKS]
