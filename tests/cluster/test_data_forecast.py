"""Forecasts of data are compared with the reading itself, from a store that serves so many bytes a second."""

import threading
import time
from pathlib import Path

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
    """Files that are served at a rate in all, whoever reads them, and that count their bytes."""

    lock = threading.Lock()
    free_at = 0.0
    num_bytes = 0

    def get(self, entry: Entry, start: int, stop: int) -> bytes:
        with SlowStore.lock:
            SlowStore.num_bytes += stop - start
            SlowStore.free_at = max(time.monotonic(), SlowStore.free_at) + (stop - start) / RATE
            until = SlowStore.free_at
        time.sleep(max(0.0, until - time.monotonic()))
        return super().get(entry, start, stop)


@pytest.fixture(autouse=True)
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    SlowStore.free_at, SlowStore.num_bytes = 0.0, 0
    for module in (reader, data_forecast):
        monkeypatch.setattr(module, "open_data", lambda url, credentials, profile: SlowStore(url))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(200, 60_000), (20, 600_000), (4, 3_000_000)])
def test_bytes_are_those_that_are_read_and_the_time_is_near(count: int, size: int, tmp_path: Path) -> None:
    root = tmp_path / "files"
    root.mkdir()
    for number in range(count):
        (root / f"{number}.bin").write_bytes(bytes([number % 256]) * size)
    manifest = make(FolderStore(str(root)).entries(), None, str(root))
    directory = tmp_path / "data"
    save(manifest, directory / "manifests" / f"{manifest.version}.json")
    source = DataSource(origin=str(root), mode=DataMode.CACHE, version=manifest.version, rate=2 * RATE)
    (forecast,) = forecast_data({"train": source}, directory, tmp_path)
    assert forecast.missing_bytes == count * size
    first_s, later_s = forecast.epoch_s
    assert first_s is not None
    assert later_s == pytest.approx(count * size / (2 * RATE))
    SlowStore.num_bytes = 0
    begin = time.monotonic()
    data = Data(DataSet(url=str(root), mode="cache", version=manifest.version, directory=directory))
    for _ in data.batches(8):
        pass
    took_s = time.monotonic() - begin
    data.close()
    print(
        f"{count} objects of {size} B: {SlowStore.num_bytes / forecast.missing_bytes:.4f} of the bytes, "
        f"{first_s / took_s:.3f} of the time"
    )
    assert SlowStore.num_bytes == pytest.approx(forecast.missing_bytes, rel=0.01)
    assert first_s == pytest.approx(took_s, rel=0.35)
    first, later = forecast.busy
    assert first == pytest.approx(0.5, rel=0.35)
    assert later == pytest.approx(1.0)
    (warm,) = forecast_data({"train": source}, directory, tmp_path)
    assert (warm.missing_bytes, warm.later_bytes) == (0, 0)
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
