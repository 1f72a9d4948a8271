"""Parses a document of a spec file to a frozen value, by the keys of its kind. Mistakes are collected, never raised.

The short form accepts convenient spellings. The Kubernetes form accepts what the API server of a cluster accepts: whole
numbers or text for quantities, text for variables, no single values for a mapping; null is the same as an omitted key.
"""

import re
from collections.abc import Iterator
from collections.abc import Mapping as Map
from dataclasses import replace
from typing import cast

from fairlead.frozen import dataclass
from fairlead.specs.constraints import BrokenRules, Constraints, one_line, quote
from fairlead.specs.field_types import (
    ANY,
    SHARE,
    SPAN,
    WHOLE,
    Kind,
    ListField,
    MapField,
    OverlayField,
    Section,
    SectionKey,
    SectionMap,
    Single,
    Tag,
)
from fairlead.specs.formats.advice import advice, limits_of, wanted
from fairlead.specs.formats.documents import SHARED, Mapping, Node, Scalar, Sequence
from fairlead.specs.formats.overlay_parsing import read_overlay
from fairlead.specs.formats.problems import Problems
from fairlead.specs.formats.secret_values import ENV, HIDDEN
from fairlead.specs.formats.suggestions import nearest, suggest
from fairlead.specs.keys import API_VERSION, KINDS, Spec
from fairlead.specs.sections import section_of
from fairlead.specs.training import Training

TRAINING = section_of(Training)


def read_spec(
    root: Node, problems: Problems, *, default_name: str | None, kinds: Map[str, Section] = KINDS
) -> "Spec | None":
    """Parse the spec in a document; return None after a problem, which is added to ``problems``."""
    return _Reader(problems=problems, kinds=kinds).document(root, default_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A value with its dotted key and the line of the key."""

    path: str
    line: int
    node: Node


ENVELOPE = ("apiVersion", "kind", "metadata", "spec")
_MISSING = object()
MOST_QUANTITY = 200


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Reads one document."""

    problems: Problems
    kinds: Map[str, Section]
    whole: Section = TRAINING
    prefix: str = ""

    @property
    def is_typed(self) -> bool:
        """Return whether values must have the types of the cluster's API, as in the Kubernetes form."""
        return bool(self.prefix)

    def document(self, root: Node, default_name: str | None) -> "Spec | None":
        if not isinstance(root, Mapping):
            self.problems.add(root.line, "", f"{_show(root)} is not a spec; give keys, such as `run: python train.py`")
            return None
        entries = {key.text: _Entry(path=one_line(key.text), line=key.line, node=node) for key, node in root.entries}
        for line, path in _hidden(root, ""):
            sentence = (
                f"`{HIDDEN}` stands for a value that was not shown; give the value itself, or leave the variable out"
            )
            self.problems.add(line, path, sentence)
        in_kubernetes_form = any(key in entries for key in ("apiVersion", "metadata", "spec"))
        kind = self._kind(root, entries)
        if kind is None:
            return None
        self.whole = self.kinds[kind]
        if in_kubernetes_form:
            self.prefix = "spec."
            spec_entries = self._kubernetes_form(root, entries)
        else:
            entries.pop("kind", None)
            spec_entries = self._known(self.whole, entries, prefix="")
            if default_name is not None and "name" not in spec_entries:
                name = Scalar(tag=Tag.TEXT, text=default_name, line=root.line, column=root.column)
                spec_entries["name"] = _Entry(path="name", line=root.line, node=name)
        return cast("Spec | None", self._build(self.whole, spec_entries, path="", line=root.line))

    def _kind(self, root: Mapping, entries: Map[str, _Entry]) -> str | None:
        """Return the stated or implied kind of a document."""
        kinds = ", ".join(self.kinds)
        entry = entries.get("kind")
        if entry is None:
            if "run" in entries or any(suggest(key, TRAINING, TRAINING) == "run" for key in entries):
                return "Training"
            self.problems.add(root.line, "kind", f"missing; give one of {kinds}, or `run: <command>` for a Training")
            return None
        text = entry.node.text if isinstance(entry.node, Scalar) else ""
        if text in self.kinds:
            return text
        near = nearest(text, tuple(self.kinds))
        hint = f"; did you mean `{near}`?" if near else ";"
        self.problems.add(entry.line, "kind", f"{_show(entry.node)} is not a kind{hint} Allowed: {kinds}")
        return None

    def _kubernetes_form(self, root: Mapping, entries: Map[str, _Entry]) -> dict[str, _Entry]:
        for name, entry in entries.items():
            if name == "status":
                self.problems.add(entry.line, "status", "it is written by the cluster; remove it")
            elif name not in ENVELOPE:
                self._unknown_beside_spec(name, entry)
        version = entries.get("apiVersion")
        if version is None:
            self.problems.add(root.line, "apiVersion", f"missing; give `apiVersion: {API_VERSION}`")
        elif not isinstance(version.node, Scalar) or version.node.text != API_VERSION:
            self.problems.add(version.line, "apiVersion", f"{_show(version.node)} is not known; give {API_VERSION}")
        if "kind" not in entries:
            self.problems.add(root.line, "kind", f"missing; give one of {', '.join(self.kinds)}")
        spec_entries: dict[str, _Entry] = {}
        metadata = self._mapping(entries.get("metadata"), "metadata: {name: ...}", root.line, "metadata")
        fields = {key.metadata: key for key in self.whole.keys if key.metadata is not None}
        for name, entry in metadata.items():
            if name in fields:
                spec_entries[fields[name].name] = entry
            else:
                allowed = ", ".join(fields)
                hint = "did you mean `spec.labels`? " if name == "labels" and self.whole.key("labels") else ""
                sentence = f"there is no place for it in a {self._kind_name()}; {hint}remove it. Allowed: {allowed}"
                self.problems.add(entry.line, entry.path, sentence)
        spec = self._mapping(entries.get("spec"), "spec: {run: python train.py}", root.line, "spec")
        for name, entry in list(spec.items()):
            key = self.whole.key(name)
            if key is not None and key.metadata is not None:
                sentence = f"in the Kubernetes form it is `metadata.{key.metadata}`; move it there"
                self.problems.add(entry.line, entry.path, sentence)
                spec_entries.setdefault(name, entry)
                del spec[name]
        spec_entries |= self._known(self.whole, spec, prefix="spec.")
        return spec_entries

    def _kind_name(self) -> str:
        return next(name for name, section in self.kinds.items() if section is self.whole)

    def _unknown_beside_spec(self, name: str, entry: _Entry) -> None:
        near = suggest(name, self.whole, self.whole)
        key = self.whole.key(near) if near else None
        path = f"metadata.{key.metadata}" if key and key.metadata else f"spec.{near}"
        hint = f"; did you mean `{path}`?" if near else ";"
        self.problems.add(entry.line, entry.path, f"unknown key{hint} Allowed: {', '.join(ENVELOPE)}")

    def _mapping(self, entry: _Entry | None, example: str, line: int, path: str) -> dict[str, _Entry]:
        """Return the entries of a part of the Kubernetes form that must be a mapping."""
        if entry is None:
            self.problems.add(line, path, f"missing; give a mapping, such as `{example}`")
            return {}
        if not isinstance(entry.node, Mapping):
            self.problems.add(entry.line, path, f"{_show(entry.node)} is not a mapping; give one, such as `{example}`")
            return {}
        return _entries(entry.node, path + ".")

    def _known(self, section: Section, entries: Map[str, _Entry], prefix: str) -> dict[str, _Entry]:
        """Return the entries that a section knows; report every other one as a problem."""
        known = {}
        for name, entry in entries.items():
            if section.key(name) is not None:
                known[name] = entry
                continue
            near = None if self.problems.is_full else suggest(name, section, self.whole)
            if near is not None and section.key(near) is None:
                near = self.prefix + near
            hint = f"; did you mean `{near}`?" if near else ";"
            if near == name:
                hint = f"; it is a key of the {self._kind_name()} itself."
            if near is None and section is self.whole and isinstance(entry.node, Mapping):
                hint = f"; parts that aliases share may be in a key that begins with `{SHARED}`."
            allowed = ", ".join(key.name for key in section.keys if not (key.metadata and prefix))
            self.problems.add(entry.line, entry.path, f"unknown key{hint} Allowed: {allowed}")
        return known

    def _build(self, section: Section, entries: Map[str, _Entry], path: str, line: int) -> object | None:
        """Build the section's dataclass; return None after a problem."""
        before = self.problems.num
        values: dict[str, object] = {}
        for key in section.keys:
            entry = entries.get(key.name)
            if entry is not None:
                value = self._value(section, key, entry)
                if value is not _MISSING:
                    values |= zip(key.attributes, _parts(key, value), strict=True)
            elif key.required:
                where = self._path_of(key, path)
                self.problems.add(line, where, f"missing; give {key.name}, such as `{key.name}: {key.example}`")
        if self.problems.num > before:
            # The dataclass cannot be built, so check each value by itself here.
            for attribute, value in values.items():
                rule = section.rules.get(attribute)
                sentence = None if rule is None or value is None else rule.problem(value)
                if sentence is not None:
                    self._broken(section, entries, path, line, attribute, sentence)
            return None
        try:
            built: object = section.type(**values)
        except BrokenRules as error:
            for attribute, sentence in error.problems:
                self._broken(section, entries, path, line, attribute, sentence)
            return None
        return built

    def _broken(
        self, section: Section, entries: Map[str, _Entry], path: str, line: int, attribute: str, sentence: str
    ) -> None:
        first, *inner = attribute.split(".")
        owner = section.key_of(first)
        entry = entries.get(owner.name) if owner else None
        for name in inner:  # the rule is about a part of the value, such as one step
            inner_entries = _entries(entry.node, entry.path + ".") if entry and isinstance(entry.node, Mapping) else {}
            entry = inner_entries.get(name, entry)
        where = entry.path if entry else self._path_of(owner, path) if owner else path.rstrip(".")
        self.problems.add(entry.line if entry else line, where, sentence)

    def _path_of(self, key: SectionKey, path: str) -> str:
        if not path and self.prefix:
            return f"metadata.{key.metadata}" if key.metadata else self.prefix + key.name
        return path + key.name

    def _value(self, section: Section, key: SectionKey, entry: _Entry) -> object:
        """Return the value of a key; ``_MISSING`` after a problem."""
        kind, node = key.kind, entry.node
        if isinstance(node, Scalar) and node.tag is Tag.NULL:
            if self.is_typed and not key.required:
                return _MISSING
            sentence = f"nothing is given; give {wanted(kind)}, such as `{key.name}: {key.example}`, or remove the key"
            self.problems.add(entry.line, entry.path, sentence)
            return _MISSING
        if isinstance(kind, Single):
            return self._single(kind, key, entry, section.rules)
        if isinstance(kind, Section):
            if isinstance(node, Scalar) and kind.shorthand is not None and not self.is_typed:
                # Mistakes name the key as it is written: `retry: 3`, not `program: 3`.
                keys = (replace(inner, name=key.name) if inner.name == kind.shorthand else inner for inner in kind.keys)
                kind = replace(kind, keys=tuple(keys))
                entries = {key.name: entry}
            elif isinstance(node, Mapping):
                entries = self._known(kind, _entries(node, entry.path + "."), prefix="")
            else:
                return self._not_a(kind, key, entry)
            built = self._build(kind, entries, entry.path + ".", entry.line)
            return _MISSING if built is None else built
        if isinstance(kind, SectionMap):
            return self._sections(kind, key, entry)
        if isinstance(kind, MapField):
            return self._mapped(kind, key, entry)
        if isinstance(kind, OverlayField):
            return self._laid(kind, key, entry)
        return self._listed(kind, key, entry)

    def _single(self, kind: Single, key: SectionKey, entry: _Entry, rules: Constraints) -> object:
        node = entry.node
        if not isinstance(node, Scalar):
            return self._not_a(kind, key, entry)
        limits = limits_of(key, rules)
        give = advice(kind, key, rules)
        sentence = None
        if node.tag not in kind.tags and kind.tags == {Tag.TEXT}:
            sentence = f"{_show(node)} is not text; put it in quotes: `{key.name}: {quote(node.text)}`"
        elif node.tag is Tag.INT and node.plain and _OCTAL.fullmatch(node.text):
            sentence = f"{node.text} is {int(node.text)} or, for kubectl, an octal number; write it without the zero"
        elif self.is_typed and kind in (WHOLE, SPAN) and node.tag is Tag.FLOAT:
            sentence = f"{_show(node)} is not {kind.what}; {give}"
        elif self.is_typed and kind.tags == ANY and kind is not SHARE and node.tag is Tag.FLOAT:
            sentence = f"{_show(node)} is a number with a point; put it in quotes: `{key.name}: {quote(node.text)}`"
        elif (
            (kind.text is not None and node.tag is Tag.TEXT and re.fullmatch(kind.text, node.text) is None)
            or node.tag not in kind.tags
            or (len(node.text) > MOST_QUANTITY and kind.tags != {Tag.TEXT})
        ):
            sentence = f"{_show(node)} is not {kind.what}; {give}"
        if sentence is not None:
            self.problems.add(entry.line, entry.path, sentence)
            return _MISSING
        try:
            value = kind.parse(node.text)
        except BrokenRules as error:
            for _, sentence in error.problems:
                self.problems.add(entry.line, entry.path, sentence)
            return _MISSING
        except ValueError as error:
            hint = str(error)
            self.problems.add(entry.line, entry.path, f"{_show(node)} {hint}" + ("" if "`" in hint else f"; {give}"))
            return _MISSING
        for limit, part in zip(limits, _parts(key, value), strict=True):
            if limit is not None and part is not None and limit.problem(part) is not None:
                self.problems.add(entry.line, entry.path, f"{_show(node)} is out of bounds; {give}")
                return _MISSING
        return value

    def _sections(self, kind: SectionMap, key: SectionKey, entry: _Entry) -> object:
        if not isinstance(entry.node, Mapping):
            return self._not_a(kind, key, entry)
        of_each = SectionKey(name=key.name, kind=kind.item, doc=key.doc, attributes=key.attributes, example=key.example)
        built: dict[str, object] = {}
        if not entry.node.entries and not key.required:
            example = f"`{key.name}: {key.example}`"
            self.problems.add(entry.line, entry.path, f"nothing is in it; give one, such as {example}, or leave it out")
            return _MISSING
        for name, inner in _entries(entry.node, entry.path + ".").items():
            problem = kind.names.problem(name)
            if problem is not None:
                self.problems.add(inner.line, inner.path, problem)
            if isinstance(inner.node, Scalar) and inner.node.tag is Tag.NULL:
                self.problems.add(inner.line, inner.path, f"nothing is given; give {wanted(kind.item)}")
                built[name] = _MISSING
                continue
            built[name] = _MISSING if problem is not None else self._value(kind.item, of_each, inner)
        return _MISSING if any(value is _MISSING for value in built.values()) else built

    def _mapped(self, kind: MapField, key: SectionKey, entry: _Entry) -> object:
        if not isinstance(entry.node, Mapping):
            return self._not_a(kind, key, entry)
        texts: dict[str, str] = {}
        fine = True
        for name, inner in _entries(entry.node, entry.path + ".").items():
            problem = kind.names.problem(name)
            if problem is None and not isinstance(inner.node, Scalar):
                example = f"{one_line(name)}: {kind.example}"
                problem = f"{_show(inner.node)} is not a single value; give text, such as `{example}`"
            if problem is None and isinstance(inner.node, Scalar) and self.is_typed and inner.node.tag is not Tag.TEXT:
                hint = f"put it in quotes: `{one_line(name)}: {quote(inner.node.text)}`"
                problem = f"{_show(inner.node)} is not text; {hint}"
            if problem is None and isinstance(inner.node, Scalar):
                problem = kind.values.problem(inner.node.text)
                texts[name] = inner.node.text
            if problem is not None:
                self.problems.add(inner.line, inner.path, problem)
                fine = False
        return texts if fine else _MISSING

    def _laid(self, kind: OverlayField, key: SectionKey, entry: _Entry) -> object:
        if not isinstance(entry.node, Mapping):
            return self._not_a(kind, key, entry)
        laid, mistakes = read_overlay(entry.node)
        for line, path, sentence in mistakes:
            self.problems.add(line, f"{entry.path}.{path}" if path else entry.path, sentence)
        return _MISSING if laid is None else laid

    def _listed(self, kind: ListField, key: SectionKey, entry: _Entry) -> object:
        if not isinstance(entry.node, Sequence):
            return self._not_a(kind, key, entry)
        values = []
        for place, node in enumerate(entry.node.items):
            item = _Entry(path=f"{entry.path}[{place}]", line=node.line, node=node)
            values.append(self._single(kind.item, key, item, {}))
        return _MISSING if _MISSING in values else tuple(values)

    def _not_a(self, kind: Kind, key: SectionKey, entry: _Entry) -> object:
        shown = _show(entry.node)
        self.problems.add(
            entry.line, entry.path, f"{shown} is not {wanted(kind)}; give one, such as `{key.name}: {key.example}`"
        )
        return _MISSING


# Decimal in YAML 1.2, octal in YAML 1.1.
_OCTAL = re.compile(r"[-+]?0+[0-9]+")


def _hidden(node: Node, path: str, *, in_env: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and path of variables whose values were hidden, as in a copy of what `fairlead show` prints."""
    if isinstance(node, Mapping):
        for key, value in node.entries:
            inner = f"{path}.{one_line(key.text)}" if path else one_line(key.text)
            yield from _hidden(value, inner, in_env=in_env or key.text == ENV)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _hidden(item, path, in_env=in_env)
    elif in_env and node.text == HIDDEN:
        yield node.line, path


def _entries(mapping: Mapping, prefix: str) -> dict[str, _Entry]:
    return {
        key.text: _Entry(path=prefix + one_line(key.text), line=key.line, node=node) for key, node in mapping.entries
    }


def _parts(key: SectionKey, value: object) -> tuple[object, ...]:
    """Return the values of a key's attributes."""
    return value if isinstance(value, tuple) and len(key.attributes) > 1 else (value,)


def _show(node: Node) -> str:
    """Format a given value, short and on one line."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    if node.tag is Tag.NULL:
        return "nothing"
    return quote(node.text) if node.tag is Tag.TEXT else one_line(node.text)
