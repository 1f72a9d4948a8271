"""Messages as real servers and commands get them; no secret is in an error."""

import email
import json
import os
from collections.abc import Sequence
from email import policy
from pathlib import Path

import pytest

from fairlead.control.notifications.destinations import Destination, Email, ShellCommand, Transport, Webhook
from fairlead.control.notifications.topics import RunNotice, Topic
from fairlead.control.notifications.transports import Undeliverable, deliver
from tests.notifications.servers import mail_server, web_server

FAILED = RunNotice(
    id="u-7", at=1.5, topic=Topic.FAILED, type="Failed", run="train", team="vision", kind="Training", uid="u",
    message="rank 0 <!channel> & \x1b[31mred\nBcc: x", remedy="`fairlead resume train`",
)  # fmt: skip


def send(
    transport: Transport,
    secrets: dict[str, str],
    notices: Sequence[RunNotice] = (FAILED,),
) -> None:
    deliver(
        Destination(name="me", transport=transport), notices, omitted=0, secrets=secrets.__getitem__,
        environ=os.environ,
    )  # fmt: skip


def test_slack_gets_a_text_without_mark_up_of_the_program() -> None:
    with web_server() as web:
        send(Webhook(form="slack", url="u"), {"u": f"{web.url}/services/T/B?x=1"})
    text = json.loads(web.bodies[0])["text"]
    assert text.splitlines()[0] == "*vision/train failed*"
    assert "&lt;!channel&gt; &amp;" in text
    assert "\x1b" not in text
    assert web.headers[0]["Fairlead-Notice"] == "u-7"


def test_a_program_gets_all_fields_and_a_token() -> None:
    with web_server() as web:
        send(Webhook(form="json", url="u", token="t"), {"u": web.url, "t": "s3cr3t"}, (FAILED, FAILED))
    body = json.loads(web.bodies[0])
    assert len(body["notices"]) == 2
    fields = body["notices"][0]
    assert (fields["topic"], fields["run"], fields["team"], fields["id"]) == ("failed", "train", "vision", "u-7")
    assert fields["at"].startswith("1970-01-01T00:00:01.5")
    assert web.headers[0]["Authorization"] == "Bearer s3cr3t"


@pytest.mark.parametrize(("status", "is_final"), [(500, False), (429, False), (404, True), (302, True), (307, True)])
def test_another_answer_is_an_error_and_a_redirect_is_not_followed(status: int, is_final: bool) -> None:
    with web_server() as other, web_server() as web:
        web.answers, web.location = [status], other.url
        with pytest.raises(Undeliverable) as refusal:
            send(Webhook(form="json", url="u"), {"u": f"{web.url}/s3cr3t"})
    assert (refusal.value.is_final, other.bodies) == (is_final, [])
    assert "s3cr3t" not in str(refusal.value)
    assert str(status) in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "http://",
        "ftp://h/s3cr3t",
        "http://u:s3cr3t@h/",
        "http://h/a b",
        "http://h:x/",
        "h/\r\nA: b",
    ],
)
def test_what_is_no_url_of_a_webhook_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(Undeliverable) as refusal:
        send(Webhook(form="json", url="u"), {"u": url})
    assert refusal.value.is_final
    assert "s3cr3t" not in str(refusal.value)


def test_a_mail_arrives_and_no_text_adds_a_header() -> None:
    with mail_server() as box:
        address = Email(to=("a@b.c", "d@e.f"), sender="f@b.c", host="127.0.0.1", port=box.port, security="none")
        send(address, {})
        box.refusals = ["451 later"]
        with pytest.raises(Undeliverable, match="451") as later:
            send(address, {})
        box.refusals = ["550 never"]
        with pytest.raises(Undeliverable, match="550") as never:
            send(address, {})
    assert (later.value.is_final, never.value.is_final) == (False, True)
    recipients, text = box.mails[0]
    mail = email.message_from_string(text, policy=policy.default)
    assert recipients == ["a@b.c", "d@e.f"]
    assert (mail["Subject"], mail["Bcc"], mail["Fairlead-Notice"]) == ("[Fairlead] vision/train failed", None, "u-7")
    assert "fairlead resume train" in mail.get_content()


def test_no_password_goes_to_a_server_without_encryption() -> None:
    with mail_server() as box:
        address = Email(to=("a@b.c",), sender="f@b.c", host="127.0.0.1", port=box.port, user="u", password="p")
        with pytest.raises(Undeliverable, match="STARTTLS") as refusal:
            send(address, {"p": "s3cr3t"})
    assert refusal.value.is_final
    assert box.mails == []


def test_a_command_gets_the_notice_as_variables_and_json(tmp_path: Path) -> None:
    place = tmp_path / "out"
    send(ShellCommand(run=f'cat > {place}; echo "$FAIRLEAD_NOTICE_TITLE" >> {place}'), {})
    first, title = place.read_text().rsplit("}", 1)
    assert json.loads(first + "}")["notices"][0]["run"] == "train"
    assert title.strip() == "vision/train failed"
    with pytest.raises(Undeliverable, match="exit code 3"):
        send(ShellCommand(run="exit 3"), {})
