"""Sends messages: HTTP requests, mails, commands; the only I/O of notifications to the outside.

A message names no URL, token or password in its errors. Redirects are not followed, so that a server cannot send the
request on to another address; answers are bounded in size and time.
"""

import http.client
import json
import os
import re
import signal
import smtplib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import SplitResult, urlsplit

from fairlead import __version__
from fairlead.control.notifications.destinations import Destination, Email, ShellCommand, Webhook
from fairlead.control.notifications.messages import (
    HEADER,
    clean,
    environment_of,
    fields_of,
    json_body,
    mail_of,
    slack_body,
)
from fairlead.control.notifications.topics import RunNotice

ANSWER_S = 10.0
DEADLINE_S = 30.0
MOST_ANSWER = 4_096
OWN_NAME = "localhost"
MOST_SECRET = 4_096

_TEMPORARY = frozenset((408, 425, 429))
_PLAIN = re.compile(r"[\x21-\x7e]+")

Secrets = Callable[[str], str]
"""Returns the secret at a place; raises ``Undeliverable`` if it cannot be read."""


class Undeliverable(Exception):
    """A message was not accepted.

    Attributes:
        is_final: Another try would end in the same way.
    """

    def __init__(self, problem: str, *, is_final: bool = False) -> None:
        super().__init__(clean(problem, 300))
        self.is_final = is_final


def deliver(
    destination: Destination,
    notices: Sequence[RunNotice],
    *,
    omitted: int,
    secrets: Secrets,
    environ: Mapping[str, str],
) -> None:
    """Send one message with notices.

    Args:
        omitted: Number of notices that were dropped before them.
        environ: Environment of commands.

    Raises:
        Undeliverable: It was not accepted.
    """
    transport = destination.transport
    try:
        if isinstance(transport, Webhook):
            body = (slack_body if transport.form == "slack" else json_body)(notices, omitted=omitted)
            headers = {HEADER: clean(notices[0].id, 200)}
            if transport.token:
                headers["Authorization"] = f"Bearer {secrets(transport.token)}"
            _post(secrets(transport.url), headers, body)
        elif isinstance(transport, Email):
            _mail(transport, notices, omitted, secrets)
        else:
            _run(transport, notices, omitted, environ)
    except ssl.SSLError as error:
        raise Undeliverable(f"no secure connection: {error.reason or 'TLS failed'}") from None
    except (OSError, http.client.HTTPException) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise Undeliverable(f"no answer: {problem}") from None


def _post(url: str, headers: Mapping[str, str], body: bytes) -> None:
    parts = _parsed(url)
    scheme, host = parts.scheme, parts.hostname or ""
    port = parts.port or (443 if scheme == "https" else 80)
    connection = (
        http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=ssl.create_default_context())
        if scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    own = {"Content-Type": "application/json", "User-Agent": f"fairlead/{__version__}", "Connection": "close"}
    with _deadline(lambda: connection.sock):
        try:
            connection.request("POST", target, body, {**own, **headers})
            answer = connection.getresponse()
            answer.read(MOST_ANSWER)
        finally:
            connection.close()
    if not 200 <= answer.status < 300:
        is_final = 300 <= answer.status < 500 and answer.status not in _TEMPORARY
        raise Undeliverable(f"{host} answers {answer.status}", is_final=is_final)


def _parsed(url: str) -> SplitResult:
    """Return the parts of a URL of a webhook, which is never in a message, as it is a secret."""
    rule = "the URL of the webhook is not one such as https://HOST/PATH"
    if _PLAIN.fullmatch(url) is None:
        raise Undeliverable(rule, is_final=True)
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise Undeliverable(rule, is_final=True) from None
    if not is_good or parts.username is not None:
        raise Undeliverable(rule, is_final=True)
    return parts


def _mail(transport: Email, notices: Sequence[RunNotice], omitted: int, secrets: Secrets) -> None:
    password = secrets(transport.password) if transport.password else ""
    context = ssl.create_default_context()
    server: smtplib.SMTP | None = None
    try:
        with _deadline(lambda: None if server is None else server.sock):
            # A name of its own, since smtplib's would ask the name server, and tell this machine's.
            host, port = transport.host, transport.port
            if transport.security == "tls":
                server = smtplib.SMTP_SSL(host, port, OWN_NAME, timeout=ANSWER_S, context=context)
            else:
                server = smtplib.SMTP(host, port, OWN_NAME, timeout=ANSWER_S)
            with server:
                if transport.security == "starttls":
                    server.starttls(context=context)
                if transport.user:
                    server.login(transport.user, password)
                server.send_message(mail_of(notices, sender=transport.sender, to=transport.to, omitted=omitted))
    except smtplib.SMTPNotSupportedError as error:
        raise Undeliverable(f"{transport.host} cannot do it: {error}", is_final=True) from None
    except smtplib.SMTPRecipientsRefused as error:
        codes = {code for code, _ in error.recipients.values()}
        raise Undeliverable(f"{transport.host} refuses the recipients", is_final=min(codes) >= 500) from None
    except smtplib.SMTPAuthenticationError as error:
        raise Undeliverable(f"{transport.host} refuses the password: {error.smtp_code}", is_final=True) from None
    except smtplib.SMTPResponseException as error:
        text = error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else ""
        problem = f"{transport.host} answers {error.smtp_code} {text}"
        raise Undeliverable(problem, is_final=error.smtp_code >= 500) from None
    except smtplib.SMTPException as error:
        raise Undeliverable(f"{transport.host}: {type(error).__name__}") from None


def _run(transport: ShellCommand, notices: Sequence[RunNotice], omitted: int, environ: Mapping[str, str]) -> None:
    content = json.dumps({"notices": [fields_of(notice) for notice in notices], "omitted": omitted}).encode()
    process = subprocess.Popen(
        ["/bin/sh", "-c", transport.run],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**environ, **environment_of(notices, omitted=omitted)},
    )  # fmt: skip
    try:
        process.communicate(content, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise Undeliverable(f"the command took more than {DEADLINE_S:g} s", is_final=True) from None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        raise Undeliverable(f"the command ended with exit code {process.returncode}")


@contextmanager
def _deadline(sock_of: Callable[[], socket.socket | None]) -> Iterator[None]:
    """Close the connection after ``DEADLINE_S``: a timeout of a socket begins anew with each byte."""

    def close() -> None:
        sock = sock_of()
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(DEADLINE_S, close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
