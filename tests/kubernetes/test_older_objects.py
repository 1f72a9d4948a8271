"""An object that an older version has written is read as that version meant it, and shown anew."""

from typing import Any

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.informers.informers import trainings_path
from fairlead.cluster.kubernetes.workloads.run_record import RunRecord, state_plain
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase
from tests.builders import status
from tests.kubernetes.operating import gang, operating
from tests.waiting import until


def test_a_run_that_was_pending_because_it_was_suspended_is_suspended(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    run = cluster.submit(gang(namespace))
    path = trainings_path(namespace, "train")
    reason = Reason(code=Code.SUSPENDED, message="suspended on request")
    kept = RunRecord(status=status(Phase.PENDING, reason=reason), intent=Intent.SUSPEND, written=1, writer="older")
    older = {"phase": "Pending", "reason": "Suspended", "message": reason.message, "state": state_plain(kept)}
    cluster.client.merge(f"{path}/status", {"status": older})

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = cluster.client.get(path)["status"]
        return found

    (read,) = (each for each in cluster.workloads() if each.uid == run.uid)
    assert (read.status.phase, read.intent, shown()["phase"]) == (Phase.SUSPENDED, Intent.SUSPEND, "Pending")
    with operating(access, namespace):
        until(lambda: shown()["phase"] == "Suspended")
    true = [each["type"] for each in shown()["conditions"] if each["status"] == "True"]
    assert (true, shown()["reason"]) == (["Suspended"], "Suspended")
