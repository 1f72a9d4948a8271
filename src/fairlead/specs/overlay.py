"""Pod fields for Kubernetes, merged into the pod that Fairlead creates. Validated, and stored as one text."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs.constraints import BrokenRules, enforce, one_line, quote
from fairlead.specs.pod_fields import POD, Branch, FieldTree, Items, Leaf, Map
from fairlead.specs.quantities import parse_cpu, parse_size
from fairlead.specs.resources import MOST_BYTES, MOST_CPU_MILLI
from fairlead.untrusted_json import parse_json

RANKS = "ranks"  # the container that runs the command
OWN_DOMAIN = "fairlead.dev/"
OWN_NAMES = "fairlead-"
OWN_PATH = "/fairlead"
TEXT_MOST = 65_536
NAME_MOST = 512
OBJECT_NAME_MOST = 253
QUANTITY_MOST = 200
OBJECT_NAME = re.compile("(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)?")
"""Names of objects, as an API server allows them (RFC 1123), and none; others could lead a request elsewhere."""
ITEMS_MOST = 64
OVERLAY_MOST = 262_144
SET_BY_FAIRLEAD = re.compile(
    "FAIRLEAD_(RUN|RUN_UID|TEAM|POD_UID|ATTEMPT|POD_DIR|RUN_DIR|AGREE_PORT|KEY|KEY_FILE|GRACE_S|ELASTIC|MEMBERS_DIR|REPLACEMENT|PARALLEL|FRAMEWORK|HOSTS|TERMINATE_ON_NAN|DEVICES|RANKS_PER_HOST"
    "|CHECKPOINT_(TO|FROM|STEP|EVERY_(S|STEPS|AUTO)|KEEP|MEMORY|MEMORY_EVERY_(S|STEPS))|NODE|POD_IP|INSTRUCTIONS|COMMAND|SETUP)|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE))|NODE_RANK|ROLE_NAME|MASTER_(ADDR|PORT)"
    "|TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE)"
)
DEVICES = (
    "nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/", "habana.ai/gaudi",
    "deviceclass.resource.kubernetes.io/",
)  # fmt: skip
"""Prefixes of resources that are GPUs, or parts of them."""
COUNTED = ("cpu", "memory")
"""The other resources that the queue, quotas, budgets and placement count."""
PROFILES = ("container.apparmor.security.beta.kubernetes.io/", "seccomp.security.alpha.kubernetes.io/")
"""Prefixes of annotations that are settings of a pod's security."""
INTERFACES = ("k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network")
"""Annotations by which Multus gives a pod interfaces, of networks of any namespace."""

# Messages of both the parser and the API server.
FOREIGN_LABEL = f"names under {OWN_DOMAIN} are Fairlead's own; choose another"
FOREIGN_VOLUME = f"volumes called {OWN_NAMES}... are Fairlead's own; rename it"
FOREIGN_CONTAINER = " is Fairlead's own; choose another name"
SET_BY_US = " is set by Fairlead itself; choose another name"
FOREIGN_MOUNT = f"{OWN_PATH} is Fairlead's own; choose another place"
FOREIGN_NETWORK = "pods are attached to networks of their own namespace alone; leave namespaces out"
FOREIGN_PROFILE = "it is a profile of the node's security, which pods do not choose; leave it out"
COUNTED_RANKS = (
    "cores, memory and GPUs of the ranks come from the key `resources` of the spec, by which the queue counts them; "
    "leave them out here"
)
MORE_THAN_A_POD = " is more than a pod may have"
COUNTED_DEVICES = "GPUs go to the ranks alone, by `resources.gpu` of the spec; leave them out here"
ONLY_CONTAINER = f"the only container is `{RANKS}`; one beside it goes under initContainers, with restartPolicy Always"

Path = tuple[str | int, ...]
_UNSTORABLE = re.compile(r"\\u0000|[\ud800-\udfff]")  # in JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Fields of a pod as canonical JSON, so that equal overlays are equal values."""

    text: str = "{}"

    def __post_init__(self) -> None:
        try:
            content = parse_json(self.text, max_bytes=4 * OVERLAY_MOST)
        except ValueError as error:
            raise BrokenRules((("text", f"not the JSON of an overlay: {error}"),)) from error
        enforce(("text", f"{dotted(path)}: {sentence}") for path, sentence in problems(content))

    @property
    def pod(self) -> dict[str, Any]:
        """Return a new copy of the fields as plain data."""
        content: dict[str, Any] = json.loads(self.text)
        return content


def overlay(pod: Mapping[str, Any]) -> Overlay:
    """Return the overlay with these fields; null is the same as omitting a field, as for an API server."""
    return Overlay(text=json.dumps(_without_nulls(pod), sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def problems(value: Any) -> Iterator[tuple[Path, str]]:
    """Yield the problems of an overlay given as plain data, with their paths."""
    mistakes = list(_problems(value, POD, ()))
    yield from mistakes
    if not mistakes:
        value = _without_nulls(value)
        yield from _own(value)
        written = json.dumps(value, ensure_ascii=False)
        if _UNSTORABLE.search(written) is not None:
            yield (), "it holds a NUL or half a surrogate pair, which no object of a cluster can hold; remove it"
        if len(written) > OVERLAY_MOST:
            yield (), f"more than {OVERLAY_MOST} characters in all; use objects of the cluster and name them here"


def dotted(path: Path) -> str:
    """Format a path, such as ``spec.tolerations[0].key``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{one_line(part)}" if text else one_line(part)
    return text


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _problems(value: Any, branch: Branch, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(branch, FieldTree):
        if not isinstance(value, dict):
            yield path, f"{_show(value)} is not a mapping; give one of {', '.join(branch.fields)}"
            return
        for name, inner in value.items():
            known = branch.fields.get(name)
            if known is None:
                yield (*path, name), _unknown(name, branch)
            elif inner is not None:
                yield from _problems(inner, known, (*path, name))
        for name in branch.required:
            if value.get(name) is None:
                yield (*path, name), "missing; give it"
    elif isinstance(branch, Items):
        if not isinstance(value, list):
            yield path, f"{_show(value)} is not a list; give one"
        elif len(value) > branch.most:
            yield path, f"{len(value)} items; give at most {branch.most}"
        else:
            for place, inner in enumerate(value):
                yield from _problems(inner, branch.item, (*path, place))
    elif isinstance(branch, Map):
        if not isinstance(value, dict):
            yield path, f"{_show(value)} is not a mapping of names; give one"
        elif len(value) > ITEMS_MOST:
            yield path, f"{len(value)} names; give at most {ITEMS_MOST}"
        else:
            for name, inner in value.items():
                if inner is not None:
                    yield from _problems(inner, branch.values, (*path, name))
    elif not _is(value, branch):
        remedy = "; put it in quotes" if branch in _TEXTS and not isinstance(value, (dict, list)) else ""
        yield path, f"{_show(value)} is not {branch}{remedy}"
    elif isinstance(value, str) and len(value) > (most := _LONGEST.get(branch, TEXT_MOST)):
        yield path, f"{quote(value)} has {len(value)} characters; give at most {most}"
    elif branch is Leaf.OBJECT and OBJECT_NAME.fullmatch(value) is None:
        yield path, f"{quote(value)} is not {branch}; use lower-case letters, digits, `-` and `.`"


def _is(value: Any, leaf: Leaf) -> bool:
    if leaf is Leaf.FLAG:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if leaf in _TEXTS:
        return isinstance(value, str)
    return isinstance(value, int) or (leaf is Leaf.QUANTITY and isinstance(value, str))


_TEXTS = (Leaf.TEXT, Leaf.NAME, Leaf.OBJECT)
_LONGEST = {Leaf.NAME: NAME_MOST, Leaf.OBJECT: OBJECT_NAME_MOST, Leaf.QUANTITY: QUANTITY_MOST}


def _names_namespace(attachments: str) -> bool:
    """Return whether a value of ``INTERFACES`` may name a namespace, in short form or as JSON with escapes."""
    marks = ("namespace", "\\") if "[" in attachments else ("/",)
    return any(mark in attachments for mark in marks)


def _own(pod: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield fields that conflict with Fairlead's own."""
    for part in ("labels", "annotations"):
        for name, value in pod.get("metadata", {}).get(part, {}).items():
            if name.startswith(OWN_DOMAIN):
                yield ("metadata", part, name), FOREIGN_LABEL
            if part == "annotations" and name.startswith(PROFILES):
                yield ("metadata", part, name), FOREIGN_PROFILE
            if part == "annotations" and name in INTERFACES and _names_namespace(value):
                yield ("metadata", part, name), FOREIGN_NETWORK
    spec = pod.get("spec", {})
    for place, volume in enumerate(spec.get("volumes", ())):
        if volume["name"].startswith(OWN_NAMES):
            yield ("spec", "volumes", place, "name"), FOREIGN_VOLUME
    for kind in ("containers", "initContainers"):
        for place, container in enumerate(spec.get(kind, ())):
            path, name = ("spec", kind, place), container["name"]
            if kind == "containers" and name != RANKS:
                yield (*path, "name"), ONLY_CONTAINER
            if kind == "initContainers" and (name == RANKS or name.startswith(OWN_NAMES)):
                yield (*path, "name"), f"`{name}`{FOREIGN_CONTAINER}"
            for at, variable in enumerate(container.get("env", ())):
                if kind == "containers" and SET_BY_FAIRLEAD.fullmatch(variable["name"]) is not None:
                    yield (*path, "env", at, "name"), quote(variable["name"]) + SET_BY_US
            for at, mount in enumerate(container.get("volumeMounts", ())):
                if mount["mountPath"] == OWN_PATH or mount["mountPath"].startswith(f"{OWN_PATH}/"):
                    yield (*path, "volumeMounts", at, "mountPath"), FOREIGN_MOUNT
            yield from _uncounted(kind, container.get("resources", {}), (*path, "resources"))


def _uncounted(kind: str, resources: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the resources of a container that would not be counted: of the ranks all of ours, of others GPUs."""
    for part in ("requests", "limits"):
        for name, value in resources.get(part, {}).items():
            if kind == "containers" and (name in COUNTED or name.startswith(DEVICES)):
                yield (*path, part, name), COUNTED_RANKS
            elif kind != "containers" and name.startswith(DEVICES):
                yield (*path, part, name), COUNTED_DEVICES
            elif kind != "containers" and name in _READ:
                try:
                    amount = _READ[name](str(value))
                except ValueError as error:
                    yield (*path, part, name), f"{_show(value)} {error}; give it as in `{_LIKE[name]}`"
                else:
                    if amount > SIDE_MOST[name][0]:
                        yield (*path, part, name), f"{_show(value)}{MORE_THAN_A_POD}; {SIDE_MOST[name][1]}"


_READ = {"cpu": parse_cpu, "memory": parse_size}
_LIKE = {"cpu": "500m", "memory": "1Gi"}
# The bounds of `resources`: larger amounts overflow where they are added up and shown.
SIDE_MOST = {
    "cpu": (MOST_CPU_MILLI, "give at most 100000"),
    "memory": (MOST_BYTES, "give at most 1Pi"),
}


def _unknown(name: str, tree: FieldTree) -> str:
    import difflib  # here, since it takes 3 ms that a valid overlay does not need

    near = difflib.get_close_matches(name, tree.fields, n=1) if len(name) <= 64 else []
    return f"unknown field{f'; did you mean `{near[0]}`?' if near else ';'} Allowed: {', '.join(tree.fields)}"


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    return quote(value) if isinstance(value, str) else json.dumps(value)
