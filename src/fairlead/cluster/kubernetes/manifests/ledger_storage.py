"""Storage of an installed operator's ledger: a volume, or a database whose address is in a Secret. Pure."""

import re
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from fairlead.cluster.kubernetes.names import MANAGED_BY, MANAGER
from fairlead.cluster.postgres import check_address
from fairlead.errors import ClusterError, Conflict
from fairlead.frozen import dataclass

NAME, KEY = "fairlead-ledger", "url"
FOLDER = "/var/lib/fairlead"
VARIABLE = "FAIRLEAD_LEDGER"
POSTGRES_PORT = 5432
SIZE = "2Gi"
SECRET = "secret:"


class Storage(StrEnum):
    """The kinds of storage."""

    NONE = "none"
    VOLUME = "volume"
    DATABASE = "database"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStorage:
    """The storage of a ledger.

    Attributes:
        url: Address of a database, for a Secret that Fairlead creates; empty if ``secret`` is the user's own.
        secret: The Secret that has the address under ``url``.
        port: Port of the database, to which the operator may connect.
    """

    kind: Storage = Storage.NONE
    url: str = ""
    secret: str = NAME
    port: int = POSTGRES_PORT

    @property
    def most_replicas(self) -> int | None:
        """Most replicas that can use it at one time; None for any number."""
        return 1 if self.kind is Storage.VOLUME else None


def read_place(text: str) -> LedgerStorage:
    """Return the storage that an option names.

    Raises:
        Conflict: The option names none.
    """
    if text in (Storage.NONE, Storage.VOLUME):
        return LedgerStorage(kind=Storage(text))
    if text.startswith(SECRET) and len(text) > len(SECRET):
        name = text.removeprefix(SECRET)
        if re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name) is None:
            raise Conflict(
                f"--ledger: {name!r} is not the name of a Secret; give lower-case letters, digits, dashes and dots."
            )
        return LedgerStorage(kind=Storage.DATABASE, secret=name)
    if text.startswith(("postgresql://", "postgres://")):
        try:
            check_address(text)
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ClusterError as error:
            raise Conflict(f"--ledger: {error}") from error
        except ValueError as error:
            raise Conflict(f"--ledger: {error}. Give postgresql://USER:PASSWORD@HOST:PORT/DATABASE.") from error
        if host:
            return LedgerStorage(kind=Storage.DATABASE, url=text, port=port or POSTGRES_PORT)
    raise Conflict(
        "--ledger names no place. Give `volume` for a file on a volume, `postgresql://USER:PASSWORD@HOST/DATABASE`, "
        "`secret:NAME` for a Secret that has that address under `url`, or `none`."
    )


def render_storage(storage: LedgerStorage, namespace: str) -> list[dict[str, Any]]:
    """Return the additional objects that the storage needs."""
    metadata = {"name": NAME, "namespace": namespace, "labels": {MANAGED_BY: MANAGER}}
    if storage.kind is Storage.VOLUME:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": SIZE}}}
        return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}]
    if storage.url:
        return [{"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {KEY: storage.url}}]
    return []


def with_storage(deployment: dict[str, Any], storage: LedgerStorage) -> dict[str, Any]:
    """Return the operator's Deployment with its ledger."""
    if storage.kind is Storage.NONE:
        return deployment
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    (operator,) = pod["containers"]
    if storage.kind is Storage.DATABASE:
        address = {"name": VARIABLE, "valueFrom": {"secretKeyRef": {"name": storage.secret, "key": KEY}}}
        pod = {**pod, "containers": [{**operator, "env": [*operator["env"], address]}]}
        return {**deployment, "spec": {**spec, "template": {**spec["template"], "spec": pod}}}
    operator = {
        **operator,
        "env": [*operator["env"], {"name": VARIABLE, "value": f"{FOLDER}/ledger.db"}],
        "volumeMounts": [*operator["volumeMounts"], {"name": "ledger", "mountPath": FOLDER}],
    }
    group = pod["securityContext"]["runAsGroup"]
    pod = {
        **pod,
        "securityContext": {**pod["securityContext"], "fsGroup": group},
        "containers": [operator],
        "volumes": [*pod["volumes"], {"name": "ledger", "persistentVolumeClaim": {"claimName": NAME}}],
    }
    # A new pod cannot mount the volume before the old one has released it.
    spec = {**spec, "strategy": {"type": "Recreate"}, "template": {**spec["template"], "spec": pod}}
    return {**deployment, "spec": spec}
