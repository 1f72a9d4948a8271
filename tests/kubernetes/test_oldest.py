"""The contract on the oldest Kubernetes that we support; slow, since it takes a control plane of its own."""

from collections.abc import Iterator

import pytest

from fairlead.cluster.kubernetes.manifests.crds import definitions, with_fewer_rules
from tests.kubernetes import test_cluster as newest
from tests.kubernetes.clusters import started
from tests.kubernetes.long import LONG
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.binaries import OLDEST
from tests.kubernetes.testcluster.control_plane import ControlPlane

pytestmark = [LONG, pytest.mark.slow, pytest.mark.kubernetes]

prepared, harness = newest.prepared, newest.harness


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The oldest control plane with our kinds, of which it can bear fewer rules."""
    with started(lambda: ControlPlane(version=OLDEST), request) as plane:
        for each in definitions():
            applied(plane, with_fewer_rules(each))
        await_kinds(plane)
        yield plane


class TestOldestKubernetes(newest.TestKubernetesCluster):
    """Every promise of the port that the newest keeps."""
