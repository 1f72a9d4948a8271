"""Elects the operator that acts: the one that holds a Lease and has renewed it in time.

Clocks of other machines are never compared with ours: a holder is gone when its Lease has not changed for its duration
by our own clock. A leader stops acting well before another may begin.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.lease_contents import DURATION_S
from fairlead.cluster.kubernetes.names import segment
from fairlead.errors import ClusterError

log = logging.getLogger(__name__)

# client-go's defaults are 15, 10 and 2; a longer period spares an idle API server 720 requests an hour.
DEADLINE_S = 10.0
RENEW_EVERY_S = 5.0


class Election:
    """Keeps requesting the Lease in its own thread.

    Args:
        identity: The name of this process; no other process may have it.
        annotate: Returns annotations for the Lease while it is ours; called at each renewal.
        on_change: Called when this process becomes the leader or ceases to be.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        annotate: Callable[[], Mapping[str, str]] = dict,
        on_change: Callable[[], None] = lambda: None,
        duration_s: float = DURATION_S,
        deadline_s: float = DEADLINE_S,
        renew_every_s: float = RENEW_EVERY_S,
    ) -> None:
        self._client = client
        self._list = f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases"
        self._path = f"{self._list}/{segment(name)}"
        self._namespace, self._name = namespace, name
        self.identity = identity
        self._annotate = annotate
        self._on_change = on_change
        self._duration_s, self._deadline_s, self._renew_every_s = duration_s, deadline_s, renew_every_s
        self._renewed_at: float | None = None
        self._last_version: tuple[str, float] = ("", 0.0)
        self._own_lease: Object | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)
        self.num_terms = 0
        self.holder = ""
        # Those of the Lease as this process last wrote it, which include what earlier leaders added under other names.
        self.annotations: Mapping[str, str] = {}

    @property
    def is_leader(self) -> bool:
        """Return whether this process may act now."""
        renewed_at = self._renewed_at
        return renewed_at is not None and time.monotonic() - renewed_at < self._deadline_s

    def start(self) -> None:
        """Start requesting the Lease."""
        self._thread.start()

    def stop(self) -> None:
        """Stop requesting the Lease, and release it so that another operator need not wait."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._deadline_s)
        if self.is_leader:
            self._renewed_at = None
            try:
                lease = self._client.get(self._path, patience_s=2.0)
                if lease["spec"].get("holderIdentity") == self.identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                    self._client.replace(self._path, lease)
            except ClusterError as error:
                log.info("the lease could not be given back: %s", error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            was_leader = self.is_leader
            requested_at = time.monotonic()
            try:
                if self._acquire_or_renew():
                    self._renewed_at = requested_at
                else:
                    self._renewed_at = None
            except ClusterError as error:
                log.warning("the lease could not be asked for: %s", error)
            if self.is_leader != was_leader:
                self.num_terms += self.is_leader
                log.info("%s now", "leading" if self.is_leader else "not leading any more")
                self._on_change()
            self._stopping.wait(self._renew_every_s if self.is_leader or self._renewed_at is None else 0.2)

    def _acquire_or_renew(self) -> bool:
        """Take or renew the Lease; return whether it is ours. Its duration counts from before the request."""
        if self._own_lease is not None:
            # The write is refused if anyone else changed the Lease, so it need not be read first.
            own_lease, self._own_lease = self._own_lease, None
            if self._write(lambda: self._client.replace(self._path, self._renewed(own_lease))):
                return True
        patience_s = self._renew_every_s
        try:
            lease = self._client.get(self._path, patience_s=patience_s)
        except ApiError as error:
            if error.status != 404:
                raise
            return self._write(lambda: self._client.create(self._list, self._lease()))
        spec = lease.get("spec") or {}
        self.holder = str(spec.get("holderIdentity") or "")
        metadata = lease["metadata"]
        version = str(metadata["resourceVersion"])
        if version != self._last_version[0]:
            self._last_version = (version, time.monotonic())
        lease_duration_s = float(spec.get("leaseDurationSeconds") or self._duration_s)
        if self.holder not in ("", self.identity) and time.monotonic() - self._last_version[1] < lease_duration_s:
            return False
        is_takeover = self.holder != self.identity
        now = _now()
        metadata |= {"annotations": {**(metadata.get("annotations") or {}), **self._annotate()}}
        spec |= {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "renewTime": now,
            "acquireTime": now if is_takeover else spec.get("acquireTime") or now,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + is_takeover,
        }
        return self._write(lambda: self._client.replace(self._path, {**lease, "metadata": metadata, "spec": spec}))

    def _renewed(self, lease: Object) -> Object:
        annotations = {**(lease["metadata"].get("annotations") or {}), **self._annotate()}
        metadata = {**lease["metadata"], "annotations": annotations}
        return {**lease, "metadata": metadata, "spec": {**lease["spec"], "renewTime": _now()}}

    def _write(self, write: Callable[[], Object]) -> bool:
        try:
            self._own_lease = write()
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        self.annotations = self._own_lease["metadata"].get("annotations") or {}
        self.holder = self.identity
        return True

    def _lease(self) -> Object:
        now = _now()
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace, "annotations": dict(self._annotate())},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": max(1, round(self._duration_s)),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
