"""Parses the metrics of DCGM's exporter: Prometheus' text format, one line for each metric of each device."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from fairlead.cluster.usages import GpuUsage
from fairlead.frozen import dataclass

# The labels set by the GPU operator, the exporter's own manifests and its chart.
EXPORTER_LABELS = (
    {"app": "nvidia-dcgm-exporter"},
    {"app": "dcgm-exporter"},
    {"app.kubernetes.io/name": "dcgm-exporter"},
)
EXPORTERS = "app in (nvidia-dcgm-exporter, dcgm-exporter)", "app.kubernetes.io/name=dcgm-exporter"
EXPORTER_PORT = 9400
AT_ONCE = 8
MIB = 2**20
_SAMPLE = re.compile(r"(\w+)\{([^}]*)\}\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# The engine's active share also works for parts of a GPU, but not every exporter is configured to export it.
ENGINE_ACTIVE, UTILIZATION, MEMORY_MIB = (
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
)
POWER_W, TEMPERATURE_C = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """One line of an exposition."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(exposition: str) -> Iterator[MetricSample]:
    """Yield the lines of Prometheus' text format that have labels and a finite value; other lines are skipped."""
    for line in exposition.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if not math.isfinite(value):
            continue  # Prometheus' mark of a value that is not known
        yield MetricSample(name=match[1], labels=dict(_LABEL.findall(match[2])), value=value)


def devices_of(readings: Iterable[MetricSample]) -> dict[str, GpuUsage]:
    """Return devices and parts of devices by UUID; a part's key ends with its instance number."""
    values: dict[tuple[str, str], dict[str, float]] = {}
    for sample in readings:
        key = device_name(sample.labels), model_of(sample.labels)
        if "UUID" in sample.labels:
            values.setdefault(key, {})[sample.name] = sample.value
    return {name: usage_of(name, model, metrics) for (name, model), metrics in values.items()}


def device_name(labels: Mapping[str, str]) -> str:
    """Return the name of the device that a line describes."""
    uuid, part = labels.get("UUID") or f"gpu {labels.get('gpu', '?')}", labels.get("GPU_I_ID")
    return f"{uuid}/{part}" if part else uuid


def model_of(labels: Mapping[str, str]) -> str:
    """Return the model of the device that a line describes."""
    return labels.get("modelName", "").removeprefix("NVIDIA ")


def usage_of(name: str, model: str, values: Mapping[str, float]) -> GpuUsage:
    """Return the usage of a device from the values of its metrics."""
    busy = values.get(ENGINE_ACTIVE)
    if busy is None and UTILIZATION in values:
        busy = values[UTILIZATION] / 100
    memory = values.get(MEMORY_MIB)
    return GpuUsage(
        name=name,
        model=model,
        busy=busy,
        memory_bytes=None if memory is None else int(memory * MIB),
        power_watts=values.get(POWER_W),
        temperature_celsius=values.get(TEMPERATURE_C),
    )
