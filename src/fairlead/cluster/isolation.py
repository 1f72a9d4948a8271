"""Keeps a failure in the work on one object from the work on all others.

Every loop over objects of several teams goes through here, and every request about one object. Errors of the cluster
itself pass, since they concern all.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.errors import ClusterError

log = logging.getLogger(__name__)

MOST_REMEMBERED = 10_000


class Isolation:
    """The failures of one loop. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._refusals: dict[str, str] = {}
        self.num_failures = 0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Work on one object in the block: an internal error, or an answer about this object, ends the block only.

        It is logged once with the name.
        """
        try:
            yield
        except OSError:
            raise  # of the disk or the network, which concern all
        except ClusterError as error:
            if error.concerns_all:
                raise
            self._note_refusal(name, error)
        except Exception as error:  # noqa: BLE001
            # Whatever it is, the objects of others are not to wait for it; a later pass tries it again.
            self.note(name, error)
        else:
            if self._known or self._refusals:
                self.settle(name)

    def note(self, name: str, error: Exception) -> str:
        """Record a failure in the work on an object, and return it as a sentence; log it unless it is known."""
        sentence = describe(error)
        with self._lock:
            self.num_failures += 1
            is_new = self._known.get(name) != sentence
            self._known[name] = sentence
            if len(self._known) > MOST_REMEMBERED:
                del self._known[next(iter(self._known))]
        if is_new:
            log.error("%s: internal error: %s", name, sentence, exc_info=error)
        return sentence

    def _note_refusal(self, name: str, error: ClusterError) -> None:
        """Record that the API server refused a request about an object, and log it unless it is known."""
        with self._lock:
            is_new = name not in self._refusals
            self._refusals[name] = str(error)
            if len(self._refusals) > MOST_REMEMBERED:
                del self._refusals[next(iter(self._refusals))]
        if is_new:
            log.warning("%s: %s", name, error)

    def settle(self, name: str) -> None:
        """Record that the work on an object succeeded."""
        with self._lock:
            self._known.pop(name, None)
            self._refusals.pop(name, None)

    def clear(self) -> None:
        """Record that all work succeeded."""
        with self._lock:
            self._known.clear()

    @property
    def refused(self) -> tuple[str, ...]:
        """The names of the objects about which the API server refused the latest request."""
        with self._lock:
            return tuple(self._refusals)

    @property
    def failing(self) -> tuple[str, ...]:
        """The names of the objects on which the latest work failed."""
        with self._lock:
            return tuple(self._known)


def describe(error: Exception) -> str:
    """Return an unexpected error as one short sentence, with the place in the code at which it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
    return f"{type(error).__name__}{place}: {' '.join(str(error).split())[:200]}"
