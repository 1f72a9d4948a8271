"""Chooses who of several who want things gets one, when each would do with any of several kinds."""

from collections import Counter
from collections.abc import Mapping, Sequence


def match(supply: Mapping[str, int], wants: Sequence[tuple[frozenset[str], int]]) -> list[int]:
    """Return how many of each want are met; earlier ones come first.

    What can be met together is a matroid, so that this meets the most weight too (Edmonds, 1971). Each is met along an
    augmenting path (Berge, 1957) from its profiles to one that is left.
    """
    left = dict(supply)
    given: list[Counter[str]] = [Counter() for _ in wants]
    for i, (profiles, count) in enumerate(wants):
        for _ in range(count):
            path = _path_to_one_left(left, given, [each for each, _ in wants], profiles)
            if path is None:
                break
            taker = i
            for name, loser in path:
                given[taker][name] += 1
                if loser is None:
                    left[name] -= 1
                else:
                    given[loser][name] -= 1
                    taker = loser
    return [sum(each.values()) for each in given]


def _path_to_one_left(
    left: Mapping[str, int], given: Sequence[Counter[str]], accepts: Sequence[frozenset[str]], wanted: frozenset[str]
) -> list[tuple[str, int | None]] | None:
    """Names to take, each from whom, ending at one that is left: who loses one takes the next."""
    paths: list[tuple[frozenset[str], list[tuple[str, int | None]]]] = [(wanted, [])]
    seen: set[str] = set()
    for profiles, path in paths:
        names = sorted(profiles - seen)
        spare = next((name for name in names if left.get(name, 0)), None)
        if spare is not None:
            return [*path, (spare, None)]
        seen.update(names)
        paths += [
            (accepts[loser], [*path, (name, loser)]) for name in names for loser, held in enumerate(given) if held[name]
        ]
    return None
