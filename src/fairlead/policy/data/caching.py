"""Rules for caches that the nodes of a cluster share, in front of a store that serves so many bytes a second.

Sizes are in gigabytes of 10^9 bytes, rates in gigabytes a second.
"""

from collections.abc import Mapping, Sequence

from fairlead.frozen import dataclass

EVEN_SHARE = 0.1
"""Part of the store's rate that all readers divide evenly, so that each of them makes progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDemand:
    """The reading of one run.

    Attributes:
        version: Version of the data, the same for all runs that read the same bytes.
        size_gb: Size of that version; above 0.
        gb_s: Rate at which the whole gang reads at full speed, epoch after epoch; above 0.
    """

    version: str
    size_gb: float
    gb_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedVersion:
    """One version that is cached or read.

    Attributes:
        size_gb: Size of the version.
        cached_gb: Part of it that the caches hold; at most ``size_gb``.
        gb_s: Sum of the full rates of the runs that read it now; 0 when none does.
    """

    version: str
    size_gb: float
    cached_gb: float
    gb_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReader:
    """A run that has to read from the store.

    Attributes:
        wanted_gb_s: What it takes from the store at full speed, its hits left out.
        left_gb: What it still has to take from the store until it ends.
    """

    uid: str
    wanted_gb_s: float
    left_gb: float


def targets_gb(versions: Sequence[CachedVersion], capacity_gb: float) -> dict[str, float]:
    """Return how much of each version the caches keep; the values sum to at most ``capacity_gb``.

    A cached gigabyte saves as much of the store's rate as the runs that read the version take for each gigabyte of it,
    so those with the largest (sum of rates) / size come first (SiloD, EuroSys'23, section 4.2). Versions that nobody
    reads stay, in the rest, with what they have: those that are cached to the largest part first, as a version of which
    little is cached serves few.
    """
    left_gb = max(0.0, capacity_gb)
    targets: dict[str, float] = {}
    for version in sorted(versions, key=_precedence):
        wanted_gb = version.size_gb if version.gb_s > 0.0 else version.cached_gb
        targets[version.version] = kept_gb = min(wanted_gb, left_gb)
        left_gb -= kept_gb
    return targets


def _precedence(version: CachedVersion) -> tuple[float, float, str]:
    return -version.gb_s / version.size_gb, -version.cached_gb / version.size_gb, version.version


def store_rates(readers: Sequence[StoreReader], limit_gb_s: float) -> dict[str, float]:
    """Return what each reader gets of the store, in GB/s; at most what it wants, in total at most the limit.

    A tenth is divided evenly, the rest goes to the readers with the fewest gigabytes left: shortest remaining first has
    the least mean time in a queue for one server (Schrage, Operations Research 16, 1968), and what they have read is
    cached for the others.
    """
    wanted = {reader.uid: reader.wanted_gb_s for reader in readers}
    if sum(wanted.values()) <= limit_gb_s:
        return wanted
    rates = even_rates(wanted, EVEN_SHARE * limit_gb_s)
    left_gb_s = limit_gb_s - sum(rates.values())
    for reader in sorted(readers, key=lambda reader: (reader.left_gb, reader.uid)):
        more = min(reader.wanted_gb_s - rates[reader.uid], left_gb_s)
        rates[reader.uid] += more
        left_gb_s -= more
    return rates


def even_rates(wanted: Mapping[str, float], limit: float) -> dict[str, float]:
    """Return the max-min fair division of a limit: all get the same, except who wants less."""
    rates: dict[str, float] = {}
    num_left = len(wanted)
    for uid, rate in sorted(wanted.items(), key=lambda item: (item[1], item[0])):
        rates[uid] = min(rate, limit / num_left)
        limit -= rates[uid]
        num_left -= 1
    return rates
