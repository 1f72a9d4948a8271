"""Notices as texts and JSON: for Slack, for programs, for mail, and for the environment of a command. Pure.

A run's name, labels and reason are of its user or program: they are cut, and control characters and Slack's mark-up
have no effect.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

from fairlead.control.notifications.topics import RunNotice, Topic

MOST_MESSAGE = 1_000
MOST_LINES = 20
HEADER = "Fairlead-Notice"
_WORDS = {
    Topic.FINISHED: "succeeded",
    Topic.FAILED: "failed",
    Topic.STOPPED: "was stopped",
    Topic.RESTARTING: "restarts",
    Topic.STALLED: "is stalled",
    Topic.WAITING: "waits",
    Topic.PREEMPTED: "was preempted",
    Topic.BUDGET: "nears its budget",
    Topic.IDLE: "is idle",
    Topic.CHECKPOINT: "has trouble with checkpoints",
    Topic.ENDPOINT: "has trouble with a revision",
    Topic.TEST: "is a test",
}


def title_of(notices: Sequence[RunNotice]) -> str:
    """Return one line about notices: of a single one, its run and topic."""
    if len(notices) == 1:
        first = notices[0]
        team = f"{first.team}/" if first.team not in ("", "default") else ""
        return clean(f"{team}{first.run} {_WORDS[first.topic]}", 200)
    counts = {topic: sum(notice.topic is topic for notice in notices) for topic in Topic}
    return f"{len(notices)} notices: " + ", ".join(f"{num} {topic}" for topic, num in counts.items() if num)


def text_of(notices: Sequence[RunNotice], *, omitted: int = 0) -> str:
    """Return the lines of a message: of several notices, one each, up to ``MOST_LINES``.

    Args:
        omitted: Number of further notices that are not sent.
    """
    if len(notices) == 1:
        first = notices[0]
        lines = [clean(first.message, MOST_MESSAGE)]
        lines += [f"To do: {clean(first.remedy, MOST_MESSAGE)}"] if first.remedy else []
    else:
        lines = [f"{title_of([notice])}: {clean(notice.message, 200)}" for notice in notices[:MOST_LINES]]
    rest = max(0, len(notices) - MOST_LINES) + omitted if len(notices) > 1 or omitted else 0
    return "\n".join([*lines, f"and {rest} more"] if rest else lines)


def slack_body(notices: Sequence[RunNotice], *, omitted: int = 0) -> bytes:
    """Return the JSON of Slack's incoming webhooks (`text` with mrkdwn), which Mattermost and Discord take too.

    Source: https://docs.slack.dev/messaging/formatting-message-text ("Escaping text": `&`, `<` and `>`).
    """
    text = f"*{_escaped(title_of(notices))}*\n{_escaped(text_of(notices, omitted=omitted))}"
    return json.dumps({"text": text}).encode()


def json_body(notices: Sequence[RunNotice], *, omitted: int = 0) -> bytes:
    """Return all fields of notices as JSON."""
    return json.dumps({"notices": [fields_of(notice) for notice in notices], "omitted": omitted}).encode()


def fields_of(notice: RunNotice) -> dict[str, Any]:
    """Return the fields of a notice for programs."""
    return {
        "id": notice.id,
        "at": datetime.fromtimestamp(notice.at, UTC).isoformat(timespec="milliseconds"),
        "topic": notice.topic.value,
        "event": clean(notice.type, 100),
        "kind": notice.kind,
        "run": notice.run,
        "team": notice.team,
        "uid": notice.uid,
        "title": title_of([notice]),
        "message": clean(notice.message, MOST_MESSAGE),
        "remedy": clean(notice.remedy, MOST_MESSAGE),
        "labels": dict(notice.labels),
    }


def mail_of(notices: Sequence[RunNotice], *, sender: str, to: Sequence[str], omitted: int = 0) -> EmailMessage:
    """Return notices as a mail; its Message-ID follows from theirs, so that a repetition can be told."""
    mail = EmailMessage()
    mail["Subject"] = f"[Fairlead] {title_of(notices)}"
    mail["From"] = sender
    mail["To"] = ", ".join(to)
    mail["Message-ID"] = f"<{''.join(c if c.isalnum() or c in '-.' else '-' for c in notices[0].id)}@fairlead.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail[HEADER] = clean(notices[0].id, 200)
    mail.set_content(text_of(notices, omitted=omitted) + "\n")
    return mail


def environment_of(notices: Sequence[RunNotice], *, omitted: int = 0) -> dict[str, str]:
    """Return the variables of a command."""
    first = notices[0]
    return {
        "FAIRLEAD_NOTICE": f"{title_of(notices)}: {text_of(notices, omitted=omitted)}",
        "FAIRLEAD_NOTICE_TITLE": title_of(notices),
        "FAIRLEAD_NOTICE_TOPIC": first.topic.value if len(notices) == 1 else "several",
        "FAIRLEAD_NOTICE_RUN": clean(first.run, 200) if len(notices) == 1 else "",
    }


def clean(text: str, most: int) -> str:
    """Return a text on one line without control characters, cut at a number of characters."""
    line = "".join(character if character.isprintable() else " " for character in text).strip()
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
