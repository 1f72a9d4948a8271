"""Reads the state of this machine's GPUs by NVML, which stays open as long as the reader."""

import os
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from fairlead.cluster.local.machine import DRIVERS
from fairlead.cluster.usages import GpuUsage
from fairlead.state.node_health import PROGRAM_XIDS, FailureCause

MOST_EVENTS = 64  # of NVML that are read at once


class NvmlReader:
    """A reader that opens NVML on first use. An instance belongs to one thread.

    Attributes:
        problem: The reason why NVML does not answer; None while it does, or before first use.
    """

    def __init__(self) -> None:
        self._is_open = False
        self.problem: str | None = None
        self._uncorrected: dict[str, int] = {}
        self._watched = set[str]()
        self._events: Any = None

    def faults(self, uuids: Collection[str]) -> frozenset[FailureCause]:
        """Return what devices reported since the last call: errors of memory that ECC could not correct, and XIDs.

        The first call for a device only begins to watch it. XIDs that programs bring about are none.
        """
        causes = set[FailureCause]()
        for uuid in uuids:
            handle = self._handle(uuid)
            if handle is not None and self._has_new_errors(uuid, handle):
                causes.add(FailureCause.ECC)
        if self._events is not None:
            import pynvml

            for _ in range(MOST_EVENTS):
                event = self._ask(lambda: pynvml.nvmlEventSetWait_v2(self._events, 0))
                if event is None:
                    break
                if event.eventData not in PROGRAM_XIDS:
                    causes.add(FailureCause.XID)
        return frozenset(causes)

    def _has_new_errors(self, uuid: str, handle: Any) -> bool:
        import pynvml

        if uuid not in self._watched:
            self._watched.add(uuid)
            self._events = self._events or self._ask(pynvml.nvmlEventSetCreate)
            if self._events is not None:
                self._ask(
                    lambda: pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
                )
        kind, span = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        count = self._ask(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, span))
        if count is None:
            return False
        before, self._uncorrected[uuid] = self._uncorrected.get(uuid, count), count
        return bool(count > before)

    def read(self, uuid: str) -> GpuUsage:
        """Read one device; values that it does not report, as parts of a device do not, are None."""
        handle = self._handle(uuid)
        if handle is None:
            return GpuUsage(name=uuid)
        import pynvml

        name = self._ask(lambda: pynvml.nvmlDeviceGetName(handle))
        memory = self._ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        power = self._ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        heat = self._ask(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        return GpuUsage(
            name=uuid,
            model="" if name is None else _text(name).removeprefix("NVIDIA "),
            busy=self._ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            memory_bytes=None if memory is None else int(memory),
            power_watts=power,
            temperature_celsius=None if heat is None else float(heat),
        )

    def read_part(self, uuid: str, part: float, pids: Collection[int], since: float) -> GpuUsage:
        """Read a part of a device that several runs share: what some processes do with it, and its part of the power.

        Args:
            part: The share of the device; at 1 the whole device is read.
            since: Unix time from which samples of computing count.
        """
        usage = self.read(uuid)
        if part >= 1 or usage.busy is None:
            return usage
        busy, power = self.busy_by(uuid, pids, since), usage.power_watts
        return replace(
            usage,
            busy=None if busy is None else min(1.0, busy / part),
            memory_bytes=self.memory_by(uuid, pids),
            power_watts=None if power is None else power * part,
        )

    def pids(self, uuid: str) -> list[int]:
        """Return the processes that compute on a device, of any user; none if it does not tell."""
        handle = self._handle(uuid)
        if handle is None:
            return []
        import pynvml

        processes = self._ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return [int(process.pid) for process in processes or ()]

    def memory_by(self, uuid: str, pids: Collection[int]) -> int | None:
        """Return the bytes of a device that some processes hold; None if the device does not distinguish processes."""
        handle = self._handle(uuid)
        if handle is None:
            return None
        import pynvml

        processes = self._ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
        own = None if processes is None else [process.usedGpuMemory for process in processes if process.pid in pids]
        return None if own is None or None in own else sum(own)

    def busy_by(self, uuid: str, pids: Collection[int], since: float) -> float | None:
        """Return the share of a device's time in which some processes computed, for devices shared by several runs.

        None if the device does not distinguish processes, as older ones do not.

        Args:
            since: Unix time from which samples count.
        """
        handle = self._handle(uuid)
        if handle is None:
            return None
        import pynvml

        since_us = round(since * 1e6)
        samples = self._ask(lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since_us))
        if samples is None:
            return None
        newest: dict[int, Any] = {}
        for sample in samples:
            if sample.pid in pids and (sample.pid not in newest or newest[sample.pid].timeStamp < sample.timeStamp):
                newest[sample.pid] = sample
        return float(min(1.0, sum(sample.smUtil for sample in newest.values()) / 100))

    def close(self) -> None:
        """Close NVML."""
        if self._is_open:
            import pynvml

            self._is_open = False
            if self._events is not None:
                self._ask(lambda: pynvml.nvmlEventSetFree(self._events))
                self._events = None
            self._ask(pynvml.nvmlShutdown)

    def _handle(self, uuid: str) -> Any:
        if not self._opened():
            return None
        import pynvml

        return self._ask(lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid))

    def _opened(self) -> bool:
        if self._is_open or self.problem is not None:
            return self._is_open
        if sys.platform == "linux" and not any(map(os.path.exists, DRIVERS)):
            self.problem = "this machine has no driver of NVIDIA's"
            return False
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.problem = f"NVML says {error}"
            return False
        self._is_open = True
        return True

    def _ask(self, question: Callable[[], Any]) -> Any:
        import pynvml

        try:
            return question()
        except pynvml.NVMLError:  # a part of a GPU, or a device that does not measure this value
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
