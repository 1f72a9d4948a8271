"""The use that a run made of its GPUs: told by PyTorch in each rank, added up by device."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairlead.runtime import gpu_peak

GIB = 1 << 30


def torch_with(*peaks: tuple[str, int], initialized: bool = True) -> SimpleNamespace:
    """A torch of a process that sees these devices and has used so much of each."""
    return SimpleNamespace(cuda=SimpleNamespace(
        is_initialized=lambda: initialized,
        device_count=lambda: len(peaks),
        max_memory_reserved=lambda index: peaks[index][1],
        get_device_properties=lambda index: SimpleNamespace(uuid=peaks[index][0]),
    ))  # fmt: skip


def test_ranks_on_one_device_are_added_up_and_the_device_that_is_used_most_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with(("GPU-a", 2 * GIB), ("GPU-b", 5 * GIB), ("GPU-c", 0)))
    gpu_peak.record(str(tmp_path), 0)
    monkeypatch.setitem(sys.modules, "torch", torch_with(("GPU-a", 3 * GIB)))
    gpu_peak.record(str(tmp_path), 1)
    assert json.loads((tmp_path / "gpu-memory-0.json").read_text()) == {"GPU-a": 3 * GIB, "GPU-b": 6 * GIB}
    assert gpu_peak.of_pod(str(tmp_path)) == 7 * GIB


def test_without_a_gpu_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    gpu_peak.record(str(tmp_path), 0)
    monkeypatch.setitem(sys.modules, "torch", torch_with(("GPU-a", GIB), initialized=False))
    gpu_peak.record(str(tmp_path), 0)
    assert list(tmp_path.iterdir()) == []
    assert gpu_peak.of_pod(str(tmp_path)) is None
