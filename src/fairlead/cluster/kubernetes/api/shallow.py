"""Reads JSON of an API server although somebody nested a part of one object too deeply: that object is marked.

``marked`` does the same with one that cannot be read for another reason.

An API server accepts 10,000 levels in fields without a schema, ten times as many as Python's reader. One such object
must not keep a page of a list, or a watch, from being read.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from fairlead.untrusted_json import fields

MOST_DEPTH = 200
"""Levels that are kept of a text which is nested too deeply."""
_MARK = "\x00fairlead: not to be read"
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def loads(content: bytes) -> Any:
    """Return the value of a JSON text: an object, a list of objects, or an event of a watch.

    Of an object that is nested too deeply only its identity is left, and ``problem_of`` tells its problem.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return json.loads(content)
    except RecursionError:
        answer = json.loads(_pruned(content))
    if isinstance(answer, dict) and isinstance(answer.get("items"), list):
        return {**answer, "items": [_reduced(item) for item in answer["items"]]}
    if isinstance(answer, dict) and isinstance(answer.get("object"), dict):
        return {**answer, "object": _reduced(answer["object"])}
    return _reduced(answer)


def problem_of(content: Mapping[str, Any]) -> str | None:
    """Return why an object was left out but for its identity, as a clause; None for any other object."""
    problem = content.get(_MARK)
    return None if problem is None else str(problem)


def marked(content: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """Return the identity of an object, of which ``problem_of`` tells the problem."""
    identity = {name: content[name] for name in ("apiVersion", "kind") if isinstance(content.get(name), str)}
    if identity.get("kind") == "PartialObjectMetadata":
        identity = {}
    return {**identity, "metadata": fields(content.get("metadata")), _MARK: problem}


def _reduced(content: Any) -> Any:
    """Return an object, or what identifies it if a part of it was nested too deeply."""
    if not isinstance(content, dict) or not _is_marked(content):
        return content
    metadata = {name: value for name, value in fields(content.get("metadata")).items() if not _is_marked(value)}
    problem = f"a field of it is nested more than {MOST_DEPTH} levels deep; write it without such a field"
    return marked({**content, "metadata": metadata}, problem)


def _pruned(content: bytes) -> bytes:
    """Return the text with everything below the deepest level replaced by the mark."""
    parts: list[bytes] = []
    depth = copied = 0
    mark = json.dumps(_MARK).encode()
    for token in _TOKENS.finditer(content):
        sign = token.group()[:1]
        if sign in b"[{":
            depth += 1
            if depth == MOST_DEPTH + 1:
                parts += (content[copied : token.start()], mark)
        elif sign in b"]}":
            if depth == MOST_DEPTH + 1:
                copied = token.end()
            depth -= 1
    parts.append(content[copied:])
    return b"".join(parts)


def _is_marked(value: Any) -> bool:
    pending = [value]
    while pending:
        inner = pending.pop()
        if inner == _MARK:
            return True
        if isinstance(inner, dict):
            pending.extend(inner.values())
        elif isinstance(inner, list):
            pending.extend(inner)
    return False
