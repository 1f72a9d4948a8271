"""An operator that does not see the cluster says so on its Lease, and `doctor` repeats it."""

import json
import threading
from typing import Any

import pytest

from fairlead.cluster.kubernetes.client.checkup import _operator
from fairlead.cluster.kubernetes.client.discovery import InstalledOperator
from fairlead.cluster.kubernetes.client.operator_lease import LeaseHolder, holder_of
from fairlead.cluster.kubernetes.names import TROUBLE
from fairlead.cluster.kubernetes.operator.leader_election import Election
from tests.kubernetes.loopback import Answering, client_of, serving
from tests.waiting import until


@pytest.mark.parametrize("version", [None, "1.0"])
def test_doctor_fails_where_the_leader_has_a_trouble(version: str | None) -> None:
    leader = LeaseHolder(
        name="op-1", namespace="fairlead-system", age_s=2.0, lasts_s=15.0, trouble="it cannot read 1 of pods"
    )
    found = InstalledOperator(namespace="fairlead-system", version=version, replicas=1, num_ready=1, leader=leader)
    finding = _operator(found, "prod", "1.0")
    assert not finding.ok
    assert finding.says == "op-1 leads, heard 2 s ago, but it cannot read 1 of pods"
    assert "kubectl --context prod -n fairlead-system logs deploy/fairlead-operator" in str(finding.remedy)


def test_the_trouble_of_the_leader_is_on_its_lease_at_the_next_renewal_and_goes_with_it() -> None:
    lease: dict[str, Any] = {}

    class Leases(Answering):
        def answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if size:
                content = json.loads(self.rfile.read(size))
                version = int((lease.get("metadata") or {}).get("resourceVersion") or 0)
                lease.update({**content, "metadata": {**content["metadata"], "resourceVersion": str(version + 1)}})
            if not lease:
                self.refuse(404, "NotFound")
            else:
                self.reply(200, lease)

    troubles, changed = [""], threading.Event()
    with serving(Leases) as url:
        client = client_of(url)
        election = Election(
            client, namespace="n", name="fairlead-operator", identity="me", annotate=lambda: {TROUBLE: troubles[0]},
            on_change=changed.set, renew_every_s=0.05,
        )  # fmt: skip
        election.start()
        try:
            until(lambda: election.is_leader)
            troubles[0] = "it has not followed /api/v1/pods for 75 s"
            until(lambda: (found := holder_of(client, "n")) is not None and found.trouble == troubles[0])
            troubles[0] = ""
            until(lambda: (found := holder_of(client, "n")) is not None and found.trouble == "")
        finally:
            election.stop()
