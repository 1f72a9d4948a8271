"""Forecasts of data are compared with the reading itself, from a store that serves so many bytes a second."""

import io
import random
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairlead.control import data_forecast
from fairlead.control.data_forecast import DataForecast, forecast_data
from fairlead.runtime.data import reader
from fairlead.runtime.data.manifest import Entry, make, save
from fairlead.runtime.data.reader import Data, DataSet
from fairlead.runtime.data.stores import FolderStore
from fairlead.specs.data import DataMode, DataSource
from fairlead.specs.dataset import Dataset

RATE = 4_000_000


class SlowStore(FolderStore):
    """Files that are served at a rate in all, whoever reads them, after a latency, and that count their bytes."""

    lock = threading.Lock()
    free_at = 0.0
    num_bytes = 0
    rate = RATE
    latency_s = 0.0

    def get(self, entry: Entry, start: int, stop: int) -> bytes:
        with SlowStore.lock:
            SlowStore.num_bytes += stop - start
            SlowStore.free_at = max(time.monotonic(), SlowStore.free_at) + (stop - start) / SlowStore.rate
            until = SlowStore.free_at + SlowStore.latency_s
        time.sleep(max(0.0, until - time.monotonic()))
        return super().get(entry, start, stop)


@pytest.fixture(autouse=True)
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    SlowStore.free_at, SlowStore.num_bytes = 0.0, 0
    SlowStore.rate, SlowStore.latency_s = RATE, 0.0
    for module in (reader, data_forecast):
        monkeypatch.setattr(module, "open_data", lambda url, credentials, profile: SlowStore(url))


def plain(root: Path, count: int, size: int, end: str = "bin") -> None:
    """Files of one size."""
    for number in range(count):
        (root / f"{number}.{end}").write_bytes(bytes([number % 256]) * size)


def uneven(root: Path) -> None:
    """Files of 1 kB to 1 MB, whose sizes are spread as those of photographs are, in classes."""
    draw = random.Random(1)
    for number in range(120):
        path = root / f"class-{number % 4}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(min(1_000_000, max(1_000, int(draw.lognormvariate(11.2, 0.8))))))


def tar(root: Path) -> None:
    """Shards as WebDataset writes them: samples of two members."""
    for shard in range(4):
        with tarfile.open(root / f"{shard}.tar", "w") as archive:
            for number in range(60):
                for end, size in (("jpg", 48_000), ("cls", 1)):
                    info = tarfile.TarInfo(f"{shard}-{number:04}.{end}")
                    info.size = size
                    archive.addfile(info, io.BytesIO(bytes(size)))


def parquet(root: Path) -> None:
    """Tables of numbers that do not compress, in row groups of about 0.8 MB."""
    arrow: Any = pytest.importorskip("pyarrow")
    writer: Any = pytest.importorskip("pyarrow.parquet")
    draw = random.Random(1)
    for number in range(2):
        table = arrow.table({"x": [draw.randbytes(1000) for _ in range(6000)]})
        writer.write_table(table, root / f"{number}.parquet", row_group_size=800, use_dictionary=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKind:
    """A data set, and how its store serves it."""

    make: Callable[[Path], None]
    mode: DataMode = DataMode.CACHE
    rate: int = RATE
    latency_s: float = 0.0
    ranks: int = 1


KINDS = {
    "many small": DataKind(make=lambda root: plain(root, 200, 60_000)),
    "some": DataKind(make=lambda root: plain(root, 20, 600_000)),
    "few large": DataKind(make=lambda root: plain(root, 4, 3_000_000)),
    "very many very small": DataKind(make=lambda root: plain(root, 2_000, 6_000)),
    "sizes of photographs": DataKind(make=uneven),
    "tar": DataKind(make=tar),
    "parquet": DataKind(make=parquet),
    "mds, whole shards": DataKind(make=lambda root: plain(root, 12, 1_000_000, "mds")),
    "rate of 1 MB/s": DataKind(make=lambda root: plain(root, 60, 60_000), rate=1_000_000),
    "latency of 50 ms": DataKind(make=lambda root: plain(root, 200, 60_000), latency_s=0.05),
    "two ranks": DataKind(make=lambda root: plain(root, 200, 60_000), ranks=2),
    "streamed": DataKind(make=lambda root: plain(root, 200, 60_000), mode=DataMode.STREAM),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_bytes_are_those_that_are_read_and_the_time_is_near(name: str, tmp_path: Path) -> None:
    kind, root = KINDS[name], tmp_path / "files"
    SlowStore.rate, SlowStore.latency_s = kind.rate, kind.latency_s
    root.mkdir()
    kind.make(root)
    manifest = make(FolderStore(str(root)).entries(), None, str(root))
    directory = tmp_path / "data"
    save(manifest, directory / "manifests" / f"{manifest.version}.json")
    source = DataSource(origin=str(root), mode=kind.mode, version=manifest.version, rate=2 * kind.rate)
    (forecast,) = forecast_data({"train": source}, directory, tmp_path)
    assert forecast.missing_bytes == manifest.num_bytes
    first_s, later_s = forecast.epoch_s
    assert first_s is not None
    SlowStore.num_bytes = 0
    begin = time.monotonic()
    described = DataSet(url=str(root), mode=kind.mode, version=manifest.version, directory=directory)
    ranks = [Data(described, rank=rank, world_size=kind.ranks) for rank in range(kind.ranks)]
    with ThreadPoolExecutor(kind.ranks) as threads:
        counts = list(threads.map(lambda data: sum(map(len, data.batches(8))), ranks))
    took_s = time.monotonic() - begin
    for data in ranks:
        data.close()
    print(
        f"{name}: {len(manifest.entries)} objects, {sum(counts)} samples: "
        f"{SlowStore.num_bytes / forecast.missing_bytes:.4f} of the bytes, {first_s / took_s:.3f} of the time"
    )
    assert SlowStore.num_bytes == pytest.approx(forecast.missing_bytes, rel=0.01)
    assert first_s == pytest.approx(took_s, rel=0.35)
    assert forecast.busy[0] == pytest.approx(0.5, rel=0.35)
    if kind.mode is DataMode.STREAM:
        assert forecast.later_bytes == manifest.num_bytes
        return
    assert later_s == pytest.approx(manifest.num_bytes / (2 * kind.rate))
    assert forecast.busy[1] == pytest.approx(1.0)
    (warm,) = forecast_data({"train": source}, directory, tmp_path)
    footers = manifest.num_bytes // 100 if name == "parquet" else 0  # are read by themselves, and in no bundle
    assert warm.missing_bytes <= footers
    assert warm.later_bytes <= footers
    assert warm.busy[0] == pytest.approx(1.0)


def a_forecast(tmp_path: Path, mode: DataMode, *, is_here: bool = True, **fields: float) -> DataForecast:
    (tmp_path / "files").mkdir(exist_ok=True)
    (tmp_path / "files" / "a.bin").write_bytes(b"a" * 1_000_000)
    manifest = make(FolderStore(str(tmp_path / "files")).entries(), None, "files")
    save(manifest, tmp_path / "manifests" / f"{manifest.version}.json")
    dataset = Dataset(name="set", origin=str(tmp_path / "files"), egress_price=fields.get("price"))
    source = DataSource(origin=str(tmp_path / "files"), mode=mode, version=manifest.version, dataset="set")
    (forecast,) = forecast_data({"train": source}, tmp_path, tmp_path, [dataset], is_here=is_here)
    return forecast


def test_each_way_of_reading_takes_its_bytes_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_DATA_CACHE", "400k")
    taken = {mode: ((forecast := a_forecast(tmp_path, mode)).missing_bytes, forecast.later_bytes) for mode in DataMode}
    assert taken == {
        DataMode.MOUNT: (0, 0),
        DataMode.COPY: (1_000_000, 0),
        DataMode.CACHE: (1_000_000, 600_000),
        DataMode.STREAM: (1_000_000, 1_000_000),
    }


def test_a_store_is_measured_only_from_where_the_run_reads(tmp_path: Path) -> None:
    there = a_forecast(tmp_path, DataMode.CACHE, is_here=False, price=90.0)
    assert (there.store_rate, SlowStore.num_bytes) == (None, 0)
    assert str(there) == (
        "data.train: 0.001 GB in 1 object, 0 GB of it here; epoch 1 reads 0.001 GB from the store, $0.09 of egress"
    )
    assert "MB/s, measured now" in str(a_forecast(tmp_path, DataMode.CACHE))
