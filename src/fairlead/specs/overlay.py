"""Pod fields for Kubernetes, merged into the pod that Fairlead creates. Validated, and stored as one text."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs.constraints import enforce, one_line, quote
from fairlead.specs.tables.pod_fields import POD, Branch, Items, Leaf, Map, Tree

RANKS = "ranks"  # the container that runs the command
OWN_DOMAIN = "fairlead.dev/"
OWN_NAMES = "fairlead-"
OWN_PATH = "/fairlead"
TEXT_MOST = 65_536
NAME_MOST = 512
ITEMS_MOST = 64
OVERLAY_MOST = 262_144
SET_BY_FAIRLEAD = re.compile(
    "FAIRLEAD_(RUN|RUN_UID|TEAM|POD_UID|ATTEMPT|POD_DIR|RUN_DIR|AGREE_PORT|GRACE_S|ELASTIC|MEMBERS_DIR|REPLACEMENT|PARALLEL|FRAMEWORK|HOSTS|TERMINATE_ON_NAN|DEVICES|RANKS_PER_HOST"
    "|CHECKPOINT_(TO|FROM|EVERY_(S|STEPS|AUTO)|KEEP|MEMORY|MEMORY_EVERY_(S|STEPS))|NODE|POD_IP|INSTRUCTIONS|COMMAND|SETUP)|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE))|NODE_RANK|ROLE_NAME|MASTER_(ADDR|PORT)"
    "|TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE)"
)

# Messages of both the parser and the API server.
FOREIGN_LABEL = f"names under {OWN_DOMAIN} are Fairlead's own; choose another"
FOREIGN_VOLUME = f"volumes called {OWN_NAMES}... are Fairlead's own; rename it"
FOREIGN_CONTAINER = " is Fairlead's own; choose another name"
SET_BY_US = " is set by Fairlead itself; choose another name"
FOREIGN_MOUNT = f"{OWN_PATH} is Fairlead's own; choose another place"
ONLY_CONTAINER = f"the only container is `{RANKS}`; one beside it goes under initContainers, with restartPolicy Always"

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Fields of a pod as canonical JSON, so that equal overlays are equal values."""

    text: str = "{}"

    def __post_init__(self) -> None:
        enforce(("text", f"{dotted(path)}: {sentence}") for path, sentence in problems(json.loads(self.text)))

    @property
    def pod(self) -> dict[str, Any]:
        """Return a new copy of the fields as plain data."""
        content: dict[str, Any] = json.loads(self.text)
        return content


def overlay(pod: Mapping[str, Any]) -> Overlay:
    """Return the overlay with these fields; null is the same as omitting a field, as for an API server."""
    return Overlay(text=json.dumps(_given(pod), sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def problems(value: Any) -> Iterator[tuple[Path, str]]:
    """Yield the problems of an overlay given as plain data, with their paths."""
    found = list(_problems(value, POD, ()))
    yield from found
    if not found:
        value = _given(value)
        yield from _own(value)
        if len(json.dumps(value, ensure_ascii=False)) > OVERLAY_MOST:
            yield (), f"more than {OVERLAY_MOST} characters in all; use objects of the cluster and name them here"


def dotted(path: Path) -> str:
    """Format a path, such as ``spec.tolerations[0].key``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{one_line(part)}" if text else one_line(part)
    return text


def _given(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _given(inner) for name, inner in value.items() if inner is not None}
    return [_given(inner) for inner in value] if isinstance(value, list) else value


def _problems(value: Any, branch: Branch, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(branch, Tree):
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
    elif isinstance(value, str) and len(value) > (most := NAME_MOST if branch is Leaf.NAME else TEXT_MOST):
        yield path, f"{quote(value)} has {len(value)} characters; give at most {most}"


def _is(value: Any, leaf: Leaf) -> bool:
    if leaf is Leaf.FLAG:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if leaf in _TEXTS:
        return isinstance(value, str)
    return isinstance(value, int) or (leaf is Leaf.QUANTITY and isinstance(value, str))


_TEXTS = (Leaf.TEXT, Leaf.NAME)


def _own(pod: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield fields that conflict with Fairlead's own."""
    for part in ("labels", "annotations"):
        for name in pod.get("metadata", {}).get(part, {}):
            if name.startswith(OWN_DOMAIN):
                yield ("metadata", part, name), FOREIGN_LABEL
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


def _unknown(name: str, tree: Tree) -> str:
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
