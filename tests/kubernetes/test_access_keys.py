"""Keys of a team as its ConfigMap has them, which its members may write by hand."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.client.access_keys import add_key, keys_of
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.names import KEY_USES
from fairlead.cluster.kubernetes.operator.pods.gateways import USES_S, DemandReport, Gateways
from fairlead.cluster.kubernetes.workloads.team_keys import read_keys
from fairlead.errors import Conflict
from fairlead.state.access_keys import MOST_KEYS, new_key
from tests.kubernetes.turns import a_turn


class Server:
    """A ConfigMap."""

    def __init__(self, data: dict[str, str]) -> None:
        metadata = {"name": "keys", "namespace": "t", "resourceVersion": "1"}
        self.content: dict[str, Any] = {"metadata": metadata, "data": data}

    def get(self, path: str) -> dict[str, Any]:
        return self.content

    def merge(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.content["data"] |= body["data"]
        return self.content


def a_map(**records: Any) -> dict[str, Any]:
    return Server({name: json.dumps(record) for name, record in records.items()}).content


def test_a_key_and_when_it_expires_read_back_as_they_were_written() -> None:
    server: Any = Server({})
    kept = [new_key("t", "a", 100.0)[1], new_key("t", "b", 200.0, valid_s=60.0)[1]]
    for key in kept:
        add_key(server, key, "")
    assert keys_of(server, "t") == tuple(kept)
    assert [key.expires_at for key in kept] == [None, 260.0]


@pytest.mark.parametrize("expires_at", ["soon", [], {}, True, 1e400])
def test_a_key_whose_end_cannot_be_read_is_none(expires_at: object) -> None:
    right = {"sha256": "a" * 64, "created_at": 1.0}
    found = read_keys(a_map(right=right, wrong={**right, "expires_at": expires_at})).keys
    assert [key.name for key in found] == ["right"]


def test_a_team_with_as_many_keys_as_it_may_have_gets_no_other_until_it_revokes_one() -> None:
    server: Any = Server({})
    for number in range(MOST_KEYS):
        add_key(server, new_key("t", f"k{number}", float(number))[1], "")
    with pytest.raises(Conflict, match="`fairlead keys revoke k0 --team t --context c` removes the oldest"):
        add_key(server, new_key("t", "more", 1e9)[1], "--context c")
    del server.content["data"]["k0"]
    add_key(server, new_key("t", "more", 1e9)[1], "")
    assert len(keys_of(server, "t")) == MOST_KEYS


def test_of_more_keys_than_a_team_may_have_the_oldest_count() -> None:
    records = {f"k{n}": {"sha256": f"{n:064x}", "created_at": float(n)} for n in range(7_000)}
    found = read_keys(a_map(**dict(reversed(records.items())))).keys
    assert [key.name for key in found] == [f"k{n}" for n in range(MOST_KEYS)]


@pytest.mark.parametrize(
    "annotation", [None, 5, "", "[]", "[" * 9_000, '{"x": 1}', json.dumps({"a" * 64: "soon"}), "x" * 40_000]
)
def test_uses_of_keys_that_cannot_be_read_are_not_known(annotation: object) -> None:
    content = a_map(k={"sha256": "a" * 64, "created_at": 1.0})
    content["metadata"]["annotations"] = {KEY_USES: annotation}
    assert [key.last_used_at for key in read_keys(content).keys] == [None]


class Work:
    """An agent that works at once."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def submit(self, run: str, name: str, job: Callable[[], None]) -> None:
        self.names.append(name)
        job()


def test_uses_of_keys_are_written_where_the_team_reads_them_and_not_often(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous()))
    gateways: Any = Gateways(client, Informers(client))
    content = a_map(used={"sha256": "a" * 64, "created_at": 1.0}, idle={"sha256": "b" * 64, "created_at": 1.0})
    written: list[tuple[str, Any]] = []

    def merge(path: str, body: dict[str, Any]) -> dict[str, Any]:
        written.append((path, body))
        content["metadata"]["annotations"] = body["metadata"]["annotations"]
        return content

    monkeypatch.setattr(client, "merge", merge)
    monkeypatch.setattr(Gateways, "is_known", property(lambda _: True))
    reports = [{"a" * 64: 600}, {"a" * 64: 660, "c" * 64: 900}, "none", {"a" * 64: "soon"}]
    told = [DemandReport(key=str(n), version=1, pod="p", document={"keys": uses}) for n, uses in enumerate(reports)]
    monkeypatch.setattr(gateways._reports, "all", lambda: told)
    monkeypatch.setattr(gateways._keys, "all", lambda: [read_keys(content)])
    work: Any = Work()
    gateways.act(a_turn(work, 1000.0))
    assert [path for path, _ in written] == ["/api/v1/namespaces/t/configmaps/keys"]
    assert {key.name: key.last_used_at for key in read_keys(content).keys} == {"used": 660.0, "idle": None}
    gateways.act(a_turn(work, 1001.0))
    told[0] = DemandReport(key="0", version=2, pod="p", document={"keys": {"b" * 64: 1200}})
    gateways.act(a_turn(work, 1000.0 + USES_S - 1))
    assert len(written) == 1
    gateways.act(a_turn(work, 1000.0 + USES_S))
    assert {key.name: key.last_used_at for key in read_keys(content).keys} == {"used": 660.0, "idle": 1200.0}
    gateways.act(a_turn(work, 1000.0 + 2 * USES_S))
    assert len(written) == 2
