"""A volume that all real nodes reach, as a team's file server would be: a directory of the cluster behind a claim."""

from tests.kubernetes.testcluster.real_nodes import RealCluster


def share(cluster: RealCluster, namespace: str, claim: str) -> None:
    """Make a claim that any pod of the namespace may mount and write to, also on several nodes at once."""
    directory = cluster.home / "volumes" / namespace / claim
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    modes, size = ["ReadWriteMany"], {"storage": "1Gi"}
    everywhere = [{"key": "kubernetes.io/hostname", "operator": "In", "values": cluster.nodes}]
    volume = {
        "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            "local": {"path": str(directory)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": everywhere}]}},
            "accessModes": modes,
            "capacity": size,
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }
    cluster.request("POST", "/api/v1/persistentvolumes", volume)
    wanted = {
        "accessModes": modes,
        "resources": {"requests": size},
        "storageClassName": "",
        "volumeName": f"{namespace}-{claim}",
    }
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    cluster.request("POST", path, {"metadata": {"name": claim}, "spec": wanted})
