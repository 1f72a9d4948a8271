"""Publishes the data sets that a team shares to the namespaces of the teams that may use them.

Members of these have no right to read Datasets of another namespace, so each namespace gets a ConfigMap with those that
are for it. It is written when it has changed, and looked at once a minute.
"""

import json
import logging
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.client import BUSY, ApiError, Client
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.shared_datasets import SHARED_DATASETS, render_shared
from fairlead.cluster.kubernetes.manifests.spec_objects import read_object
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.errors import InvalidSpec
from fairlead.specs.dataset import Dataset

log = logging.getLogger(__name__)

QUEUE = "shared-datasets"
# A namespace that is gone or being deleted, or an object that is never accepted.
REFUSED = frozenset({400, 403, 404, 413, 422})


class DatasetPublisher(Controller):
    """Writes the shared data sets of all teams.

    Args:
        may_act: Returns whether this process still leads; asked before each request.
        every_s: Seconds between two looks.
    """

    name = "shared data sets"

    def __init__(self, client: Client, isolation: Isolation, *, may_act: Callable[[], bool], every_s: float) -> None:
        self._client = client
        self._isolation = isolation
        self._may_act = may_act
        self._every_s = every_s
        self._next_at = 0.0
        self._written: dict[str, bytes] = {}

    def act(self, turn: Turn) -> None:
        """Queue a look, if it is time."""
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + self._every_s
        teams = frozenset(team.name for team in turn.snapshot.teams)
        turn.agent.submit(QUEUE, f"publish data sets at {turn.now}", partial(self.publish, teams))

    def publish(self, teams: frozenset[str]) -> None:
        """Write what has changed since the last time.

        Args:
            teams: Names of the teams, whose namespaces alone are written to.
        """
        shared: dict[str, list[Dataset]] = {namespace: [] for namespace in self._written if namespace in teams}
        for dataset in self._datasets():
            for team in teams & set(dataset.share):
                shared.setdefault(team, []).append(dataset)
        for namespace, datasets in shared.items():
            if not self._may_act():
                return
            with self._isolation.of(f"data sets shared with {namespace}"):
                self._write(namespace, datasets)

    def _datasets(self) -> list[Dataset]:
        datasets = []
        try:
            for content in self._client.items(objects_path(Dataset.kind)):
                try:
                    dataset = read_object(content)
                except InvalidSpec:
                    continue  # of a later version
                # The owner is the namespace, whatever the object says.
                if isinstance(dataset, Dataset) and dataset.team == content["metadata"]["namespace"]:
                    datasets.append(dataset)
        except ApiError as error:
            if error.status != 404:  # installed by an older version, which has no such kind
                raise
        return datasets

    def _write(self, namespace: str, datasets: list[Dataset]) -> None:
        content = render_shared(namespace, datasets)
        digest = sha256(json.dumps(content["data"]).encode()).digest()
        if self._written.get(namespace) == digest:
            return
        path = f"/api/v1/namespaces/{segment(namespace)}/configmaps/{SHARED_DATASETS}"
        try:
            self._client.apply(path, content, retried=BUSY)
        except ApiError as error:
            if error.status not in REFUSED:
                raise
            log.info("the data sets shared with %s are not published: %s", namespace, error)
        self._written[namespace] = digest
