"""Stores the Datasets of files under their names, and keeps the versions that were pushed since. See decision 280."""

import os
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.client import ClusterClient
from fairlead.errors import Conflict, InvalidSpec
from fairlead.runtime.data.reader import Data, DataSet
from fairlead.runtime.data.sources import cache_limit
from fairlead.runtime.paths import below
from fairlead.specs.dataset import NO_PRELOAD, Dataset, DatasetVersion
from fairlead.specs.training import DEFAULT_TEAM


def apply_dataset(cluster: ClusterClient, dataset: Dataset, base: Path) -> tuple[str, Dataset]:
    """Store a data set; return `applied`, `changed` or `none`, and the stored one.

    Versions that are not in the file stay, and so do hashes that it leaves out: ``fairlead data push`` writes both.

    Args:
        base: Directory that relative paths start from.

    Raises:
        Conflict: The cluster cannot honour a key.
        InvalidSpec: A path is not one of the cluster.
    """
    namespace = getattr(cluster, "namespace", None)
    if cluster.has_containers and dataset.preload:
        raise Conflict(f"{dataset.name}: preload: {NO_PRELOAD}.")
    if namespace is not None and dataset.team == DEFAULT_TEAM:
        dataset = replace(dataset, team=namespace)
    dataset = replace(
        dataset,
        origin=_place(cluster, dataset, dataset.origin, base),
        versions={
            name: replace(version, origin=version.origin and _place(cluster, dataset, version.origin, base))
            for name, version in dataset.versions.items()
        },
    )
    before = next((known for known in cluster.datasets(dataset.team) if str(known) == str(dataset)), None)
    if before is not None:
        dataset = replace(dataset, versions=_merged(before, dataset))
    if dataset == before:
        return "none", dataset
    cluster.store_dataset(dataset, before)
    return "applied" if before is None else "changed", dataset


def preload(dataset: Dataset, directory: Path, secrets: Path) -> int:
    """Fetch the newest version into the cache of this machine; return the bytes that it then has of it.

    Args:
        directory: Directory of manifests and bundles.
        secrets: Directory of the secrets of this machine.

    Raises:
        RuntimeFault: It cannot be read.
    """
    source = dataset.source()
    secret = None if source.credentials is None else str(below(secrets, source.credentials))
    data = Data(
        DataSet(
            url=source.origin,
            mode="cache",
            version=source.version,
            include=source.include,
            credentials=secret,
            profile=source.profile,
            directory=directory,
            limit=cache_limit(os.environ),
        )
    )
    try:
        return data.warm()
    finally:
        data.close()


def _place(cluster: ClusterClient, dataset: Dataset, origin: str, base: Path) -> str:
    """Return a URL as it is, and a path of this machine as an absolute one."""
    if "://" in origin:
        return origin
    if cluster.has_containers:
        raise InvalidSpec(
            (
                f"{dataset.name}: from: {origin} is a path of this machine, which pods do not have. Put the files into "
                "a store (s3://, gs://, az://) or on a claim (pvc://CLAIM/PATH).",
            )
        )
    return os.path.normpath(base.absolute() / Path(origin).expanduser())


def _merged(before: Dataset, dataset: Dataset) -> dict[str, DatasetVersion]:
    merged = dict(before.versions)
    for name, version in dataset.versions.items():
        known = merged.get(name)
        digest = known.version if known is not None and known.origin == version.origin else None
        merged[name] = replace(version, version=version.version or digest)
    return merged
