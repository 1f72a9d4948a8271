"""Writes metrics as a file that TensorBoard reads, without TensorBoard's package.

The file is a list of records. Each has its length and its bytes, each followed by a masked CRC-32C. The bytes are an
``Event`` of ``tensorflow/core/util/event.proto`` with one ``Summary.Value`` for each metric.
"""

from __future__ import annotations

import os
import struct
import time

from fairlead.runtime.experiment_tracking.choice import TENSORBOARD_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlead.runtime.experiment_tracking.target import About, MetricPoint

VERSION = "brain.Event:2"


class TensorBoardTarget:
    """A directory for one run below ``TENSORBOARD_LOGGING_DIR``; each attempt writes a separate file."""

    def __init__(self, env: Mapping[str, str], about: About) -> None:
        self._directory = os.path.join(
            os.path.abspath(os.path.expanduser(env[TENSORBOARD_VARIABLE])), f"{about.name}-{about.uid}"
        )
        self._path = os.path.join(self._directory, f"events.out.tfevents.{time.time():.0f}.fairlead.{os.getpid()}")

    def hurry(self, timeout_s: float) -> None:
        """Do nothing: writing a file does not wait for an answer."""

    def begin(self) -> str:
        """Create the file and return its directory."""
        os.makedirs(self._directory, exist_ok=True)
        self._append(_record(_event(time.time(), None, version=VERSION)))
        return self._directory

    def send(self, points: Sequence[MetricPoint]) -> None:
        """Append points to the file."""
        self._append(b"".join(_record(_event(at, step, values)) for at, step, values in points))

    def end(self, status: str | None) -> None:
        """Do nothing: the file format has no end record."""

    def _append(self, data: bytes) -> None:
        with open(self._path, "ab", buffering=0) as file:
            size = file.tell()
            if file.write(data) != len(data):
                file.truncate(size)
                raise OSError(f"{self._path}: no space left")


def _event(at: float, step: int | None, values: Mapping[str, float] | None = None, version: str | None = None) -> bytes:
    """Return an encoded ``Event``: wall_time = 1, step = 2, file_version = 3, summary = 5."""
    parts = [b"\x09", struct.pack("<d", at)]
    if step:
        parts += [b"\x10", _varint(step)]
    if version is not None:
        parts.append(_field(3, version.encode()))
    if values:
        # Summary.value = 1, each with tag = 1 and simple_value = 2.
        scalars = (_field(1, name.encode()) + b"\x15" + _float32(value) for name, value in values.items())
        parts.append(_field(5, b"".join(_field(1, one) for one in scalars)))
    return b"".join(parts)


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    checksum = _crc32c(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _table()


def _crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli), computed one byte at a time, as records are small."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = _TABLE[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    return checksum ^ 0xFFFFFFFF
