"""Forecasts the reading of a run: bytes from the store, time of its first and later epochs, busy GPUs, egress.

An epoch takes as long as the slower of store and program, ``max(bytes missing / store, bytes / program)``, and GPUs are
busy for the program's part of it. The rate of the store is measured by reading some objects now.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from fairlead.errors import RuntimeFault
from fairlead.frozen import dataclass
from fairlead.runtime.data.cache import read_usage
from fairlead.runtime.data.manifest import DataManifest, Entry, load
from fairlead.runtime.data.sources import cache_limit
from fairlead.runtime.data.stores import DataStore, open_data
from fairlead.runtime.paths import below
from fairlead.specs.data import DataMode, DataSource
from fairlead.specs.dataset import Dataset
from fairlead.text.quantities import describe_duration, plural

PROBE_S = 1.5
PROBE_BYTES = 64_000_000
PROBE_THREADS = 32
PART_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DataForecast:
    """The reading of one data set by a run, in bytes, seconds and dollars.

    Attributes:
        missing_bytes: What the first epoch takes from the store.
        later_bytes: What each later epoch takes from it.
        store_rate: Bytes a second that the store was measured to serve; None if it was not.
        run_rate: Bytes a second that the run takes at full speed; None if its spec does not say.
        egress: Dollars for the bytes of the first epoch; None without a price.
    """

    name: str
    version: str
    num_objects: int
    num_bytes: int
    missing_bytes: int
    later_bytes: int
    is_copied_first: bool
    store_rate: float | None = None
    run_rate: int | None = None
    egress: float | None = None

    @property
    def epoch_s(self) -> tuple[float | None, float | None]:
        """Return the least time of the first epoch and of later ones; None where no rate that bounds it is known.

        A copy is made before the first epoch, and counts to it.
        """
        return self._time(self.missing_bytes), self._time(self.later_bytes)

    @property
    def busy(self) -> tuple[float | None, float | None]:
        """Return the share of the first and of later epochs in which the program computes; None if it is unknown."""
        if self.run_rate is None:
            return None, None
        compute_s = self.num_bytes / self.run_rate
        first_s, later_s = self.epoch_s
        first, later = (None if epoch_s is None else compute_s / epoch_s for epoch_s in (first_s, later_s))
        return first, later

    def plain(self) -> dict[str, Any]:
        """Return the forecast as plain data."""
        return {**asdict(self), "epoch_s": self.epoch_s, "busy": self.busy}

    def __str__(self) -> str:
        stored = self.num_bytes - self.missing_bytes
        parts = [
            f"{self.num_bytes / 1e9:.3g} GB in {plural(self.num_objects, 'object')}, {stored / 1e9:.3g} GB of it here"
        ]
        if self.missing_bytes:
            what = "the copy" if self.is_copied_first else "epoch 1"
            parts.append(f"{what} reads {self.missing_bytes / 1e9:.3g} GB from the store")
        if self.missing_bytes and self.store_rate is not None:
            length = describe_duration(self.missing_bytes / self.store_rate)
            parts[-1] += f", {length} at {self.store_rate / 1e6:.3g} MB/s, measured now"
        if self.missing_bytes and self.egress is not None:
            parts[-1] += f", ${self.egress:.2f} of egress"
        if self.later_bytes:
            parts.append(f"each later epoch {self.later_bytes / 1e9:.3g} GB, as the cache has room for no more")
        first, later = self.busy
        if first is not None and later is not None:
            parts.append(f"GPUs are busy for {first:.0%} of epoch 1 and {later:.0%} of later ones")
        return f"data.{self.name}: {'; '.join(parts)}"

    def _time(self, from_store: int) -> float | None:
        compute_s = None if self.run_rate is None else self.num_bytes / self.run_rate
        if not from_store:
            return compute_s
        if self.store_rate is None:
            return None
        read_s = from_store / self.store_rate
        if compute_s is None:
            return read_s
        return read_s + compute_s if self.is_copied_first else max(read_s, compute_s)


def forecast_data(
    data: dict[str, DataSource],
    directory: Path,
    secrets: Path,
    datasets: Sequence[Dataset] = (),
    *,
    is_here: bool = True,
    measures: bool = True,
) -> Iterator[DataForecast]:
    """Yield a forecast for each data set of an admitted run whose manifest this machine has.

    Args:
        directory: Directory of manifests and bundles of this machine.
        secrets: Directory of its secrets.
        datasets: Data sets with names, for prices of egress.
        is_here: Whether the run reads from this machine, with its cache; pods begin with an empty one.
        measures: Whether some objects may be read now, to measure the store.
    """
    usage = read_usage(below(directory, "bundles"))
    prices = {name: dataset.egress_price for dataset in datasets for name in _names(dataset)}
    for name, source in data.items():
        manifest = None if source.version is None else load(below(directory, "manifests", f"{source.version}.json"))
        if manifest is None or source.version is None:
            continue
        size = manifest.num_bytes
        stored, room = 0, size
        if source.way is DataMode.MOUNT:
            stored = size
        elif source.way is DataMode.COPY:
            stored = size if is_here and below(directory, "trees", f"{source.version}.done").exists() else 0
        elif source.way is DataMode.STREAM:
            room = 0
        elif is_here:
            stored = min(size, usage[source.version]["bytes"] if source.version in usage else 0)
            others = sum(record["bytes"] for version, record in usage.items() if version != source.version)
            limit = cache_limit(os.environ)
            room = max(stored, (_half_free(directory) if limit is None else limit) - others)
        missing = size - stored
        price = prices.get(source.dataset or "")
        yield DataForecast(
            name=name,
            version=source.version,
            num_objects=len(manifest.entries),
            num_bytes=size,
            missing_bytes=missing,
            later_bytes=max(0, size - room),
            is_copied_first=source.way is DataMode.COPY,
            store_rate=_measured(source, manifest, secrets) if missing and is_here and measures else None,
            run_rate=source.rate,
            egress=None if price is None else missing / 1e9 * price,
        )


def _names(dataset: Dataset) -> Iterator[str]:
    yield dataset.name
    yield from (f"{dataset.name}@{version}" for version in dataset.versions)


def _half_free(directory: Path) -> int:
    place = next(path for path in (directory, *directory.parents) if path.exists())
    return shutil.disk_usage(place).free // 2


def _measured(source: DataSource, manifest: DataManifest, secrets: Path) -> float | None:
    credentials = None if source.credentials is None else str(below(secrets, source.credentials))
    try:
        store = open_data(source.origin, credentials=credentials, profile=source.profile)
        try:
            return measure_rate(store, manifest.entries)
        finally:
            store.close()
    except RuntimeFault:  # which the run would name
        return None


def measure_rate(
    store: DataStore, entries: Sequence[Entry], clock: Callable[[], float] = time.monotonic
) -> float | None:
    """Return the bytes a second that a store serves to many requests at a time, by at most 64 MB in about 1.5 s.

    Raises:
        RuntimeFault: It cannot be read.
    """

    def parts() -> Iterator[tuple[Entry, int]]:
        for entry in entries:
            yield from ((entry, start) for start in range(0, entry.size, PART_BYTES))

    begin = clock()

    def read(part: tuple[Entry, int]) -> tuple[int, float]:
        entry, start = part
        if clock() - begin > PROBE_S:
            return 0, begin
        content = store.get(entry, start, min(entry.size, start + PART_BYTES))
        return len(content), clock()

    with ThreadPoolExecutor(PROBE_THREADS) as threads:
        done = list(threads.map(read, islice(parts(), PROBE_BYTES // PART_BYTES)))
    size, end = sum(size for size, _ in done), max((at for _, at in done), default=begin)
    return size / (end - begin) if size and end > begin else None
