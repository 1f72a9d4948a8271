"""Faults of nodes as the detectors of others report them, by name: conditions and taints, and the cause of each. Pure.

Conditions that leave programs running, such as restarts of the kubelet, are not in the tables, nor are those that a
program brings about: XIDs of ``PROGRAM_XIDS`` (https://docs.nvidia.com/deploy/xid-errors/, user application errors)
are no faults. An XID without a known number makes runs leave, but is charged to nobody.

See decision 249.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any

from fairlead.frozen import dataclass
from fairlead.state.node_health import PROGRAM_XIDS, FailureCause, NodeFault
from fairlead.state.snapshot import Taint

XID, ECC, NETWORK, HEAT, SYSTEM = (
    FailureCause.XID, FailureCause.ECC, FailureCause.NETWORK, FailureCause.HEAT, FailureCause.SYSTEM
)  # fmt: skip
MOST_FAULTS = 8
MOST_MESSAGE, MOST_REASON = 200, 200
"""Characters of a detector's message, and of an administrator's reason, that are held."""
_XID = re.compile(
    r"(?:errorcode:|\bxid(?: errors?)?[^0-9a-z]{0,24}(?:\(pci:[0-9a-f:.]{1,24}\)[^0-9]{0,8})?)(\d{1,3})\b(?![:.])",
    re.IGNORECASE,
)
_XID_REASON = re.compile(r"XID(\d{1,3})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetector:
    """A program that watches nodes, and what it reports.

    Attributes:
        source: The place where its names are documented.
        conditions: The cause of each type of condition; None for a node that is about to be taken away.
        bad: The status that means a fault.
        by_reason: The cause by the beginning of the condition's reason, for types that have several; any other reason
            of such a type is no fault.
        taints: The cause of each taint, by its key and value.
    """

    name: str
    source: str
    conditions: Mapping[str, FailureCause | None] = field(default_factory=dict)
    bad: str = "True"
    by_reason: Mapping[str, Mapping[str, FailureCause]] = field(default_factory=dict)
    taints: Mapping[tuple[str, str], FailureCause] = field(default_factory=dict)


DETECTORS = (
    NodeDetector(
        name="node-problem-detector",  # of GKE too: cloud.google.com/kubernetes-engine/docs/how-to/node-auto-repair
        source="https://github.com/kubernetes/node-problem-detector/tree/master/config",
        conditions={"KernelDeadlock": SYSTEM, "ReadonlyFilesystem": SYSTEM, "CorruptDockerOverlay2": SYSTEM},
    ),
    NodeDetector(
        name="NVSentinel",
        source="https://docs.nvidia.com/nvsentinel/getting-started/integrations",
        conditions={
            "SysLogsXIDError": XID,
            "SysLogsGPUFallenOff": XID,
            "SysLogsSXIDError": NETWORK,
            "SysLogsNICDriverError": NETWORK,
            "GpuXidError": XID,
            "GpuAllWatch": XID,
            "GpuMemWatch": ECC,
            "GpuNvlinkWatch": NETWORK,
            "GpuNvswitchFatalWatch": NETWORK,
            "GpuPcieWatch": SYSTEM,
            "GpuInforomWatch": SYSTEM,
            "GpuDriverWatch": SYSTEM,
            "GpuThermalWatch": HEAT,
            "GpuPowerWatch": HEAT,
            "InfiniBandStateCheck": NETWORK,
            "EthernetStateCheck": NETWORK,
        },
        taints={("AggregatedNodeHealth", "False"): SYSTEM},
    ),
    NodeDetector(
        name="the EKS node monitoring agent",
        source="https://docs.aws.amazon.com/eks/latest/userguide/node-health.html",
        bad="False",
        by_reason={
            "AcceleratedHardwareReady": {
                "NvidiaXID": XID,
                "NvidiaDoubleBitError": ECC,
                "NeuronHBMUncorrectableError": ECC,
                "NeuronSRAMUncorrectableError": ECC,
                "NeuronNCUncorrectableError": ECC,
                "NvidiaNVLinkError": NETWORK,
                "NvidiaFabricError": NETWORK,
                "FabricManagerNotRunning": NETWORK,
                "NvidiaDeviceCountMismatch": SYSTEM,
                "DCGMHealthCodeFatal": SYSTEM,
                "DCGMDiagnosticFailure": SYSTEM,
                "NeuronDMAError": SYSTEM,
            },
            "NetworkingReady": {"InterfaceNot": NETWORK, "MissingLoopbackInterface": NETWORK},
        },
    ),
    NodeDetector(
        name="AKS",
        source="https://learn.microsoft.com/azure/aks/node-problem-detector",
        conditions={
            "XIDErrors": XID,
            "GPUMissing": SYSTEM,
            "NVLinkStatusInactive": NETWORK,
            "IBLinkFlapping": NETWORK,
            "FilesystemCorruptionProblem": SYSTEM,
            "VMEventScheduled": None,
        },
    ),
    NodeDetector(
        name="GCM",
        source="https://github.com/facebookresearch/gcm/tree/main/deploy/helm/gcm",
        conditions={
            "XidErrorsProblem": XID,
            "SmiEccProblem": ECC,
            "SmiDisconnectedProblem": SYSTEM,
            "DcgmiNvlinkStatusProblem": NETWORK,
            "DcgmiDiagProblem": SYSTEM,
        },
    ),
)
_BY_TYPE = {type_: detector for detector in DETECTORS for type_ in (*detector.conditions, *detector.by_reason)}
_BY_TAINT = {taint: detector for detector in DETECTORS for taint in detector.taints}


def faults_of(conditions: Iterable[Mapping[str, Any]], taints: Iterable[Taint]) -> tuple[NodeFault, ...]:
    """Return the faults of a node by its conditions and taints, at most ``MOST_FAULTS``, the oldest first."""
    faults = [*_of_conditions(conditions), *_of_taints(taints)]
    return tuple(sorted(faults, key=lambda fault: (fault.since or math.inf, fault.name))[:MOST_FAULTS])


def unix_seconds(text: object) -> float:
    """Return the Unix seconds that an annotation holds; 0 for none, or for what is no such time."""
    return float(text) if isinstance(text, str) and re.fullmatch(r"\d{1,11}(\.\d{1,6})?", text) else 0.0


def _of_conditions(conditions: Iterable[Mapping[str, Any]]) -> Iterator[NodeFault]:
    for condition in conditions:
        type_ = str(condition.get("type"))
        detector = _BY_TYPE.get(type_)
        if detector is None or condition.get("status") != detector.bad:
            continue
        reason, message = str(condition.get("reason") or "")[:100], str(condition.get("message") or "")[:1000]
        cause = detector.conditions.get(type_)
        if type_ in detector.by_reason:
            causes = detector.by_reason[type_].items()
            cause = next((cause for beginning, cause in causes if reason.startswith(beginning)), None)
            if cause is None:
                continue
        numbers = _xids(reason, message) if cause is XID else frozenset()
        if numbers and numbers <= PROGRAM_XIDS:
            continue
        names_number = "XID" in type_.upper() or reason.startswith("NvidiaXID")
        yield NodeFault(
            name=type_,
            detector=detector.name,
            cause=cause,
            since=_moment(condition.get("lastTransitionTime")),
            message=" ".join((message or reason).split())[:MOST_MESSAGE],
            is_certain=cause is not None and (bool(numbers) or not names_number),
        )


def _of_taints(taints: Iterable[Taint]) -> Iterator[NodeFault]:
    for taint in taints:
        detector = _BY_TAINT.get((taint.key, taint.value))
        if detector is not None:
            # Conditions tell the cause and since when; the taint alone says that the node is bad.
            yield NodeFault(
                name=f"taint {taint.key}", detector=detector.name, cause=detector.taints[taint.key, taint.value]
            )


def _moment(text: object) -> float | None:
    """Return a time of the API server in Unix seconds; None if there is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except ValueError:
        return None


def _xids(reason: str, message: str) -> frozenset[int]:
    """Return the numbers of XIDs that a condition names."""
    return frozenset(map(int, (*_XID_REASON.findall(reason), *_XID.findall(message))))
