"""The parts of every view of the page: the question that an address asks, and the content that answers it."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from fairlead.cluster.listing import PagedClient

Value = TypeVar("Value")

# A value that took t seconds to find is kept for so many times t: whatever it costs, it costs a twentieth of a core.
REST = 20.0


class BadRequest(Exception):
    """An address asks for something that there is not; the message says what there is."""


class Missing(Exception):
    """There is nothing at an address; the message says so."""


class Paced:
    """Keeps values that are dear to find for a while, so that looking often costs little. Belongs to one thread."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def value(self, key: Hashable, find: Callable[[], Value]) -> Value:
        """The value of a key: as it was found not long ago, or found now."""
        known = self._kept.get(key)
        began = monotonic()
        if known is not None and began < known[0]:
            value: Value = known[1]
            return value
        value = find()
        now = monotonic()
        self._kept = {name: each for name, each in self._kept.items() if each[0] > now}
        self._kept[key] = (now + REST * (now - began), value)
        return value


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about what is looked at; asking changes nothing.

    Attributes:
        query: Of the address, the last value of each name.
        now: Unix time.
    """

    cluster: PagedClient
    query: Mapping[str, str]
    now: float
    paced: Paced = field(default_factory=Paced)

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """The value of a parameter.

        Raises:
            BadRequest: It is none of those allowed.
        """
        given = self.query.get(name) or default
        if given not in allowed:
            raise BadRequest(f"There is no {name} {given!r}. Give one of: {', '.join(allowed)}.")
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The content of a view.

    Attributes:
        template: The file of its template, which gets ``values``.
        look_again_s: How often it is looked at again although nothing was recorded, as for output and durations.
    """

    title: str
    template: str
    values: Mapping[str, Any]
    look_again_s: float = 10.0
