"""Divides an amount of money by weights into whole micro-dollars, without remainder."""

from collections.abc import Sequence


def apportion(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide an amount in proportion to weights by the method of largest remainders (Hamilton's).

    Each part is the exact quota rounded down or up; of equal remainders the first is rounded up. The parts sum to the
    amount, unless all weights are zero: then every part is zero.

    Raises:
        ValueError: The amount or a weight is negative.
    """
    if amount < 0 or any(weight < 0 for weight in weights):
        raise ValueError("an amount and its weights are not negative")
    total = sum(weights)
    if total == 0:
        return [0] * len(weights)
    parts, remainders = [], []
    for index, weight in enumerate(weights):
        part, remainder = divmod(amount * weight, total)
        parts.append(part)
        remainders.append((-remainder, index))
    for _, index in sorted(remainders)[: amount - sum(parts)]:
        parts[index] += 1
    return parts
