"""Reads spec files to frozen values, or reports every mistake with its line, its key and a remedy."""

import os
import re
from pathlib import Path
from typing import BinaryIO

from fairlead.errors import InvalidSpec
from fairlead.specs.constraints import one_line, quote
from fairlead.specs.formats.documents import MOST_CHARACTERS, read_documents
from fairlead.specs.formats.parsing import read_spec
from fairlead.specs.formats.problems import Problems
from fairlead.specs.keys import Spec


def load_file(path: str | os.PathLike[str]) -> tuple[Spec, ...]:
    """Read the specs in a file; one without a name gets the file's name.

    Raises:
        InvalidSpec: It cannot be read or is invalid.
    """
    source = one_line(os.fspath(path))
    try:
        with open(path, "rb") as file:
            content = file.read(4 * MOST_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidSpec((f"{source}: cannot be read: {reason}",)) from error
    return _decoded(content, source, name_from(Path(path).stem))


def load_stream(stream: BinaryIO, *, source: str, default_name: str | None = None) -> tuple[Spec, ...]:
    """Read the specs in a stream.

    Args:
        source: Name of the stream in problems.
        default_name: Name of a spec in the short form without a name.

    Raises:
        InvalidSpec: It cannot be read or is invalid.
    """
    try:
        content = stream.read(4 * MOST_CHARACTERS + 1)
    except OSError as error:
        raise InvalidSpec((f"{source}: cannot be read: {error.strerror or error}",)) from error
    return _decoded(content, source, default_name)


def _decoded(content: bytes, source: str, default_name: str | None) -> tuple[Spec, ...]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidSpec((f"{source}:{line}: not UTF-8 text; save the file as UTF-8",)) from error
    return parse(text, source=source, default_name=default_name)


def parse(text: str, *, source: str = "<text>", default_name: str | None = None) -> tuple[Spec, ...]:
    """Parse the specs in a YAML text of one or more documents, in order.

    Args:
        source: Name of the text in problems.
        default_name: Name of a spec in the short form without a name.

    Raises:
        InvalidSpec: The text is invalid; has every problem.
    """
    documents, mistakes = read_documents(text.removeprefix("\ufeff"))
    problems = Problems(source=source)
    for mistake in mistakes:
        problems.add(mistake.line, mistake.path, mistake.sentence)
    specs: list[Spec] = []
    seen: set[tuple[type, str]] = set()
    for document in documents:
        spec = read_spec(document, problems, default_name=default_name)
        if spec is None:
            continue
        if (type(spec), spec.name) in seen:
            kind = type(spec).__name__
            problems.add(document.line, "name", f"a second {kind} is called {quote(spec.name)}; give each its own name")
        seen.add((type(spec), spec.name))
        specs.append(spec)
    if not documents and not mistakes:
        problems.add(1, "", "there is no spec in it; the shortest is one line, such as `run: python train.py`")
    problems.raise_any()
    return tuple(specs)


def name_from(stem: str) -> str | None:
    """Derive a name from a file's stem; return None if no valid characters are left."""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower())[:50].strip("-") or None
