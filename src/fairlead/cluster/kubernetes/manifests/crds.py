"""The kinds as CustomResourceDefinitions, generated from the tables of keys, so that nothing is defined twice."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING
from typing import Any

from fairlead.cluster.kubernetes.kinds import (
    DESCRIBED,
    NAMED,
    SUBMITTED_BY,
    is_leaf_kind,
    is_parent_kind,
    kept_kinds,
    plural,
)
from fairlead.cluster.kubernetes.manifests import validation
from fairlead.cluster.kubernetes.manifests.statuses import status_schema
from fairlead.policy.kinds.record import ParentKind
from fairlead.policy.kinds.table import KINDS as WORKLOADS
from fairlead.specs import field_types as kinds
from fairlead.specs import overlay
from fairlead.specs.constraints import Constraints, Limit, Text
from fairlead.specs.dataset import Dataset
from fairlead.specs.field_types import ListField, MapField, OverlayField, Section, SectionKey, SectionMap, Single
from fairlead.specs.formats.parsing import MOST_QUANTITY
from fairlead.specs.formats.rendering import default_of
from fairlead.specs.keys import API_VERSION, OBJECTS
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.pod_fields import Branch, Items, Leaf, Map
from fairlead.specs.pool import TAINT, PoolGpu
from fairlead.specs.resources import Resources
from fairlead.specs.serving import Scale, Serving
from fairlead.specs.sweep import Prune, Sweep
from fairlead.specs.training import ENV_NAME, Checkpoint, Retry, Training
from fairlead.specs.workspace import Workspace, WorkspaceHome

GROUP, VERSION = API_VERSION.split("/")
_SHORT = {
    "Training": ["ftr"], "Sweep": ["fsw"], "Serving": ["fsv"], "Replica": ["frp"], "Pipeline": ["fpi"],
    "Workspace": ["fws"], "Team": ["ftm"], "Pool": ["fpl"], "Dataset": ["fds"],
}  # fmt: skip
_DOCS = {
    "Training": "A distributed training run: a gang of pods that start together or not at all.",
    "Team": "People who share a namespace, with a quota.",
    "Pool": "Nodes of one kind: hardware, price, and how they are paid for.",
}
_COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Training": (
        ("Phase", "string", ".status.phase"),
        ("Ranks", "string", ".status.ranks"),
        ("Progress", "string", ".status.progress"),
        ("Age", "date", ".metadata.creationTimestamp"),
        ("Reason", "string", ".status.message"),
    ),
    "Team": (
        ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        ("Weight", "integer", ".spec.weight"),
        ("Runs", "integer", ".status.held.runs"),
        ("GPUs", "string", ".status.held.gpu"),
        ("Quota", "string", ".spec.quota.gpu"),
        ("Age", "date", ".metadata.creationTimestamp"),
        ("Reason", "string", '.status.conditions[?(@.type=="Ready")].message'),
    ),
    "Dataset": (
        ("From", "string", ".spec.from"),
        ("Shared", "string", ".spec.share"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ),
    "Pool": (
        ("Nodes", "integer", ".spec.nodes"),
        ("GPU", "string", ".spec.hardware.gpu.model"),
        ("Type", "string", ".spec.capacity_type"),
        ("Price", "number", ".spec.price_per_hour"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ),
}
_SCALED: dict[str, dict[str, Any]] = {
    "Serving": {
        "scale": {
            "specReplicasPath": ".spec.scale.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    }
}
"""Kinds that a cluster's own autoscaler may scale, and the fields with their number of replicas."""
LONGEST = 65_536
"""Most characters of a text without a limit of its own."""
MOST_CHECKED = 1_000_000
"""Most characters of all items of a list that an API server validates by rules; beyond that the operator does."""
_BEST = ("Best", "string", ".status.best")
_RULES = "x-kubernetes-validations"
_RULES_OF_SECTIONS: dict[type[Any], Callable[[], list[validation.Rule]]] = {
    Checkpoint: validation.checkpoint_rules,
    Retry: validation.retry_rules,
    Resources: validation.sharing_rules,
    Training: validation.engine_rules,
    Prune: validation.population_rules,
    Sweep: validation.sweep_rules,
    PoolGpu: validation.partition_rules,
    Pipeline: validation.environment_rules,
    Serving: validation.endpoint_rules,
    Scale: validation.scale_rules,
    Dataset: validation.dataset_rules,
    Workspace: validation.environment_rules,
    WorkspaceHome: validation.home_rules,
}


def definitions() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinition of every kind that a cluster stores."""
    return [definition(kind) for kind in kept_kinds()]


def definition(kind: str) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one kind."""
    many = plural(kind)
    columns = [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in _columns(kind)]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{many}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "fairlead"}},
        "spec": {
            "group": GROUP,
            "scope": "Cluster" if kind in DESCRIBED else "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": many,
                "singular": kind.lower(),
                "shortNames": _SHORT.get(kind, []),
                "categories": ["fairlead"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": object_schema(kind)},
                    **({} if kind in NAMED else {"subresources": {"status": {}, **_SCALED.get(kind, {})}}),
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


def _columns(kind: str) -> tuple[tuple[str, str, str], ...]:
    """Return kubectl's columns of a kind; all parents have the same, plus the best child if they have one."""
    if kind in _COLUMNS:
        return _COLUMNS[kind]
    if is_leaf_kind(kind):
        return _COLUMNS["Training"]
    record = WORKLOADS[kind]
    phase, _, progress, *rest = _COLUMNS["Training"]
    has_best = isinstance(record, ParentKind) and record.best is not None
    return (phase, progress, *((_BEST,) if has_best else ()), *rest)


def with_fewer_rules(content: dict[str, Any]) -> dict[str, Any]:
    """Return a definition for API servers that cannot limit the length of a quantity, such as Kubernetes 1.31.

    There the rules of quantities would exceed the allowed cost, so only the operator validates them.
    """
    lean: dict[str, Any] = _lean(content)
    return lean


def _without_rules(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_rules(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_rules(inner) for name, inner in value.items() if name != _RULES}


def _lean(value: Any) -> Any:
    if isinstance(value, list):
        return [_lean(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    lean = {name: _lean(inner) for name, inner in value.items()}
    rules = lean.pop(_RULES, None)
    if isinstance(rules, list) and not lean.get("x-kubernetes-int-or-string"):
        lean |= _rules([rule for rule in rules if not _reads_quantity(rule["rule"])])
    return lean


def _reads_quantity(rule: str) -> bool:
    """Return whether a rule reads the text of a field that may be a number."""
    return ".findAll(" in rule or "string(self." in rule


def object_schema(kind: str) -> dict[str, Any]:
    """Return the structural schema of a whole object."""
    spec = _section(OBJECTS[kind])
    return {
        "type": "object",
        "description": _DOCS.get(kind) or (OBJECTS[kind].type.__doc__ or kind).splitlines()[0],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": {"description": "Desired state.", **spec},
            **({} if kind in NAMED else {"status": status_schema(kind)}),
        },
        "x-kubernetes-validations": [
            *validation.name_rules(OBJECTS[kind].rules["name"]),
            *_update_rules(kind),
        ],
    }


def _update_rules(kind: str) -> list[validation.Rule]:
    """Return the rules for updates of an object; a changed spec of an endpoint is another revision."""
    if kind in ("Training", "Workspace"):
        return validation.update_rules(kind, has_place=kind == "Training")
    if kind in SUBMITTED_BY:
        return validation.child_update_rules(kind, SUBMITTED_BY[kind])
    if kind == "Serving":
        return validation.endpoint_update_rules()
    if kind == "Pipeline":
        return validation.pipeline_update_rules()
    if kind == "Sweep":
        return validation.sweep_update_rules()
    return validation.parent_update_rules(kind) if is_parent_kind(kind) else []


def _section(section: Section) -> dict[str, Any]:
    keys = [key for key in section.keys if key.metadata is None]
    schema: dict[str, Any] = {"type": "object", "properties": {key.name: _key(key, section) for key in keys}}
    required = [key.name for key in keys if key.required]
    if required:
        schema["required"] = required
    rules = _RULES_OF_SECTIONS.get(section.type, list)()
    # A kind may omit a key of a section, and an API server refuses a rule on a missing key.
    properties = schema["properties"]
    held = [rule for rule in rules if "fieldPath" not in rule or rule["fieldPath"].split(".")[1] in properties]
    return schema | ({_RULES: held} if held else {})


def _key(key: SectionKey, section: Section) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": key.doc, **_kind(key, section)}
    defaults = default_of(key, section.type)
    if isinstance(key.kind, Single) and defaults[0] not in (MISSING, None, ""):
        schema["default"] = key.kind.render(defaults[0] if len(defaults) == 1 else defaults)
    return schema


def _kind(key: SectionKey, section: Section) -> dict[str, Any]:
    kind = key.kind
    if isinstance(kind, Section):
        return _section(kind)
    if isinstance(kind, OverlayField):
        return _laid(kind)
    if isinstance(kind, MapField):
        names = validation.env_rules() if kind.names is ENV_NAME else validation.names_rules(kind.names)
        return {
            "type": "object",
            "maxProperties": kind.most,
            "additionalProperties": {
                "type": "string",
                "maxLength": kind.values.max_length,
                **_rules(validation.text_rules(kind.values)),
            },
            **_rules(names),
        }
    if isinstance(kind, ListField):
        item = SectionKey(name=key.name, kind=kind.item, doc="", attributes=("item",), example=key.example)
        items = _single(kind.item, item, kind.rule)
        if kind.rule is not None and kind.most * kind.rule.max_length > MOST_CHECKED:
            items = _without_rules(items)
        schema: dict[str, Any] = {"type": "array", "maxItems": kind.most, "items": items}
        if kind.item is TAINT:
            return {**schema, "x-kubernetes-list-type": "atomic", **_rules(validation.taints_rules())}
        if kind.item is kinds.SHARE:
            return {**schema, "x-kubernetes-list-type": "atomic"}
        return {**schema, "x-kubernetes-list-type": "set"}
    if isinstance(kind, SectionMap):
        return {
            "type": "object",
            "maxProperties": kind.most,
            # The rules of thousands of whole runs would exceed an API server's cost limit; bounds cost nothing, and the
            # operator validates the rest.
            "additionalProperties": _bounded(_without_rules(_section(kind.item)), kind.item),
            **_rules(validation.names_rules(kind.names)),
        }
    rule = section.rules.get(key.attributes[0])
    return _single(kind, key, rule if isinstance(rule, Text) else None, section.rules)


def _bounded(schema: dict[str, Any], section: Section) -> dict[str, Any]:
    """Add constraints that a structural schema can express itself: bounds of numbers and sets of words."""
    properties = dict(schema["properties"])
    for key in section.keys:
        if key.name not in properties:
            continue
        if isinstance(key.kind, Section):
            properties[key.name] = _bounded(properties[key.name], key.kind)
        elif isinstance(key.kind, Single):
            rule, own = section.rules.get(key.attributes[0]), key.kind.schema
            bounds: dict[str, Any] = {"enum": own["enum"]} if "enum" in own else {}
            if isinstance(rule, Limit) and key.kind.tags == kinds.NUMERIC:
                bounds |= {"minimum": 0 if rule.zero else rule.low, "maximum": rule.high}
            properties[key.name] = properties[key.name] | bounds
    return {**schema, "properties": properties}


def _single(kind: Single, key: SectionKey, text: Text | None, rules: Constraints | None = None) -> dict[str, Any]:
    if not validation.is_known(kind):
        # A type that is not Fairlead's own: only the operator can interpret it.
        is_text = kind.schema.get("type") == "string"
        return {"type": "string", "maxLength": LONGEST} if is_text else {"x-kubernetes-preserve-unknown-fields": True}
    rules = rules if rules is not None else {key.attributes[0]: text} if text is not None else {}
    checks = _rules(validation.single_rules(kind, key, rules))
    if kind is kinds.FLAG:
        return {"type": "boolean"}
    if kind is kinds.SPOT:
        # A value of two types, which a structural schema can only express this way.
        return {"x-kubernetes-preserve-unknown-fields": True, **kind.schema}
    if kind.tags == kinds.NUMERIC:
        return {"type": "number" if kind in validation.POINTED else "integer", **checks}
    if kind.tags == kinds.ANY:
        return {"x-kubernetes-int-or-string": True, "maxLength": MOST_QUANTITY, **checks}
    return {"type": "string", "maxLength": _length(kind, text), **checks}


def _length(kind: Single, text: Text | None) -> int:
    return text.max_length if text is not None else 512 if kind is TAINT else MOST_QUANTITY


def _rules(rules: list[validation.Rule]) -> dict[str, Any]:
    return {_RULES: rules} if rules else {}


def _laid(kind: OverlayField) -> dict[str, Any]:
    schema = _branch(kind.tree)
    for path, check in _overlay_rules():
        place = schema
        for part in path:
            place = place["items"] if part == "*" else place["properties"][part]
        place.setdefault("x-kubernetes-validations", []).append(check)
    return schema


def _overlay_rules() -> Iterator[tuple[tuple[str, ...], validation.Rule]]:
    """Yield the rules for fields that an overlay must leave to Fairlead, by path, as in ``fairlead.specs.overlay``."""
    for part in ("labels", "annotations"):
        test = f'self.all(k, !k.startsWith("{overlay.OWN_DOMAIN}"))'
        yield ("metadata", part), validation.rule(test, validation.say(overlay.FOREIGN_LABEL))
    yield ("metadata", "annotations"), _none_begins(overlay.PROFILES, overlay.FOREIGN_PROFILE)
    yield ("metadata", "annotations"), _own_networks()
    for part in ("requests", "limits"):
        of_ranks = _none_begins(overlay.DEVICES, overlay.COUNTED_RANKS, names=overlay.COUNTED)
        yield ("spec", "containers", "*", "resources", part), of_ranks
        of_others = _none_begins(overlay.DEVICES, overlay.COUNTED_DEVICES)
        yield ("spec", "initContainers", "*", "resources", part), of_others
    test = f'!self.startsWith("{overlay.OWN_NAMES}")'
    yield ("spec", "volumes", "*", "name"), validation.rule(test, validation.say(overlay.FOREIGN_VOLUME))
    test = f'self == "{overlay.RANKS}"'
    yield ("spec", "containers", "*", "name"), validation.rule(test, validation.say(overlay.ONLY_CONTAINER))
    test = f'self != "{overlay.RANKS}" && !self.startsWith("{overlay.OWN_NAMES}")'
    yield (
        ("spec", "initContainers", "*", "name"),
        validation.rule(
            test, validation.say("`"), "self", validation.say("`"), validation.say(overlay.FOREIGN_CONTAINER)
        ),
    )
    test = f'self != "{overlay.OWN_PATH}" && !self.startsWith("{overlay.OWN_PATH}/")'
    for containers in ("containers", "initContainers"):
        path = ("spec", containers, "*", "volumeMounts", "*", "mountPath")
        yield path, validation.rule(test, validation.say(overlay.FOREIGN_MOUNT))
    test = f"!{validation.matches('self', overlay.SET_BY_FAIRLEAD.pattern)}"
    path = ("spec", "containers", "*", "env", "*", "name")
    yield path, validation.rule(test, validation.QUOTED, validation.say(overlay.SET_BY_US))


def _none_begins(prefixes: tuple[str, ...], sentence: str, names: tuple[str, ...] = ()) -> validation.Rule:
    """Return the rule that no name of a mapping is one of ``names`` or begins with a prefix."""
    tests = [*(f'k == "{name}"' for name in names), *(f'k.startsWith("{prefix}")' for prefix in prefixes)]
    return validation.rule(f"!self.exists(k, {' || '.join(tests)})", validation.say(sentence))


def _own_networks() -> validation.Rule:
    """Return the rule that Multus attaches a pod to networks of its own namespace, as in ``fairlead.specs.overlay``."""
    marks = 'self[k].contains("[") ? self[k].contains("namespace") || self[k].contains("\\\\") : self[k].contains("/")'
    tests = [
        f'(!("{name}" in self) || !({marks}))'.replace("self[k]", f'self["{name}"]') for name in overlay.INTERFACES
    ]
    return validation.rule(" && ".join(tests), validation.say(overlay.FOREIGN_NETWORK))


def _branch(branch: Branch) -> dict[str, Any]:
    if isinstance(branch, Leaf):
        return dict(_LEAVES[branch])
    if isinstance(branch, Map):
        most = overlay.ITEMS_MOST
        return {"type": "object", "additionalProperties": _branch(branch.values), "maxProperties": most}
    if isinstance(branch, Items):
        return {
            "type": "array",
            "items": _branch(branch.item),
            "maxItems": branch.most,
            "x-kubernetes-list-type": "atomic",
        }
    fields = {name: _branch(inner) for name, inner in branch.fields.items()}
    schema: dict[str, Any] = {"type": "object", "properties": fields}
    return schema | ({"required": list(branch.required)} if branch.required else {})


_LEAVES: dict[Leaf, dict[str, Any]] = {
    Leaf.TEXT: {"type": "string", "maxLength": overlay.TEXT_MOST},
    Leaf.NAME: {"type": "string", "maxLength": overlay.NAME_MOST},
    Leaf.OBJECT: {
        "type": "string", "maxLength": overlay.OBJECT_NAME_MOST, "pattern": f"^{overlay.OBJECT_NAME.pattern}$",
    },
    Leaf.WHOLE: {"type": "integer"},
    Leaf.FLAG: {"type": "boolean"},
    Leaf.QUANTITY: {"x-kubernetes-int-or-string": True, "maxLength": overlay.QUANTITY_MOST},
}  # fmt: skip
