"""Data sets that have names, as objects of a namespace, with the user's own rights.

Those that other teams share are in a ConfigMap, which the operator writes into the namespace of each team.
"""

import contextlib
from collections.abc import Iterator

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.shared_datasets import SHARED_DATASETS, read_shared
from fairlead.cluster.kubernetes.manifests.spec_objects import merge_patch, read_object, write_object
from fairlead.cluster.kubernetes.names import segment
from fairlead.errors import InvalidSpec, NotFound
from fairlead.specs.dataset import Dataset


def list_datasets(client: Client, namespace: str) -> Iterator[Dataset]:
    """Yield the data sets of a namespace, then those that are shared with it; none on a cluster without the kind."""
    try:
        for content in client.items(objects_path(Dataset.kind, namespace)):
            with contextlib.suppress(InvalidSpec):  # of a later version, or written before a rule
                dataset = read_object(content)
                assert isinstance(dataset, Dataset)
                yield dataset
    except ApiError as error:
        if error.status != 404:
            raise
    try:
        shared = client.get(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{SHARED_DATASETS}")
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return
    yield from read_shared(shared)


def write_dataset(client: Client, dataset: Dataset, before: Dataset | None) -> None:
    """Create a data set, or change what differs from before."""
    content = write_object(dataset)
    if before is None:
        client.create(objects_path(dataset.kind, dataset.team), content)
    else:
        patch = {"spec": merge_patch(write_object(before)["spec"], content["spec"])}
        client.merge(objects_path(dataset.kind, dataset.team, dataset.name), patch)


def delete_dataset(client: Client, dataset: Dataset) -> None:
    """Delete the object of a data set; the data stays where it is.

    Raises:
        NotFound: It was deleted meanwhile.
    """
    try:
        client.delete(objects_path(dataset.kind, dataset.team, dataset.name))
    except ApiError as error:
        if error.status != 404:
            raise
        raise NotFound(f"The Dataset {dataset.name} of team {dataset.team} is not there any more.") from error
