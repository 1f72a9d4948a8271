"""Parses YAML text to trees of nodes with their positions. The only module that reads YAML.

It works on the parser's events instead of PyYAML's constructors: scalars get their types by YAML 1.2's core schema
(``yes`` is text), duplicate keys and tags are mistakes, and limits on depth, size and expanded aliases apply before
they cost anything.
"""

import re
from dataclasses import field
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs.constraints import one_line, quote
from fairlead.specs.field_types import Tag

MOST_CHARACTERS = 2 * 2**20
MOST_NODES = 20_000
MOST_DEPTH = 32
# Keys at the top level that only hold parts for aliases and merges, as in Compose files.
SHARED = "x-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A single value; ``text`` is the exact source without quotes. Lines and columns count from 1."""

    tag: Tag
    text: str
    plain: bool = True
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A list."""

    items: "tuple[Node, ...]"
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """Keys and values in the order of the file, with aliases and merges resolved; keys are unique."""

    entries: "tuple[tuple[Scalar, Node], ...]"
    line: int
    column: int


Node = Scalar | Sequence | Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A mistake in the YAML itself, at a line, under a dotted key (empty if there is none)."""

    line: int
    path: str
    sentence: str


def read_documents(text: str) -> tuple[tuple[Node, ...], tuple[Mistake, ...]]:
    """Parse the non-empty documents of a text, and collect every mistake; stop after a malformed document."""
    mistake = _not_yaml_at_all(text)
    if mistake is not None:
        return (), (mistake,)
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    trees = _Trees()
    try:
        for event in yaml.parse(text, Loader=loader):
            trees.take(event)
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        trees.mistakes.append(Mistake(line=line, path="", sentence=_syntax(error, line, text)))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        trees.mistakes.append(Mistake(line=line, path="", sentence=f"not valid YAML: {error.reason}"))
    except _GaveUpError as error:
        trees.mistakes.append(error.mistake)
    return tuple(trees.documents), tuple(trees.mistakes)


def core_tag(text: str) -> Tag:
    """Return the type of a plain scalar in YAML 1.2's core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return Tag.INT
    return Tag.FLOAT if _FLOAT.fullmatch(text) else Tag.TEXT


_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), Tag.NULL),
    **dict.fromkeys(("true", "True", "TRUE", "false", "False", "FALSE"), Tag.BOOL),
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


class _GaveUpError(Exception):
    """Reading cannot continue, or would cost too much."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(sentence)
        self.mistake = Mistake(line=line, path="", sentence=sentence)


@dataclass(slots=True, kw_only=True)
class _Frame:
    """A list or mapping in progress.

    Attributes:
        key: Key of the mapping that awaits its value.
        size: Number of nodes in it, with aliases expanded.
    """

    is_mapping: bool
    anchor: str | None
    line: int
    column: int
    items: list[Node] = field(default_factory=list)
    entries: dict[str, tuple[Scalar, Node]] = field(default_factory=dict)
    merges: list[Mapping] = field(default_factory=list)
    key: Scalar | None = None
    size: int = 1


class _Trees:
    """Builds trees from the events of a stream, without recursion."""

    def __init__(self) -> None:
        self.documents: list[Node] = []
        self.mistakes: list[Mistake] = []
        self._frames: list[_Frame] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._anchors_before: set[str] = set()
        self._used: set[str] = set()
        self._shared: dict[str, set[str]] = {}
        self._total = 0

    def take(self, event: Any) -> None:
        """Process an event of PyYAML's parser."""
        kind = type(event).__name__
        if kind == "ScalarEvent":
            self._scalar(event)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._open(event, is_mapping=kind == "MappingStartEvent")
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._close()
        elif kind == "AliasEvent":
            self._alias(event)
        elif kind == "DocumentStartEvent":
            self._anchors_before |= self._anchors.keys()
            for names in (self._anchors, self._used, self._shared):
                names.clear()

    def _scalar(self, event: Any) -> None:
        self._refuse_tag(event)
        plain = bool(event.implicit[0]) and event.style in (None, "")
        line, column = _place(event)
        tag = core_tag(event.value) if plain else Tag.TEXT
        node = Scalar(tag=tag, text=event.value, plain=plain, line=line, column=column)
        self._anchor(event.anchor, node, 1)
        self._add(node, 1)

    def _open(self, event: Any, *, is_mapping: bool) -> None:
        self._refuse_tag(event)
        line, column = _place(event)
        if len(self._frames) >= MOST_DEPTH:
            raise _GaveUpError(line, f"nested more than {MOST_DEPTH} deep; no spec needs that")
        self._frames.append(_Frame(is_mapping=is_mapping, anchor=event.anchor, line=line, column=column))

    def _close(self) -> None:
        frame = self._frames.pop()
        node: Node
        if frame.is_mapping:
            for merged in frame.merges:
                for key, value in merged.entries:
                    frame.entries.setdefault(key.text, (key, value))
            entries = frame.entries if self._frames else self._without_shared(frame.entries)
            node = Mapping(entries=tuple(entries.values()), line=frame.line, column=frame.column)
        else:
            node = Sequence(items=tuple(frame.items), line=frame.line, column=frame.column)
        self._anchor(frame.anchor, node, frame.size)
        self._add(node, frame.size)

    def _alias(self, event: Any) -> None:
        line, _ = _place(event)
        known = self._anchors.get(event.anchor)
        if known is None:
            sentence = f"the alias *{one_line(event.anchor)} has no anchor before it in this document"
            if event.anchor in self._anchors_before:
                sentence += "; anchors of documents before a `---` do not count: repeat it here"
            raise _GaveUpError(line, sentence)
        self._used.add(event.anchor)
        self._add(*known, alias_line=line)

    def _anchor(self, anchor: str | None, node: Node, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, size)
            if self._frames and self._frames[0].key is not None:
                self._shared.setdefault(self._frames[0].key.text, set()).add(anchor)

    def _without_shared(self, entries: dict[str, tuple[Scalar, Node]]) -> dict[str, tuple[Scalar, Node]]:
        """Return the entries of a document without its shared parts; those that nothing uses are a mistake.

        The Kubernetes form has no such keys, as an API server would refuse them.
        """
        if "apiVersion" in entries:
            return entries
        for name, (key, _) in entries.items():
            if name.startswith(SHARED) and not self._shared.get(name, set()) & self._used:
                self._mistake(
                    key,
                    "it holds shared parts, but nothing uses them; give them an anchor and use that, as in "
                    f"`{one_line(name)}: &shared {{...}}` and `<<: *shared`",
                )
        return {name: entry for name, entry in entries.items() if not name.startswith(SHARED)}

    def _add(self, node: Node, size: int, *, alias_line: int | None = None) -> None:
        """Add a finished node to its parent; an alias counts its expansion."""
        self._total += size if alias_line is not None or isinstance(node, Scalar) else 1
        if self._total > MOST_NODES:
            sentence = f"more than {MOST_NODES} values; an alias counts as all that it stands for"
            raise _GaveUpError(alias_line or node.line, sentence)
        if not self._frames:
            if not (isinstance(node, Scalar) and node.tag is Tag.NULL):
                self.documents.append(node)
            return
        frame = self._frames[-1]
        frame.size += size
        if not frame.is_mapping:
            frame.items.append(node)
        elif frame.key is None:
            self._key(frame, node)
        else:
            key, frame.key = frame.key, None
            self._entry(frame, key, node)

    def _key(self, frame: _Frame, node: Node) -> None:
        if not isinstance(node, Scalar):
            raise _GaveUpError(node.line, "a list or mapping cannot be a key; a key is a word, such as `nodes: 2`")
        frame.key = node

    def _entry(self, frame: _Frame, key: Scalar, node: Node) -> None:
        if key.text == "<<" and key.plain:
            merged = node.items if isinstance(node, Sequence) else (node,)
            for mapping in merged:
                if isinstance(mapping, Mapping):
                    frame.merges.append(mapping)
                else:
                    self._mistake(key, "a merge takes a mapping, or a list of mappings, such as `<<: *defaults`")
        elif key.text in frame.entries:
            first = frame.entries[key.text][0].line
            self._mistake(key, f"given twice, first in line {first}; keep one of them")
        else:
            frame.entries[key.text] = (key, node)

    def _mistake(self, key: Scalar, sentence: str) -> None:
        path = ".".join([*(one_line(frame.key.text) for frame in self._frames if frame.key), one_line(key.text)])
        self.mistakes.append(Mistake(line=key.line, path=path, sentence=sentence))

    def _refuse_tag(self, event: Any) -> None:
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")
            sentence = f"the tag {quote(tag)} is not allowed; remove it, specs are plain values"
            raise _GaveUpError(_place(event)[0], sentence)


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _not_yaml_at_all(text: str) -> Mistake | None:
    if len(text) > MOST_CHARACTERS:
        return Mistake(
            line=1, path="", sentence=f"the file has more than {MOST_CHARACTERS} characters; it is not a spec"
        )
    strange = _UNREADABLE.search(text)
    if strange is None:
        return None
    line = text.count("\n", 0, strange.start()) + 1
    code = f"U+{ord(strange[0]):04X}"
    return Mistake(line=line, path="", sentence=f"the character {code} is not allowed in YAML; is this a text file?")


# Non-printable characters of YAML 1.2, and the two others that PyYAML's reader refuses.
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


def _syntax(error: Any, line: int, text: str) -> str:
    problem = one_line(str(error.problem or "cannot be read"))
    lines = text.splitlines()
    around = lines[line - 1] if line <= len(lines) else ""
    if around[: len(around) - len(around.lstrip())].count("\t"):
        return "not valid YAML: the line is indented with a tab; use spaces"
    if "mapping values are not allowed" in problem:
        return f"not valid YAML: {problem}; check the indentation, and put text that contains `: ` in quotes"
    context = f" {error.context}" if error.context else ""
    return f"not valid YAML{context}: {problem}"
