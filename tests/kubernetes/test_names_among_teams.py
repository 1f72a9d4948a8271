"""A name without a team is one of the client's namespace; where else there is one is told to those who may know."""

from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.errors import ClusterError, NotFound
from tests.kubernetes.operating import gang

pytestmark = pytest.mark.kubernetes

NAME = "among-teams"


def test_a_run_of_another_team_is_told_and_found_with_its_team(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    run = cluster.submit(gang(namespace, NAME, nodes=1))
    person = UserClient(Client(access), namespace="default")
    with pytest.raises(NotFound) as told:
        person.find(NAME)
    assert str(told.value) == (
        f"There is no run named {NAME!r} in the namespace 'default', which is looked at without a team; "
        f"there is {namespace}/{NAME}. Give it with its team."
    )
    assert person.find(NAME, namespace).uid == run.uid
    assert person.get(run.uid).spec.team == namespace
    with pytest.raises(NotFound, match=r"There is no run named 'among-teams' in the namespace 'kube-public'\. Known"):
        person.find(NAME, "kube-public")


def test_who_may_read_one_namespace_is_told_of_no_other(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    cluster.submit(gang(namespace, NAME, nodes=1))
    reader = {"kind": "User", "name": "among-readers", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "fairlead-viewer", "apiGroup": "rbac.authorization.k8s.io"}
    cluster.client.create(
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        {"metadata": {"name": f"readers-of-{namespace}"}, "subjects": [reader], "roleRef": role},
    )
    own = replace(access, impersonate=(("Impersonate-User", "among-readers"),))
    person = UserClient(Client(own), namespace="default")
    with pytest.raises(NotFound, match=r"in the namespace 'default'\. (Known|Did you mean)") as told:
        person.find(NAME)
    assert namespace not in str(told.value)
    with pytest.raises(ClusterError, match="may not look at runs in the namespace"):
        person.find(NAME, namespace)
