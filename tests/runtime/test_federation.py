"""The programs of a federation make keys that nobody else reads, wrap an app in a copy, and read what it reports."""

import json
import ssl
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fairlead.control.federations import admit_federation
from fairlead.errors import Conflict
from fairlead.runtime.errors import Misuse
from fairlead.runtime.federation import identities
from fairlead.runtime.federation.server import FINISHED, FlowerServer, flower_environment, follow
from fairlead.runtime.federation.settings import ADDRESS, FederationSettings, ReportReader, write_atomically
from fairlead.runtime.federation.site import bring_key, node_config
from fairlead.runtime.federation.wrapped_copy import make_wrapped_copy
from fairlead.specs.aggregation import AggregationStrategy, Aggregator, Privacy
from fairlead.specs.federation import Federation, Site

SETTINGS = FederationSettings(
    name="digits", server_uid="s", sites=("north", "south"), site="south", data="/data/a b", app="app", rounds=3,
    min_sites=1, deadline_s=None,
)  # fmt: skip
PROJECT = """\
[project]
name = "digits"
version = "1.0.0"

[tool.flwr.app]
publisher = "example"

[tool.flwr.app.components]
serverapp = "digits.server_app:app"
clientapp = 'digits.client_app:app'  # either quote

[tool.flwr.app.config]
serverapp-note = "kept"
"""


def an_app(directory: Path, project: str = PROJECT) -> Path:
    app = directory / "app"
    (app / "digits").mkdir(parents=True)
    (app / "pyproject.toml").write_text(project)
    (app / "digits" / "server_app.py").write_text("app = 1\n")
    return app


class Reports:
    """A run that keeps what is reported to it."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, Any]] = []
        self.metrics: dict[str, Any] = {}

    def progress(self, step: int, *, total: int, loss: Any, **metrics: Any) -> None:
        self.rounds.append((step, loss))
        self.metrics = metrics


def test_a_server_has_a_certificate_for_loopback_and_keys_that_only_its_user_reads(tmp_path: Path) -> None:
    identities.make_server_identity(tmp_path)
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "server.crt", "server.key"]
    before = (tmp_path / "server.crt").read_bytes()
    identities.make_server_identity(tmp_path)
    assert (tmp_path / "server.crt").read_bytes() == before


def test_a_site_makes_its_key_once_and_shows_its_public_part(tmp_path: Path) -> None:
    public = identities.make_site_key(tmp_path)
    assert identities.make_site_key(tmp_path) == public
    assert (tmp_path / "site.key").stat().st_mode & 0o777 == 0o600
    serialization.load_ssh_public_key(public.encode())


def test_an_app_is_wrapped_in_a_copy_and_stays_as_it_is(tmp_path: Path) -> None:
    app = an_app(tmp_path)
    make_wrapped_copy(app, tmp_path / "copy", SETTINGS)
    assert (app / "pyproject.toml").read_text() == PROJECT
    assert sorted(path.name for path in app.iterdir()) == ["digits", "pyproject.toml"]
    changed = (tmp_path / "copy" / "pyproject.toml").read_text()
    assert 'serverapp = "fairlead_server_app:server_app"' in changed
    assert 'clientapp = "fairlead_client_app:client_app"  # either quote' in changed
    assert 'serverapp-note = "kept"' in changed
    for name in ("fairlead_server_app", "fairlead_client_app", "fairlead_flower_app"):
        source = (tmp_path / "copy" / f"{name}.py").read_text()
        compile(source, name, "exec")
        assert "fairlead.runtime" not in source, "a site need not have Fairlead"


@pytest.mark.parametrize(
    ("project", "sentence"),
    [
        (None, "does not exist; give the directory of a Flower app"),
        ("[project]\nname = 'a'\n", "names no `serverapp` and `clientapp`"),
        ("not toml", "names no `serverapp` and `clientapp`"),
    ],
)
def test_what_is_no_flower_app_is_refused(tmp_path: Path, project: str | None, sentence: str) -> None:
    app = an_app(tmp_path, project or "")
    if project is None:
        (app / "pyproject.toml").unlink()
    with pytest.raises(Misuse, match=sentence):
        make_wrapped_copy(app, tmp_path / "copy", SETTINGS)


OWN_TRAINING = """\
from flwr.serverapp.strategy import FedAvg

class Ordered(FedAvg):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, sorted(replies))

class Model:
    def forward(self): ...

strategy = Ordered()
"""


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        (OWN_TRAINING, True),
        (OWN_TRAINING.replace("aggregate_train", "aggregate_evaluate"), False),
        (f"{OWN_TRAINING}strategy = FedAvg() if plain else Ordered()\n", False),
        ("from flwr.serverapp.strategy import FedAvg\nstrategy = FedAvg()\n", False),
    ],
)
def test_an_app_that_trains_in_its_own_way_is_refused_before_it_starts_another_strategy(
    tmp_path: Path, source: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = an_app(tmp_path)
    (app / "digits" / "server_app.py").write_text(source)
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    spec = Federation(name="digits", app=str(app), sites={"north": Site(), "south": Site()})
    admit_federation(spec, tmp_path, has_containers=False)
    chosen = replace(spec, aggregate=AggregationStrategy(strategy=Aggregator.FEDADAM))
    if not is_refused:
        admit_federation(chosen, tmp_path, has_containers=False)
        return
    with pytest.raises(Conflict, match="Ordered has its own aggregate_train, which FedAdam would not do"):
        admit_federation(chosen, tmp_path, has_containers=False)


def test_a_node_knows_its_number_its_name_and_its_data() -> None:
    assert node_config(SETTINGS) == 'partition-id=1 num-partitions=2 site="south" data="/data/a b"'


def test_a_site_brings_its_key_and_waits_until_it_is_enrolled(tmp_path: Path) -> None:
    assert bring_key(tmp_path / "absent", "south", "key") is None
    (tmp_path / "enrolled").mkdir()
    assert bring_key(tmp_path, "south", "key") is None
    assert (tmp_path / "enrolled" / "south.pub").read_text() == "key"
    write_atomically(tmp_path / ADDRESS, json.dumps({"port": 4000, "enrolled": ["north"]}))
    assert bring_key(tmp_path, "south", "key") is None
    write_atomically(tmp_path / ADDRESS, json.dumps({"port": 4000, "enrolled": ["north", "south"]}))
    assert bring_key(tmp_path, "south", "key") == 4000


def test_a_superlink_that_never_served_leaves_no_database_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []

    def begin(_: FlowerServer, argv: list[str]) -> None:
        begun.append((tmp_path / "superlink.db").exists())
        raise InterruptedError

    monkeypatch.setattr(FlowerServer, "_popen", begin)
    monkeypatch.setattr("fairlead.runtime.federation.server.flower_program", lambda name: name)
    for address in (None, {"port": 4000, "enrolled": [], "keys": {}}):
        (tmp_path / "superlink.db").write_text("half of it")
        if address is not None:
            write_atomically(tmp_path / ADDRESS, json.dumps(address))
        with pytest.raises(InterruptedError):
            FlowerServer(SETTINGS, tmp_path, {}).start()
    assert begun == [False, True]


def test_reports_are_read_once_in_whole_lines_and_what_is_none_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text('{"event": "round", "round": 1}\n')
    reader = ReportReader(path)
    assert reader.new() == []
    with path.open("a") as file:
        file.write('{"event": "round", "round": 2}\nprinted by the app\n[1]\n{"event": "rou')
    assert reader.new() == [{"event": "round", "round": 2}]
    with path.open("a") as file:
        file.write('nd", "round": 3}\n')
    assert [report["round"] for report in reader.new()] == [3]


def test_rounds_are_reported_and_only_the_end_of_the_app_ends_it() -> None:
    run = Reports()
    stale = {"event": "failed", "message": "its token is over"}
    rounds = [
        {"event": "round", "round": 1, "loss": None, "site_loss": 0.5, "updates": 2, "sent": 8, "received": 8},
        {"event": "round", "round": 2, "loss": 0.25, "site_loss": 0.5, "updates": 2, "sent": 8, "received": 8},
    ]
    assert follow(run, SETTINGS, [stale, *rounds]) == "its token is over"  # type: ignore[arg-type]
    assert run.rounds == [(1, 0.5), (2, 0.25)]
    assert follow(run, SETTINGS, [stale, {"event": "finished", "round": 3}]) == FINISHED  # type: ignore[arg-type]
    assert follow(run, SETTINGS, []) is None  # type: ignore[arg-type]


def test_updates_that_are_left_out_are_counted_by_problem_and_site() -> None:
    run, left_out = Reports(), Counter[str]()
    reports = [
        {"event": "left_out", "round": 1, "site": "north", "problem": "not_finite"},
        {"event": "left_out", "round": 1, "site": "stranger", "problem": "not_finite"},
        {"event": "left_out", "round": 1, "site": "south", "problem": "anything"},
        {"event": "round", "round": 1, "loss": 0.5, "updates": 1, "releases": 1},
    ]
    follow(run, SETTINGS, reports, left_out)  # type: ignore[arg-type]
    assert left_out == {"not_finite.north": 1}
    assert run.metrics == {"updates": 1, "sent": None, "received": None, "releases": 1, "not_finite.north": 1}


def test_bytes_to_and_from_each_site_are_metrics_of_the_round() -> None:
    run = Reports()
    crossed = {"north": [8, 4], "stranger": [8, 8], "south": ["8", 4]}
    follow(run, SETTINGS, [{"event": "round", "round": 1, "loss": 0.5, "crossed": crossed}])  # type: ignore[arg-type]
    assert {name: value for name, value in run.metrics.items() if value is not None} == {
        "to.north": 8, "from.north": 4, "from.south": 4,
    }  # fmt: skip


def test_a_budget_that_not_even_one_round_fits_is_refused(tmp_path: Path) -> None:
    privacy = Privacy(epsilon=1.0, delta=1e-5, clip=0.5, noise=1.0)
    spec = Federation(name="digits", app=str(an_app(tmp_path)), sites={"north": Site()}, privacy=privacy)
    with pytest.raises(Conflict, match="one round with noise 1 spends epsilon 4"):
        admit_federation(spec, tmp_path, has_containers=False)


def test_programs_of_flower_keep_their_files_in_the_directory_of_the_run(tmp_path: Path) -> None:
    environment = flower_environment(tmp_path, {"PATH": "/bin"})
    assert environment["FLWR_HOME"] == str(tmp_path / "flwr")
    assert environment["PATH"].endswith(":/bin")
