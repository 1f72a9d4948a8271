"""The order of samples: a function of version, seed and epoch alone, whatever the number of ranks.

Bundles are permuted; a sample's place is that of its bundle plus a random part of ``window`` bundles. A prefix of the
order needs only a prefix of the bundles. Measured on data sorted by class, batches of 64 have as many classes as under
a full shuffle with windows from 4 on (`benchmarks.data_loading shuffle`).
"""

import heapq
import random
from collections.abc import Callable, Iterator

from fairlead.runtime.data.layout import Layout, Ref

WINDOW = 4


def epoch_order(
    layout: Layout,
    count: Callable[[int], int],
    *,
    version: str,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    entering: Callable[[list[int], int], None] | None = None,
) -> Iterator[Ref]:
    """Yield the samples of an epoch.

    Args:
        count: Number of samples of a bundle.
        entering: Is called with the order of bundles and a place in it before the bundle there is counted.
    """
    rng = random.Random(f"{version}-{seed}-{epoch}")
    places = layout.places(rng if shuffle else None)
    pending: list[tuple[float, int, int]] = []
    for place, bundle in enumerate(places):
        if entering is not None:
            entering(places, place)
        num_samples = count(bundle)
        if not shuffle:
            yield from (Ref(bundle, number) for number in range(num_samples))
            continue
        for number, own_place in enumerate(places_of(place, bundle, num_samples, f"{version}-{seed}-{epoch}")):
            heapq.heappush(pending, (own_place, bundle, number))
        # Samples of later bundles have later places.
        while pending and pending[0][0] < place + 1:
            _, own, number = heapq.heappop(pending)
            yield Ref(own, number)
    while pending:
        _, own, number = heapq.heappop(pending)
        yield Ref(own, number)


def places_of(place: int, bundle: int, num_samples: int, key: str) -> list[float]:
    """Return the places of a bundle's samples in a shuffled epoch, in which places of bundles are whole numbers.

    Args:
        place: The place of the bundle.
        key: Version, seed and epoch, with dashes between them.
    """
    draw = random.Random(f"{key}-{bundle}").random
    return [place + WINDOW * draw() for _ in range(num_samples)]
