"""Values for tests, with defaults for everything that a test does not speak of."""

from typing import Any

from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.specs.training import Training
from fairlead.state.plan import CreatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Status, Workload

UID = "11111111-2222-4333-8444-555555555555"
GIB = 1024**3
SETTINGS = PodSettings(runtime="fairlead-runtime-0123456789ab")


def a_training(**changes: Any) -> Training:
    return Training(**{"name": "train-llama", "run": "python train.py", "team": "research", **changes})


def a_workload(spec: Training | None = None, **changes: Any) -> Workload:
    reason = Reason(code=Code.SUBMITTED, message="submitted")
    status = Status(phase=Phase.PENDING, reason=reason, since=1_000_000.0)
    base: dict[str, Any] = {"uid": UID, "intent": Intent.RUN, "status": status, "version": 1, "created_at": 1_000_000.0}
    return Workload(spec=spec or a_training(), **{**base, **changes})


def a_creation(**changes: Any) -> CreatePod:
    grant = Grant(cpu_milli=4000, memory_bytes=16 * GIB)
    return CreatePod(**{"attempt": 0, "index": 0, "node": "node-a", "grant": grant, **changes})
