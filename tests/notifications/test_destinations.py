"""The file of destinations: what it may say, and what is refused with what to write."""

import pytest

from fairlead.control.notifications.destinations import Email, ShellCommand, Webhook, read_destinations
from fairlead.control.notifications.topics import Topic
from fairlead.errors import InvalidSpec

GOOD = """
- name: chat
  slack: {url_file: ~/slack}
  events: [failed, waiting]
  labels: {notify: chat, on: }
  teams: [vision]
  waits: 10m
- name: log
  webhook: {url_file: /etc/url, token_file: /etc/token}
  children: true
- name: mail
  email: {to: [a@example.com, b@example.com], from: f@example.com, server: m.example.com, user: me, password_file: /p}
- name: here
  command: notify-send "$FAIRLEAD_NOTICE"
"""


def test_a_file_of_destinations_is_read() -> None:
    chat, log, mail, here = read_destinations(GOOD, "n.yaml", has_commands=True)
    assert chat.transport == Webhook(form="slack", url="~/slack")
    assert (chat.topics, chat.waits_s) == (frozenset((Topic.FAILED, Topic.WAITING)), 600.0)
    assert (chat.labels, chat.teams) == ({"notify": "chat", "on": None}, frozenset(["vision"]))
    assert (log.transport, log.children) == (Webhook(form="json", url="/etc/url", token="/etc/token"), True)
    assert isinstance(mail.transport, Email)
    assert (mail.transport.port, mail.transport.security) == (587, "starttls")
    assert here.transport == ShellCommand(run='notify-send "$FAIRLEAD_NOTICE"')
    assert read_destinations("", "n.yaml", has_commands=True) == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: me", "give a list"),
        ("- {name: me}", "give one of slack, webhook, email, command"),
        ("- {name: Me, command: x}", "is not a name"),
        ("- {name: me, command: x, event: [failed]}", "did you mean `events`?"),
        ("- {name: me, command: x, events: [crashed]}", "give finished, failed"),
        ("- {name: me, command: x, waits: 1s}", "from 1m to 366d"),
        ("- {name: me, command: x, children: yes}", "give true, false"),
        ("- {name: me, slack: {url: https://secret}}", "Allowed: url_file"),
        ("- {name: me, slack: https://secret}", "give a mapping with url_file"),
        ("- {name: me, email: {to: [x], from: a@b.c, server: s}}", "is not an address"),
        ("- {name: me, email: {to: ['a@b.c\\nBcc: d@e.f'], from: a@b.c, server: s}}", "is not an address"),
        ("- {name: me, email: {to: [a@b.c], from: a@b.c, server: 's:99999'}}", "is not HOST:PORT"),
        ("- {name: me, email: {to: [a@b.c], from: a@b.c, server: s, user: u}}", "together"),
        (
            "- {name: me, email: {to: [a@b.c], from: a@b.c, server: s, user: u, password_file: /p, security: none}}",
            "in clear",
        ),
        ("- {name: me, command: x}\n- {name: me, command: y}", "another destination"),
        ("- {name: [", "not valid YAML"),
        ("- [" * 5000, "n.yaml"),
    ],
)
def test_a_mistake_is_refused_with_what_to_write(text: str, sentence: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        read_destinations(text, "n.yaml", has_commands=True)
    assert sentence in str(refusal.value)
    assert "https://secret" not in str(refusal.value)


def test_a_cluster_has_no_commands() -> None:
    with pytest.raises(InvalidSpec, match="command"):
        read_destinations("- {name: me, command: x}", "n.yaml", has_commands=False)
