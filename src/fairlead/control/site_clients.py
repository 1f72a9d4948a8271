"""Visits the sites of federations in other clusters: starts their clients there, and brings their keys to the server.

A client there is an ordinary run of that cluster. The visit gives it the server's address and certificate, and takes
its public key from its output; its private key and its data stay there.

See decision 278.
"""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from fairlead.cluster.client import CheckPrograms, ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.cluster.output import LogQuery
from fairlead.cluster.selection import RunSelection
from fairlead.control.admission import admit
from fairlead.control.sites import AnyReport, Open, open_site, settled_as
from fairlead.errors import CannotFit, ClusterError, Conflict, InvalidSpec, NameTaken, NotAllowed
from fairlead.frozen import dataclass
from fairlead.policy.kinds.federation import ATTEMPT, client_intent, client_run
from fairlead.runtime.federation.settings import (
    ADDRESS,
    CA,
    ENROLLED,
    LONGEST_KEY,
    PUBLIC_KEY,
    SAYS,
    UNREACHABLE,
    server_files,
    write_atomically,
)
from fairlead.specs.federation import CLIENT_OF, SERVER, Federation, Site
from fairlead.specs.training import Training
from fairlead.state.plan import child_uid
from fairlead.state.site_clients import ClientReport
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from fairlead.untrusted_json import parse_object

MOST_BYTES = 8 << 20
LAST_LINES = 50
"""Lines of its own that a client writes before it trains are fewer."""
KEY = re.compile(rf"{re.escape(PUBLIC_KEY)}(ecdsa-sha2-nistp384 [A-Za-z0-9+/=]{{1,{LONGEST_KEY}}})\s*")
OWN_LINE = re.compile(re.escape(SAYS))
LONGEST_SENTENCE = 300
WAITS_FOR_SERVER = "its server does not listen yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOrder:
    """The client that a site in another cluster should have.

    Attributes:
        owner: The federation that it belongs to.
        intent: What it should do.
    """

    owner: Workload[Federation]
    name: str
    site: Site
    intent: Intent

    @property
    def key(self) -> tuple[str, str]:
        """Return the uid of the federation, and the name of the site."""
        return self.owner.uid, self.name

    @property
    def content(self) -> object:
        """Return what the client should do."""
        return self.intent, self.owner.status.attempt

    def away(self, last: AnyReport | None, trouble: str, now: float) -> ClientReport:
        """Return the report of a site that does not answer."""
        before = last if isinstance(last, ClientReport) else ClientReport()
        return replace(before, trouble=trouble, since=now if before.trouble is None else before.since)


def client_orders(seen: Snapshot, now: float) -> list[ClientOrder]:
    """Return what each site in another cluster of the unfinished federations of a snapshot should have."""
    result = []
    for parent in seen.parents:
        is_over = parent.status.phase.is_final and parent.intent is not Intent.DELETE
        if not isinstance(parent.spec, Federation) or is_over:
            continue
        owner = cast("Workload[Federation]", parent)
        result += [
            ClientOrder(
                owner=owner, name=name, site=owner.spec.sites[name], intent=client_intent(owner, name, now)
            )
            for name in owner.spec.elsewhere
        ]  # fmt: skip
    return result


def visit_client(
    order: ClientOrder, last: AnyReport | None, now: float, *, home: Home, open_site: Open = open_site
) -> ClientReport:
    """Bring the client of a site closer to an order, and return how it does.

    Args:
        last: The report before; None before the first.
        home: The state directory of this machine, with the files of the server's run.

    Raises:
        ClusterError: The site does not answer.
    """
    before = last if isinstance(last, ClientReport) else ClientReport()
    client = open_site(order.site)
    try:
        if (trouble := client.trouble()) is not None:
            raise ClusterError(trouble)
        run = _run_of(client, order)
        if order.intent is not Intent.RUN:
            report = _halted(client, order, run)
        else:
            report = _running(client, order, run, before, home)
        return replace(report, since=now if last is None or last.trouble is not None else last.since)
    finally:
        client.close()


def _running(
    client: ClusterClient, order: ClientOrder, run: Workload | None, before: ClientReport, home: Home
) -> ClientReport:
    files = server_files(home.run(child_uid(order.owner.uid, SERVER)))
    superlink = _superlink(files, order.owner.spec)
    if superlink is None:
        return ClientReport(phase=None if run is None else run.status.phase, message=WAITS_FOR_SERVER)
    if run is not None and run.status.phase.is_final:
        # One of an earlier attempt of the federation, which was stopped or failed with it, is replaced.
        if run.spec.labels.get(ATTEMPT) == str(order.owner.status.attempt) and run.status.phase is not Phase.STOPPED:
            return ClientReport(phase=run.status.phase, message=run.status.reason.message, settled=Intent.STOP)
        client.set_intent(run.uid, Intent.DELETE)
        client.nudge()
        return ClientReport(message="its client of before is removed first")
    try:
        if run is None:
            run = _launch(client, order, superlink, home)
        elif run.intent is not Intent.RUN:
            run = cast("Workload", client.set_intent(run.uid, Intent.RUN))
        client.nudge()
    except (InvalidSpec, Conflict, CannotFit, NameTaken, NotAllowed) as error:
        return ClientReport(message=f"it is refused there: {error}")
    phase, loss = run.status.phase, None if run.progress is None else run.progress.loss
    if phase is not Phase.RUNNING:
        return ClientReport(phase=phase, message=run.status.reason.message, loss=loss)
    attempt = before.attempt
    message = ""
    if attempt != run.status.attempt or loss is None:
        key, message = _read_output(client, run)
        if key is not None:
            _enroll(files, order.name, key)
            attempt = run.status.attempt
    return ClientReport(phase=phase, message=message, loss=loss, attempt=attempt)


def _superlink(files: Path, spec: Federation) -> tuple[str, str] | None:
    """Return the address at which a site reaches the server, and its CA certificate; None before it listens."""
    try:
        content = parse_object((files / ADDRESS).read_bytes(), max_bytes=MOST_BYTES)
        certificate = (files / CA).read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    return spec.address or f"127.0.0.1:{int(content['port'])}", certificate


def _launch(client: ClusterClient, order: ClientOrder, superlink: tuple[str, str], home: Home) -> Workload:
    spec = client.in_its_team(client_run(order.owner, order.name, superlink))
    with tempfile.TemporaryDirectory(prefix="fairlead-site-") as empty:  # a client of Flower gets its app by the server
        directory = Path(empty if order.site.home is None else order.site.home)
        admitted = admit(client, spec, directory, probing=CheckPrograms.ELSEWHERE)
        return client.launch(
            admitted.spec, directory=admitted.directory, environ=_environment(home, order) if order.site.home else None
        )


def _environment(home: Home, order: ClientOrder) -> Mapping[str, str]:
    """Return the environment in which the federation was submitted, which its clients on this machine have, too."""
    content = parse_object(home.environment(order.owner.uid).read_bytes(), max_bytes=MOST_BYTES)
    return {str(name): str(value) for name, value in content.items() if name != "FAIRLEAD_HOME"}


def _halted(client: ClusterClient, order: ClientOrder, run: Workload | None) -> ClientReport:
    """Stop, suspend or delete the client of a site."""
    if run is None:
        return ClientReport(settled=Intent.DELETE, message="it has no client there")
    phase = run.status.phase
    if run.intent is not order.intent and not (phase.is_final and order.intent is not Intent.DELETE):
        client.set_intent(run.uid, order.intent)
        client.nudge()
    return ClientReport(phase=phase, settled=settled_as(run))


def _run_of(client: ClusterClient, order: ClientOrder) -> Workload | None:
    """Return the unfinished run of a site's client, or else the newest."""
    name = order.owner.spec.described_site(order.name).name
    label = RunSelection(labels=((CLIENT_OF, order.owner.uid),))
    mine = [run for run in client.select(label) if isinstance(run.spec, Training) and run.spec.name == name]
    chosen = next((run for run in mine if not run.status.phase.is_final), mine[0] if mine else None)
    return cast("Workload | None", chosen)


def _read_output(client: ClusterClient, run: Workload) -> tuple[str | None, str]:
    """Return the public key that a client wrote last, and why it does not reach the server; empty if it does."""
    key, message = None, ""
    query = LogQuery(prefix=OWN_LINE, attempt=run.status.attempt, tail=LAST_LINES)
    for line in client.logs(run.uid, query):
        if (match := KEY.fullmatch(line.text)) is not None:
            key, message = match[1], ""
        elif line.text.startswith(UNREACHABLE):
            message = line.text.removeprefix(SAYS)[:LONGEST_SENTENCE]
        else:
            message = ""
    return key, message


def _enroll(files: Path, site: str, key: str) -> None:
    """Give the server the public key of a site, unless it has it."""
    place = files / ENROLLED / f"{site}.pub"
    if place.parent.is_dir() and not (place.exists() and place.read_text(encoding="utf-8") == key):
        write_atomically(place, key)
