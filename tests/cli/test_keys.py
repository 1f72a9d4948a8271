"""Keys of teams, as commands make, list and revoke them."""

import json
import re
from pathlib import Path

from fairlead.state.access_keys import hash_of
from tests.cli.conftest import Call


def test_a_key_is_shown_once_and_kept_as_its_hash(call: Call, desk: Path) -> None:
    made = call("keys", "create", "ci", "--team", "search")
    text = made.out.strip()
    assert text.startswith("fl-")
    assert "It is not shown again" in made.err
    kept = (desk / "home" / "access-keys.json").read_text()
    assert text not in kept
    assert hash_of(text) in kept
    (listed,) = json.loads(call("keys", "list", "--json").out)
    assert (listed["team"], listed["name"]) == ("search", "ci")
    assert text not in call("keys", "list").out


def test_a_key_that_was_revoked_is_gone(call: Call) -> None:
    call("keys", "create", "ci")
    again = call("keys", "create", "ci")
    assert again.code == 6
    assert "Team default has a key ci" in again.err
    assert call("keys", "create", "ci", "--team", "ads").code == 0
    first = re.search("`fairlead (keys revoke .*)` first", call("keys", "create", "ci", "--team", "ads").err)
    assert first is not None
    assert call(*first[1].split()).code == 0
    assert call("keys", "create", "ci", "--team", "ads").code == 0
    assert "are refused from now on" in call("keys", "revoke", "ci").err
    missing = call("keys", "revoke", "ci")
    assert missing.code == 5
    assert "it has: none" in missing.err
    assert [each["team"] for each in json.loads(call("keys", "list", "--json").out)] == ["ads"]


def test_the_last_use_of_a_key_is_listed(call: Call, desk: Path) -> None:
    text = call("keys", "create", "ci").out.strip()
    call("keys", "create", "idle")
    serving = desk / "home" / "serving"
    serving.mkdir(parents=True, exist_ok=True)
    (serving / "demand.json").write_text(json.dumps({"keys": {hash_of(text): 1_700_000_040}}))
    found = {each["name"]: each["last_used_at"] for each in json.loads(call("keys", "list", "--json").out)}
    assert found == {"ci": 1_700_000_040, "idle": None}
    head, used, idle = call("keys", "list").out.splitlines()
    assert head.split() == ["TEAM", "NAME", "CREATED", "EXPIRES", "LAST", "USED"]
    assert "2023-11-14" in used
    assert idle.endswith("-")


def test_a_name_that_is_none_is_refused(call: Call) -> None:
    for arguments in (("Not one",), ("ci", "--team", "A B")):
        refused = call("keys", "create", *arguments)
        assert refused.code == 2
        assert "is not a name" in refused.err
