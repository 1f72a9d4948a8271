"""The ConfigMap with the data sets that other teams share with a namespace, and its reader.

Members may write ConfigMaps of their namespace themselves, so its content is read within bounds, and can only mislead
those who read it there: what it names is read with their own rights to the store.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.cluster.kubernetes.manifests.spec_objects import read_object, write_object
from fairlead.cluster.kubernetes.names import MANAGED_BY, MANAGER
from fairlead.errors import InvalidSpec
from fairlead.specs.dataset import Dataset
from fairlead.untrusted_json import parse_object

SHARED_DATASETS = "fairlead-shared-datasets"
MOST_DATASETS, MOST_OF_TEAM = 500, 100
MOST_BYTES = 900_000
"""Most bytes of all data sets of one namespace; an API server accepts objects of about 1 MiB."""


def render_shared(namespace: str, datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Render the ConfigMap of a namespace.

    Data sets beyond its size are left out, the last by team and name first, and of one team all but a hundred, so that
    none can push the others out.
    """
    data: dict[str, str] = {}
    counts: Counter[str] = Counter()
    size = 0
    for dataset in sorted(datasets, key=lambda dataset: (dataset.team, dataset.name)):
        if len(data) == MOST_DATASETS:
            break
        counts[dataset.team] += 1
        if counts[dataset.team] > MOST_OF_TEAM:
            continue
        content = json.dumps(write_object(dataset), separators=(",", ":"))
        size += len(content)
        if size > MOST_BYTES:
            break
        data[f"{dataset.team}.{dataset.name}"] = content
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": SHARED_DATASETS, "namespace": namespace, "labels": {MANAGED_BY: MANAGER}},
        "data": data,
    }


def read_shared(content: Mapping[str, Any]) -> Iterator[Dataset]:
    """Yield the data sets of the ConfigMap that this version can read."""
    for _, text in sorted((content.get("data") or {}).items())[:MOST_DATASETS]:
        try:
            dataset = read_object(parse_object(text, max_bytes=MOST_BYTES))
        except (InvalidSpec, ValueError):
            continue  # written by somebody else, or by a later version
        if isinstance(dataset, Dataset):
            yield dataset
