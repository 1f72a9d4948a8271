"""Applies settings of single keys, such as ``resources.memory=700Mi``, by the same rules as files.

A key is dotted, as in problems. A value is YAML, as in a file, except that texts are taken verbatim from the shell.
``null`` removes the key, which restores its default.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass
from fairlead.specs.constraints import quote
from fairlead.specs.field_types import TEXT, Kind, MapField, OverlayField, Section, SectionKey, Tag
from fairlead.specs.formats import documents
from fairlead.specs.formats.documents import Mistake, Node, Scalar, read_documents
from fairlead.specs.formats.objects import node_of
from fairlead.specs.formats.parsing import ENVELOPE, read_spec
from fairlead.specs.formats.problems import Problems
from fairlead.specs.formats.rendering import render_short
from fairlead.specs.keys import OBJECTS
from fairlead.specs.pod_fields import Branch, FieldTree, Leaf, Map
from fairlead.specs.sections import section_of
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec

Spec = TypeVar("Spec", bound=WorkloadSpec)
TRAINING = section_of(Training)
OPTION = "--set"
_Place = Kind | Branch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key with its new value.

    Attributes:
        path: Parts of the key; the last may be a free name of a variable or label.
        value: None to remove the key.
    """

    path: tuple[str, ...]
    value: Node | None

    @property
    def key(self) -> str:
        """Return its dotted name."""
        return ".".join(self.path)


def read_setting(text: str) -> Setting:
    """Parse ``KEY=VALUE``.

    Raises:
        InvalidSpec: The text has another form, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    parts, place = _walk(key)
    if not equals or not all(parts):
        raise InvalidSpec((f"{OPTION} {quote(text)}: give KEY=VALUE, such as `{OPTION} resources.memory=16Gi`",))
    node = _read(key, value, place)
    if node is None and not value.strip():
        raise InvalidSpec(
            (f"{OPTION} {key}: nothing is given, as by an empty variable of the shell; `{key}=null` removes the key",)
        )
    return Setting(path=parts, value=node)


def setting_of(key: str, value: Any) -> Iterator[Setting]:
    """Yield the settings for a plain value; keys that a mapping does not contain stay unchanged.

    Args:
        key: Dotted key.
        value: Value as in a file; None to remove the key.
    """
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from setting_of(f"{key}.{name}", inner)
    else:
        yield Setting(path=_walk(key)[0], value=None if value is None else node_of(value))


def with_settings(spec: Spec, settings: Iterable[Setting], *, source: str = OPTION) -> Spec:
    """Return the spec of any kind with settings applied.

    Args:
        source: Origin of the settings, for problems.

    Raises:
        InvalidSpec: A key is unknown or given twice, or a value is invalid; has every problem.
    """
    all_settings = tuple(settings)
    _refuse_lost(all_settings, source)
    root = node_of(render_short(spec))
    for setting in all_settings:
        root = _put(root, OBJECTS[type(spec).__name__], setting.path, setting.value) or root
    problems = Problems(source=source)
    made = read_spec(root, problems, default_name=None)
    if problems.num:
        # Line numbers are meaningless without a file.
        messages = (text.replace(f"{source}:{line}: ", f"{source}: ", 1) for line, text in problems.by_line)
        raise InvalidSpec(tuple(dict.fromkeys(messages)))
    return cast("Spec", made)


def _refuse_lost(settings: tuple[Setting, ...], source: str) -> None:
    """Refuse a setting that a later one overrides, and keys of the Kubernetes form."""
    for number, setting in enumerate(settings):
        later = next((other for other in settings[number + 1 :] if other.path == setting.path[: len(other.path)]), None)
        if later is not None:
            problem = "is given twice" if later.path == setting.path else f"is lost as {later.key} follows"
            raise InvalidSpec((f"{source}: {setting.key}: it {problem}; keep one of them",))
        if setting.path[0] in (*ENVELOPE, "status"):
            rest = setting.path[1:] if setting.path[0] in ("spec", "metadata") else ()
            hint = f"; did you mean `{'.'.join(rest)}`?" if rest else "; keys are those of the short form"
            raise InvalidSpec((f"{source}: {setting.key}: unknown key{hint}",))


def _walk(key: str) -> tuple[tuple[str, ...], _Place]:
    """Return the parts of a dotted key and the kind of its value; None for an unknown key."""
    parts: list[str] = []
    place: _Place = TRAINING
    rest = key.strip()
    while True:
        if isinstance(place, (MapField, Map)):
            # Names of variables and labels may contain dots.
            return (*parts, rest), _below(place, rest)
        name, dot, rest = rest.partition(".")
        parts.append(name)
        place = _below(place, name)
        if not dot:
            return tuple(parts), place


def _below(place: _Place, name: str) -> _Place:
    if isinstance(place, Section):
        key = place.key(name)
        return None if key is None else _kind(key)
    if isinstance(place, MapField):
        return TEXT
    if isinstance(place, Map):
        return place.values
    return place.fields.get(name) if isinstance(place, FieldTree) else None


def _kind(key: SectionKey) -> _Place:
    return key.kind.tree if isinstance(key.kind, OverlayField) else key.kind


def _read(key: str, text: str, place: _Place) -> Node | None:
    is_text = place is TEXT or place in (Leaf.TEXT, Leaf.NAME, Leaf.OBJECT)
    documents, mistakes = read_documents(text)
    if is_text and not _is_quoted(documents, mistakes):
        is_left_out = text in ("", "null") and not key.startswith("env.")
        return None if is_left_out else Scalar(tag=Tag.TEXT, text=text, line=1, column=1)
    if mistakes:
        raise InvalidSpec((f"{OPTION}: {key}: {mistakes[0].sentence}",))
    if len(documents) > 1:
        raise InvalidSpec((f"{OPTION}: {key}: {len(documents)} YAML documents; give one value",))
    return documents[0] if documents else None


def _is_quoted(documents: tuple[Node, ...], mistakes: tuple[Mistake, ...]) -> bool:
    """Return whether a text is a quoted YAML scalar."""
    return len(documents) == 1 and not mistakes and isinstance(documents[0], Scalar) and not documents[0].plain


def _put(node: Node | None, place: _Place, path: tuple[str, ...], value: Node | None) -> Node | None:
    """Return the node with a value set at a path; None if it becomes empty."""
    name, rest = path[0], path[1:]
    entries = _entries(node, place)
    inner_place, before = _below(place, name), entries.get(name)
    after = _put(before[1] if before else None, inner_place, rest, value) if rest else value
    key = before[0] if before else Scalar(tag=Tag.TEXT, text=name, line=1, column=1)
    if after is None and (inner_place is None or _is_required(place, name)):
        # Set to null instead, which the parser refuses.
        after = Scalar(tag=Tag.NULL, text="null", line=1, column=1)
    if after is None:
        entries.pop(name, None)
    else:
        entries[name] = key, after
    made = documents.Mapping(entries=tuple(entries.values()), line=1, column=1)
    return made if entries else None


def _entries(node: Node | None, place: _Place) -> dict[str, tuple[Scalar, Node]]:
    if isinstance(node, documents.Mapping):
        return {key.text: (key, inner) for key, inner in node.entries}
    if isinstance(node, Scalar) and isinstance(place, Section) and place.shorthand is not None:
        return {place.shorthand: (replace(node, tag=Tag.TEXT, text=place.shorthand), node)}
    return {}


def _is_required(place: _Place, name: str) -> bool:
    key = place.key(name) if isinstance(place, Section) else None
    return key is not None and key.required
