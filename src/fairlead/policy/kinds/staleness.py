"""Decides when a model is retrained because its predictions have degraded, by the cost of staleness.

A model that is retrained on each sign of drift pays for many trainings, one that is never retrained pays for ever more
mistakes. The future is unknown, as in the ski rental problem (Karlin et al., "Competitive snoopy caching", Algorithmica
3, 1988): so the model is retrained when the loss beyond that of a fresh model, summed since the last training, has
reached the cost of a training. If staleness grows evenly, no other period is better: a loss that grows by ``a`` with
each prediction costs least with ``sqrt(2 cost / a)`` predictions between trainings, after which the sum is just
``cost``.

The loss of a fresh model is learnt: from the first predictions after each training, half of the old estimate and half
of theirs, and from any lower mean since a training.
"""

from collections.abc import Sequence

from fairlead.frozen import dataclass

# The weight of an earlier estimate when a training provides another.
KEPT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """The state of a model since its last training, in the unit of its losses.

    Attributes:
        excess: The sum of losses beyond those of a fresh model.
        fresh: The mean loss of a fresh model; None while too few predictions have been seen.
    """

    excess: float
    fresh: float | None


def staleness(losses: Sequence[float], *, fresh: float | None, window: int, is_new: bool) -> Staleness:
    """Sum the losses beyond those of a fresh model.

    Args:
        losses: The loss of each prediction since the last training, in order.
        fresh: The mean loss of a fresh model as known before that training; None if unknown.
        window: The number of predictions after a training that estimate the loss of a fresh model.
        is_new: Whether the model is new since the first of these losses, so that they estimate that.
    """
    excess = total = 0.0
    for number, loss in enumerate(losses, 1):
        total += loss
        if number == window and is_new:
            mean = total / number
            fresh = mean if fresh is None else KEPT * fresh + (1.0 - KEPT) * mean
        elif number > window and fresh is not None:
            fresh = min(fresh, total / number)
        if fresh is not None:
            excess += loss - fresh
    return Staleness(excess=excess, fresh=fresh)
