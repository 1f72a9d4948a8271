"""The request and the response of a view, and a cache for values that are expensive to compute."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import field
from time import monotonic
from typing import Any, TypeVar

from fairlead.cluster.listing import PagedClient
from fairlead.frozen import dataclass

Value = TypeVar("Value")

# A value that took t seconds to find is kept for so many times t: whatever it costs, it costs a twentieth of a core.
REST = 20.0


class BadQuery(Exception):
    """A query has a value that does not exist; the message lists those that do."""


class Missing(Exception):
    """Nothing is at an address; the message says so."""


class Paced:
    """Caches expensive values for a time in proportion to their cost. Not thread-safe: used in one thread."""

    def __init__(self) -> None:
        self._cached: dict[Hashable, tuple[float, Any]] = {}

    def value(self, key: Hashable, find: Callable[[], Value]) -> Value:
        """Return the value of a key from the cache, or compute it."""
        known = self._cached.get(key)
        began = monotonic()
        if known is not None and began < known[0]:
            value: Value = known[1]
            return value
        value = find()
        now = monotonic()
        self._cached = {name: entry for name, entry in self._cached.items() if entry[0] > now}
        self._cached[key] = (now + REST * (now - began), value)
        return value


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request for a view; read-only.

    Attributes:
        query: Query parameters of the address; the last value of each name.
        now: Unix time.
    """

    cluster: PagedClient
    query: Mapping[str, str]
    now: float
    paced: Paced = field(default_factory=Paced)

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Return the value of a parameter.

        Raises:
            BadRequest: It is not one of the allowed values.
        """
        value = self.query.get(name) or default
        if value not in allowed:
            raise BadQuery(f"There is no {name} {value!r}. Give one of: {', '.join(allowed)}.")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The content of a view.

    Attributes:
        template: File name of the template, rendered with ``values``.
        look_again_s: Interval at which it is refreshed without a recorded change, as for output and durations.
    """

    title: str
    template: str
    values: Mapping[str, Any]
    look_again_s: float = 10.0
