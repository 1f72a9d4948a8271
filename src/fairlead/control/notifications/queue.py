"""The queue of notices to destinations: what is sent when, with bounded retries and rates. Pure but for its own state.

A message that is not accepted is tried again, later and later, ``MOST_TRIES`` times. A destination gets at most
``MOST_MESSAGES`` messages in ``WINDOW_S``; notices that wait for a message join into one. Of a destination that accepts
none, ``MOST_WAITING`` notices wait; older ones are counted. A notice enters the queue once for each destination.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from typing import Any

from fairlead.control.notifications.topics import RunNotice, Topic
from fairlead.frozen import dataclass

MOST_TRIES = 10
RETRY_S, MOST_RETRY_S = 5.0, 900.0
MOST_MESSAGES, WINDOW_S = 10, 600.0
MOST_WAITING = 200


@dataclass(slots=True, kw_only=True)
class Outbox:
    """The notices of one destination.

    Attributes:
        waiting: Notices to send, oldest first.
        omitted: Number of notices that were dropped since the last message.
        tries: Unsuccessful tries of the next message.
        batch: Number of notices of the message that was tried last, which a retry repeats.
        retry_at: Earliest time of the next try.
        sent_at: Times of the messages of the last ``WINDOW_S``.
        problem: The last error; empty after a success.
    """

    waiting: list[RunNotice] = field(default_factory=list)
    omitted: int = 0
    tries: int = 0
    batch: int = 0
    retry_at: float = 0.0
    sent_at: list[float] = field(default_factory=list)
    problem: str = ""
    num_sent: int = 0
    num_given_up: int = 0

    def add(self, notice: RunNotice) -> None:
        """Append a notice; drop the oldest ones above ``MOST_WAITING``."""
        self.waiting.append(notice)
        surplus = len(self.waiting) - MOST_WAITING
        if surplus > 0:
            del self.waiting[:surplus]
            self.omitted += surplus
            self.batch = max(0, self.batch - surplus)

    def due(self, now: float) -> tuple[RunNotice, ...]:
        """Return the notices of the next message; none if there is none, or if it is too early for it."""
        self.sent_at = [at for at in self.sent_at if now - WINDOW_S < at <= now]
        if not self.waiting or (now < self.retry_at <= now + MOST_RETRY_S) or len(self.sent_at) >= MOST_MESSAGES:
            return ()
        # The last message of the window has all that waits; a repetition has what it had.
        is_last = len(self.sent_at) == MOST_MESSAGES - 1
        self.batch = self.batch or (len(self.waiting) if is_last else 1)
        return tuple(self.waiting[: self.batch])

    def accepted(self, now: float) -> None:
        """Record that the message of ``due`` was accepted."""
        self.num_sent += self.batch
        self._drop(now)
        self.problem = ""

    def refused(self, problem: str, now: float, *, is_final: bool = False) -> bool:
        """Record that it was not accepted, and return whether it is given up.

        Args:
            is_final: Another try would be refused too.
        """
        self.problem = problem
        self.tries += 1
        if not is_final and self.tries < MOST_TRIES:
            self.retry_at = now + min(MOST_RETRY_S, RETRY_S * 2 ** (self.tries - 1))
            return False
        self.num_given_up += self.batch
        self._drop(now)
        return True

    def _drop(self, now: float) -> None:
        del self.waiting[: self.batch]
        self.sent_at.append(now)
        self.omitted, self.tries, self.batch, self.retry_at = 0, 0, 0, 0.0


def plain_outboxes(outboxes: Mapping[str, Outbox]) -> dict[str, Any]:
    """Return outboxes as JSON values."""
    return {name: {**_fields(box), "waiting": [_fields(n) for n in box.waiting]} for name, box in outboxes.items()}


def outboxes_of(value: Any) -> dict[str, Outbox]:
    """Return outboxes from JSON values of ``plain_outboxes``.

    Raises:
        ValueError: They are something else.
    """
    try:
        return {str(name): _outbox(plain) for name, plain in value.items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no outboxes: {error}") from error


def _outbox(plain: dict[str, Any]) -> Outbox:
    return Outbox(
        waiting=[_notice(entry) for entry in plain["waiting"][-MOST_WAITING:]],
        omitted=int(plain["omitted"]), tries=int(plain["tries"]), batch=int(plain["batch"]),
        retry_at=float(plain["retry_at"]), sent_at=[float(at) for at in plain["sent_at"][-MOST_MESSAGES:]],
        problem=str(plain["problem"]), num_sent=int(plain["num_sent"]), num_given_up=int(plain["num_given_up"]),
    )  # fmt: skip


def _notice(plain: dict[str, Any]) -> RunNotice:
    texts = {name: str(plain[name]) for name in ("id", "type", "run", "team", "kind", "uid", "message", "remedy")}
    labels = tuple((str(key), str(value)) for key, value in plain["labels"])
    topic, is_child = Topic(plain["topic"]), bool(plain["is_child"])
    return RunNotice(**texts, at=float(plain["at"]), topic=topic, labels=labels, is_child=is_child)


def _fields(value: Any) -> dict[str, Any]:
    return {entry.name: getattr(value, entry.name) for entry in fields(value)}


def is_waiting(outboxes: Iterable[Outbox]) -> bool:
    """Return whether a notice waits in any of the outboxes."""
    return any(box.waiting for box in outboxes)
