"""Records uploads of working directories before they start, so that abandoned ones are found and removed.

The parts of an upload have no owner before their run exists, so the cluster's garbage collector never removes those of
a `run` that was killed. Users may neither list nor delete ConfigMaps, and the operator may not read them at all. So
each upload is an entry of one ConfigMap of the namespace until its run owns the parts. The next `run` in the namespace
reads entries older than an hour and gives their parts an owner that does not exist, upon which the garbage collector
removes them. Archives stored elsewhere are entries too while they are uploaded; those that no run refers to are removed
with the next upload.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.kinds import leaf_kinds, parent_kinds
from fairlead.cluster.kubernetes.manifests.revision_files import read_files
from fairlead.cluster.kubernetes.manifests.workdir import WORKDIR, part_names, stored_digest
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.workloads.workload_api import items_of
from fairlead.specs.keys import API_VERSION

UPLOADS = "fairlead-uploads"
STALE_S = 3600.0
STORED = "-stored"  # suffix of the entry of an archive that is stored elsewhere


class Uploads:
    """The uploads of one namespace; times are Unix seconds."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._maps = f"/api/v1/namespaces/{segment(namespace)}/configmaps"

    def begin(self, annotation: str, now: float) -> str:
        """Record the start of an upload, with a separate field manager, so that it overwrites no other entry.

        Returns the ConfigMap's uid, which identifies this namespace of this cluster.
        """
        metadata = {"name": UPLOADS, "labels": {names.MANAGED_BY: names.MANAGER, names.CONTENT: "uploads"}}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {annotation: f"{now:.0f}"}}
        configmap = self._client.apply(f"{self._maps}/{UPLOADS}", body, manager=f"fairlead-upload-{annotation}")
        return str(configmap["metadata"]["uid"])

    def end(self, annotation: str) -> None:
        """Remove the entry, as its parts have an owner."""
        try:
            self._client.merge(f"{self._maps}/{UPLOADS}", {"data": {annotation: None}})
        except ApiError as error:
            if error.status != 404:
                raise

    def collect(self, now: float) -> None:
        """Handle abandoned uploads: give their parts to the run that refers to them, or have them removed."""
        try:
            noted: Mapping[str, str] = self._client.get(f"{self._maps}/{UPLOADS}").get("data") or {}
        except ApiError as error:
            if error.status in (403, 404):  # a user without the right leaves them to others
                return
            raise
        stale = [annotation for annotation, since in noted.items() if since.isdigit() and now - int(since) > STALE_S]
        if not stale:
            return
        owners = self._owners()
        for annotation in stale:
            for name in part_names(annotation):
                self._give(f"{self._maps}/{segment(name)}", owners.get(annotation) or nobody())
            self.end(annotation)

    def stored(self) -> frozenset[str]:
        """Return digests of needed archives stored elsewhere: runs refer to them, or they are being uploaded."""
        noted: Mapping[str, str] = self._client.get(f"{self._maps}/{UPLOADS}").get("data") or {}
        sent = {key.removesuffix(STORED) for key in noted if key.endswith(STORED)}
        return frozenset(
            sent | {digest for workdir in self._owners() if (digest := stored_digest(workdir)) is not None}
        )

    def _owners(self) -> dict[str, dict[str, Any]]:
        """Return the owning workload of each working directory; workloads with children take precedence."""
        owners: dict[str, dict[str, Any]] = {}
        for kind in (*leaf_kinds(), *parent_kinds()):
            for content in items_of(self._client, kind, self._namespace):
                metadata = content["metadata"]
                owner = _owner(metadata["name"], metadata["uid"], kind)
                annotations = metadata.get("annotations") or {}
                # An endpoint's earlier revisions have separate files.
                speaks_of = {sent.workdir for sent in read_files(annotations).sent}
                if WORKDIR in annotations:
                    speaks_of.add(str(annotations[WORKDIR]))
                owners |= dict.fromkeys(speaks_of, owner)
        return owners

    def _give(self, path: str, owner: Mapping[str, Any]) -> None:
        """Give an owner to a part without one; a part that is gone, or was replaced, is left alone."""
        try:
            existing: Object = self._client.get(path)["metadata"]
            if existing.get("ownerReferences"):
                return
            metadata = {"name": existing["name"], "uid": existing["uid"], "ownerReferences": [owner]}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
            self._client.apply(path, body, manager=f"fairlead-run-{owner['uid'][:13]}")
        except ApiError as error:
            if error.status not in (404, 409):
                raise


def _owner(name: str, uid: str, kind: str = "Training") -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": uid, "controller": False}


def nobody() -> dict[str, Any]:
    """Return an owner that does not exist, so that the garbage collector removes objects with no other owner."""
    return _owner("interrupted-upload", str(uuid.uuid4()))
