"""Remembers, between passes, why engine objects were refused or are not ready, and when to try or look again."""

import threading
import time
from collections.abc import Callable, Collection

from fairlead.frozen import dataclass

# How long to wait before retrying what the API server refused.
PAUSE_S = 10.0
# How often pods or Deployments are read for why an object is not ready, as engines report little of that.
ASK_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequest:
    """A request that was refused.

    Attributes:
        content: Version of the content that was refused; empty where an object has only one.
        problem: The reason, as a clause.
        until: When the request is retried.
    """

    content: str
    problem: str
    until: float


class EngineProblems:
    """Problems of engine objects, by the uid of the endpoint or sweep. Passes and workers share it.

    It is a cache: after a restart of the operator it is empty, and requests and reads fill it again.

    Args:
        now: The monotonic clock, in seconds.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._refusals: dict[str, RefusedRequest] = {}
        self._findings: dict[str, tuple[str, str]] = {}
        self._asked_at: dict[str, float] = {}

    def keep(self, uids: Collection[str]) -> None:
        """Forget everything about other uids."""
        with self._lock:
            self._refusals = {uid: refusal for uid, refusal in self._refusals.items() if uid in uids}
            self._findings = {uid: finding for uid, finding in self._findings.items() if uid in uids}
            self._asked_at = {uid: asked_at for uid, asked_at in self._asked_at.items() if uid in uids}

    def refusal(self, uid: str) -> RefusedRequest | None:
        """Return the refusal of the last request; None if it was accepted."""
        with self._lock:
            return self._refusals.get(uid)

    def answered(self, uid: str, problem: str | None, content: str = "") -> None:
        """Record the answer to a request: its problem, or None if it was accepted."""
        with self._lock:
            self._refusals.pop(uid, None)
            if problem is not None:
                self._refusals[uid] = RefusedRequest(content=content, problem=problem, until=self._now() + PAUSE_S)

    def is_paused(self, uid: str, content: str = "") -> bool:
        """Return whether a request with this content was refused and is not to be retried yet."""
        refusal = self.refusal(uid)
        return refusal is not None and refusal.content == content and self._now() < refusal.until

    def finding(self, uid: str, of: str = "") -> str:
        """Return why a part of an object is not ready, as found last; empty if nothing is known of that part."""
        with self._lock:
            part, finding = self._findings.get(uid, (of, ""))
        return finding if part == of else ""

    def find(self, uid: str, finding: str, of: str = "") -> bool:
        """Record why a part of an object is not ready; return whether that differs from the finding before."""
        with self._lock:
            before, self._findings[uid] = self._findings.get(uid, (of, "")), (of, finding)
        return before != (of, finding)

    def clear(self, uid: str) -> None:
        """Forget the finding of an object that is ready."""
        with self._lock:
            self._findings.pop(uid, None)

    def is_due(self, uid: str) -> bool:
        """Return whether it is time to read why an object is not ready; if so, the next time counts from now."""
        with self._lock:
            now, asked_at = self._now(), self._asked_at.get(uid)
            if asked_at is not None and now - asked_at < ASK_EVERY_S:
                return False
            self._asked_at[uid] = now
            return True
