"""Reads what a federation's judge tells the programs of its server and its sites, and the files that they share.

Server and sites have a directory each, that of their run. A site reads the server's address and certificate there, and
writes its public key to it; its private key and its data stay where the site runs. A site in another cluster gets
address and certificate in its variable, and writes its public key to its output, where visits read it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from fairlead.runtime.paths import below
from fairlead.untrusted_json import parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VARIABLE = "FEDERATION"
REPORT = "FEDERATION_REPORT"
STATE = "FEDERATION_STATE"
ADDRESS, CA, ENROLLED = "address.json", "ca.crt", "enrolled"
SAYS = "fairlead: "
PUBLIC_KEY = f"{SAYS}public key "
UNREACHABLE = f"{SAYS}it does not reach its server at "
LONGEST_KEY = 1_000
LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class FederationSettings:
    """The values that the judge wrote into the variable ``FEDERATION``.

    Attributes:
        name: The federation's name.
        server_uid: The uid of the server's run.
        sites: Names of the enrolled sites, in the order of the spec.
        site: The site of this program; None for the server.
        data: The site's data, as the spec gives it.
        app: Directory of the Flower app; None for programs of another framework.
        rounds: Number of rounds.
        min_sites: Updates that a round needs.
        deadline_s: Time of a round's training, and of its evaluation; None for the app's own.
        sample: Sites that train in a round; None for the app's own share.
        privacy: Clip and noise multiplier of the updates, the probability with which a site takes part in a round, and
            the most rounds within the budget; None without a budget.
        aggregate: Name of the class in ``flwr.serverapp.strategy`` in place of the app's own, and its arguments.
        address: Host and port at which sites of other clusters reach the server; None without any.
        superlink: Of a site in another cluster: the server's host and port, and its CA certificate as PEM.
    """

    name: str
    server_uid: str
    sites: tuple[str, ...]
    site: str | None
    data: str | None
    app: str | None
    rounds: int
    min_sites: int
    deadline_s: float | None
    sample: int | None = None
    aggregate: list[Any] | None = None
    privacy: Mapping[str, float] | None = None
    address: str | None = None
    superlink: tuple[str, str] | None = None


def read_settings(environ: Mapping[str, str]) -> FederationSettings:
    """Return the settings of this process.

    Raises:
        KeyError: It was not started by a federation.
    """
    content = json.loads(environ[VARIABLE])
    superlink = content["superlink"]
    lists = {"sites": tuple(content["sites"]), "superlink": None if superlink is None else tuple(superlink)}
    return FederationSettings(**{**content, **lists})


def own_directory(environ: Mapping[str, str]) -> Path:
    """Return the private directory of this run, mode 0700."""
    directory = Path(environ["FAIRLEAD_RUN_DIR"], "federation")
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory


def server_directory(environ: Mapping[str, str], settings: FederationSettings) -> Path:
    """Return the directory of the server's run, which may not exist yet."""
    return below(Path(environ["FAIRLEAD_RUN_DIR"]).parent.parent, settings.server_uid, "files", "federation")


def server_files(run_directory: Path) -> Path:
    """Return the private directory of a server's run, from the directory of that run."""
    return run_directory / "files" / "federation"


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file by another content in one step, readable by this user alone."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


class ReportReader:
    """Reads the lines that the processes of a Flower app append to a file, each a JSON object."""

    def __init__(self, path: Path) -> None:
        """Begin at the end of what an earlier attempt wrote."""
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Return the reports since the last call; a line that is no report is skipped."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(1 << 20)
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        reports = []
        for line in complete.splitlines():
            try:
                report = parse_object(line, max_bytes=LONGEST_LINE)
            except ValueError:
                continue  # the app may print to any file; what cannot be read says nothing about a round
            reports.append(report)
        return reports
