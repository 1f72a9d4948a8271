"""Suggests keys for unknown words."""

import re
from collections.abc import Iterator

from fairlead.specs.field_types import Section


def suggest(word: str, section: Section, whole: Section) -> str | None:
    """Return the probable key for ``word``: its name if in ``section``, dotted from ``whole`` if elsewhere."""
    if len(word) > 64:
        return None
    meant = _plain(word)
    local = {_plain(key.name): key.name for key in section.keys}
    foreign = {_plain(synonym): key.name for key in section.keys for synonym in key.also}
    everywhere: dict[str, str] = {}
    for path, words in _paths(whole, ""):
        for name in words:
            everywhere.setdefault(_plain(name), path)
    for known in (local, foreign, everywhere):
        if meant in known:
            return known[meant]
    for known in (local, foreign | everywhere | local):
        import difflib  # here, since it takes 3 ms that a known word does not need

        near = difflib.get_close_matches(meant, known, n=1, cutoff=0.7)
        if near:
            return known[near[0]]
    return None


def nearest(word: str, words: tuple[str, ...]) -> str | None:
    """Return the one of ``words`` that is closest to ``word``; None if none is similar."""
    if len(word) > 64:
        return None
    known = {_plain(candidate): candidate for candidate in words}
    import difflib

    near = difflib.get_close_matches(_plain(word), known, n=1, cutoff=0.6)
    return known[near[0]] if near else None


def _plain(word: str) -> str:
    """Normalize maxDuration, max-duration, MAX_DURATION and max_duration to one spelling."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word)
    return re.sub(r"[-_ ]+", "_", snake).strip("_").lower()


def _paths(section: Section, prefix: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the dotted path and words of each key, outer keys first, names before aliases."""
    for key in section.keys:
        yield prefix + key.name, (key.name,)
    for key in section.keys:
        yield prefix + key.name, key.also
    for key in section.keys:
        if isinstance(key.kind, Section):
            yield from _paths(key.kind, f"{prefix}{key.name}.")
