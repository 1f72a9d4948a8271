"""Deletes a placeholder, a run's or a pool's."""

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.names import segment


def delete_placeholder(view: Informers, pod: PodObject) -> None:
    """Delete a placeholder at once; it does nothing that needs a grace."""
    namespace, _, name = pod.key.partition("/")
    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
    try:
        view.client.delete(f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}", options)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
    view.pods.drop(pod.key, pod.version)
