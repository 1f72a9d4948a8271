"""Watches of what gateways tell begin once there is one, and wake the operator when they are complete."""

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.operator.pods.gateways import Gateways
from tests.kubernetes.loopback import Listing, client_of, serving
from tests.waiting import PATIENCE_S

GATEWAY = {
    "metadata": {
        "name": "gateway-1", "namespace": names.GATEWAY_NAMESPACE, "uid": "uid-1", "resourceVersion": "1",
        "labels": {"app.kubernetes.io/name": names.GATEWAY}, "creationTimestamp": "2026-11-24T08:00:00Z",
    },
    "spec": {"containers": []},
}  # fmt: skip


def test_a_loop_at_rest_looks_again_when_it_is_known_that_there_are_no_keys_and_no_reports() -> None:
    with serving(Listing().handler()) as url:
        client = client_of(url)
        view = Informers(client)
        gateways = Gateways(client, view)
        gateways.watch()
        assert not gateways.is_known
        view.pods.put(GATEWAY)
        seen = view.epoch
        gateways.watch()
        try:
            for _ in range(2):  # the keys and the reports, in any order
                view.wait(seen, PATIENCE_S)
                assert view.epoch > seen, "nothing is told of lists that are empty"
                seen += 1
            assert gateways.is_known
        finally:
            gateways.stop()
