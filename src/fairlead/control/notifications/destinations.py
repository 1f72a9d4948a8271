"""Destinations of notifications: who is told, of which runs and topics, and by which transport (decision 0202).

Secrets (URLs of webhooks, tokens, passwords) are named by their place, never written in the file: on this machine in
files that only their user can read, on Kubernetes as keys of the Secret that the file is in.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal, cast

from fairlead.control.notifications.topics import USUAL, RunNotice, Topic
from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass
from fairlead.specs.formats.suggestions import nearest
from fairlead.specs.quantities import parse_duration

MOST_DESTINATIONS = 20
MOST_BYTES = 65_536
WAITS_S = 1800.0
MOST_TEXT = 2_000

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ADDRESS = re.compile(r"[^\s@<>,;:\"\\()\[\]]{1,64}@[A-Za-z0-9.-]{1,255}")
_SERVER = re.compile(r"([A-Za-z0-9.-]{1,255}|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A POST of JSON to a URL.

    Attributes:
        form: ``slack`` for a text as Slack, Mattermost and Discord (``/slack``) take it; ``json`` for all fields.
        url: Place of the URL.
        token: Place of a bearer token; empty for none.
    """

    form: Literal["slack", "json"]
    url: str
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Email:
    """An e-mail through a mail server.

    Attributes:
        security: ``starttls``, ``tls`` from the first byte, or ``none``, which is refused with a password.
        password: Place of the password of ``user``; empty without a user.
    """

    to: tuple[str, ...]
    sender: str
    host: str
    port: int
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """A command for the shell of this machine, with the notice in its environment and as JSON on its input."""

    run: str


Transport = Webhook | Email | ShellCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Somebody to notify.

    Attributes:
        topics: Topics that are sent.
        labels: Labels that a run must have; a value of None is any.
        teams: Teams of the runs; empty for all.
        children: Also runs that a sweep, pipeline or endpoint submitted.
        waits_s: Time in seconds after which a pending run is one that waits.
    """

    name: str
    transport: Transport
    topics: frozenset[Topic] = USUAL
    labels: Mapping[str, str | None] = field(default_factory=dict)
    teams: frozenset[str] = frozenset()
    children: bool = False
    waits_s: float = WAITS_S

    def wants(self, notice: RunNotice) -> bool:
        """Return whether this destination is to get a notice."""
        labels = dict(notice.labels)
        return (
            notice.topic in self.topics
            and (self.children or not notice.is_child)
            and (not self.teams or notice.team in self.teams)
            and all(key in labels and value in (None, labels[key]) for key, value in self.labels.items())
        )


def read_destinations(text: str, source: str, *, has_commands: bool) -> tuple[Destination, ...]:
    """Return the destinations of a file.

    Args:
        source: The name of the file in messages.
        has_commands: Commands can be destinations: on this machine.

    Raises:
        InvalidSpec: With every mistake.
    """
    import yaml  # here and not above: few machines have such a file

    if len(text) > MOST_BYTES:
        raise InvalidSpec((f"{source}: it has more than {MOST_BYTES} characters",))
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # all scalars are texts
    try:
        items = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise InvalidSpec(
            (f"{source}{line}: not valid YAML: {getattr(error, 'problem', None) or 'too deep'}",)
        ) from error
    if items is None or items == "":
        return ()
    if not isinstance(items, list) or len(items) > MOST_DESTINATIONS:
        raise InvalidSpec((f"{source}: give a list of at most {MOST_DESTINATIONS} destinations, such as `{EXAMPLE}`",))
    problems: list[str] = []
    destinations: list[Destination] = []
    for number, item in enumerate(items):
        name = str(item.get("name"))[:63] if isinstance(item, dict) and item.get("name") is not None else f"[{number}]"
        reader = _Reader(f"{source}: {name}", problems)
        destination = reader.destination(item, has_commands=has_commands)
        if destination is not None:
            if any(destination.name == other.name for other in destinations):
                problems.append(f"{source}: {name}: there is another destination of that name")
            destinations.append(destination)
    if problems:
        raise InvalidSpec(tuple(problems))
    return tuple(destinations)


EXAMPLE = "- {name: me, slack: {url_file: ~/.config/slack-url}}"


class _Reader:
    """Reads one destination, and collects the mistakes in it."""

    def __init__(self, where: str, problems: list[str]) -> None:
        self._where = where
        self._problems = problems

    def destination(self, item: Any, *, has_commands: bool) -> Destination | None:
        transports: dict[str, Callable[[Any], Transport | None]] = {
            "slack": lambda value: self._webhook("slack", value),
            "webhook": lambda value: self._webhook("json", value),
            "email": self._email,
        }
        if has_commands:
            transports["command"] = self._command
        num_problems_before = len(self._problems)
        keys = ("name", "events", "labels", "teams", "children", "waits", *transports)
        fields = self._fields(item, keys, "")
        if fields is None:
            return None
        name = self._text(fields, "name", "", example="me")
        if name is not None and _NAME.fullmatch(name) is None:
            self._refuse(f"name: {name!r} is not a name; give lower-case letters, digits and `-`")
        used_keys = [key for key in transports if key in fields]
        if len(used_keys) != 1:
            self._refuse(
                f"give one of {', '.join(transports)}, not {' and '.join(used_keys) or 'none'}; such as `{EXAMPLE}`"
            )
            return None
        transport = transports[used_keys[0]](fields[used_keys[0]])
        topics = frozenset(
            topic
            for word in self._texts(fields, "events")
            if (topic := self._word(word, "events", tuple(topic for topic in Topic if topic is not Topic.TEST)))
            is not None
        )
        labels = fields.get("labels", {})
        if not isinstance(labels, dict) or len(labels) > 20:
            self._refuse("labels: give a mapping, such as `labels: {notify: me}`")
            labels = {}
        children = self._word(fields.get("children", "false"), "children", ("true", "false"))
        waits_s = WAITS_S
        if "waits" in fields:
            try:
                waits_s = parse_duration(str(fields["waits"]))
            except ValueError:
                waits_s = math.nan
            if not 60 <= waits_s <= 366 * 86400:
                self._refuse(f"waits: {str(fields['waits'])[:40]!r} is no time from 1m to 366d; give one such as `30m`")
        teams = frozenset(self._texts(fields, "teams"))
        if transport is None or name is None or len(self._problems) > num_problems_before:
            return None
        return Destination(
            name=name, transport=transport, topics=topics or USUAL, teams=teams, children=children == "true",
            waits_s=waits_s,
            labels={str(key): str(value) or None for key, value in labels.items()},
        )  # fmt: skip

    def _webhook(self, form: Literal["slack", "json"], value: Any) -> Webhook | None:
        key = "slack" if form == "slack" else "webhook"
        fields = self._fields(value, ("url_file", "token_file"), key)
        if fields is None:
            return None
        url = self._text(fields, "url_file", key, example="~/.config/slack-url")
        token = self._text(fields, "token_file", key, example="~/.config/token") if "token_file" in fields else ""
        return None if url is None or token is None else Webhook(form=form, url=url, token=token)

    def _email(self, value: Any) -> Email | None:
        fields = self._fields(value, ("to", "from", "server", "security", "user", "password_file"), "email")
        if fields is None:
            return None
        to = self._texts(fields, "to", "email")
        sender = self._text(fields, "from", "email", example="fairlead@example.com")
        server = self._text(fields, "server", "email", example="smtp.example.com:587")
        if not to:
            self._refuse("email.to: give addresses, such as `to: [me@example.com]`")
        for address in (*to, *(() if sender is None else (sender,))):
            if _ADDRESS.fullmatch(address) is None:
                self._refuse(f"email: {address[:80]!r} is not an address; give one such as `me@example.com`")
        security = self._word(fields.get("security", "starttls"), "email.security", ("starttls", "tls", "none"))
        user = self._text(fields, "user", "email", example="me") if "user" in fields else ""
        password = ""
        if ("user" in fields) != ("password_file" in fields):
            self._refuse("email: give `user` and `password_file` together, or neither")
        elif "password_file" in fields:
            password = self._text(fields, "password_file", "email", example="~/.config/mail-password") or ""
            if security == "none":
                self._refuse("email.security: none would send the password in clear; give starttls or tls")
        match = _SERVER.fullmatch(server or "")
        if server is not None and (match is None or not 0 < int(match[2] or 25) < 65_536):
            self._refuse(f"email.server: {server[:80]!r} is not HOST:PORT; give one such as `smtp.example.com:587`")
        if match is None or sender is None or user is None or security is None:
            return None
        default_port = {"starttls": 587, "tls": 465, "none": 25}[security]
        return Email(
            to=tuple(to), sender=sender, host=match[1].strip("[]"), port=int(match[2] or default_port), user=user,
            security=cast(Literal["starttls", "tls", "none"], security), password=password,
        )  # fmt: skip

    def _command(self, value: Any) -> ShellCommand | None:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            self._refuse('command: give a command for the shell, such as `command: notify-send "$FAIRLEAD_NOTICE"`')
            return None
        return ShellCommand(run=value)

    def _fields(self, value: Any, keys: tuple[str, ...], where: str) -> dict[str, Any] | None:
        prefix = f"{where}: " if where else ""
        if not isinstance(value, dict):
            self._refuse(f"{prefix}give a mapping with {', '.join(keys)}")
            return None
        unknown = [str(key)[:40] for key in value if key not in keys]
        if unknown:
            nearest_key = nearest(unknown[0], keys)
            suggestion = f"; did you mean `{nearest_key}`? " if nearest_key else "; "
            self._refuse(f"{prefix}{unknown[0]}: unknown key{suggestion}Allowed: {', '.join(keys)}")
        return {str(key): entry for key, entry in value.items()}

    def _text(self, fields: Mapping[str, Any], key: str, where: str, *, example: str) -> str | None:
        value = fields.get(key)
        if isinstance(value, str) and 0 < len(value) <= MOST_TEXT and value.isprintable():
            return value
        self._refuse(f"{where}{'.' if where else ''}{key}: give a text, such as `{key}: {example}`")
        return None

    def _texts(self, fields: Mapping[str, Any], key: str, where: str = "") -> list[str]:
        value = fields.get(key, [])
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list) and len(items) <= 50 and all(isinstance(item, str) for item in items):
            return [str(item)[:MOST_TEXT] for item in items]
        self._refuse(f"{where}{'.' if where else ''}{key}: give a list of texts")
        return []

    def _word(self, value: Any, key: str, words: tuple[Any, ...]) -> Any:
        for word in words:
            if value == word:
                return word
        self._refuse(f"{key}: {str(value)[:40]!r} is unknown; give {', '.join(map(str, words))}")
        return None

    def _refuse(self, sentence: str) -> None:
        self._problems.append(f"{self._where}: {sentence}")
