"""Logins are found where `docker login` leaves them."""

import base64
import json
import stat
from pathlib import Path

import pytest

from fairlead.control.image.registry_logins import Login, find_login
from fairlead.errors import ClusterError

AUTH = base64.b64encode(b"ada:se:cret").decode()


def _config(home: Path, **content: object) -> dict[str, str]:
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker" / "config.json").write_text(json.dumps(content))
    return {"HOME": str(home)}


def test_a_login_is_that_of_the_registry_and_docker_hubs_has_an_address_of_its_own(tmp_path: Path) -> None:
    environ = _config(tmp_path, auths={"ghcr.io": {"auth": AUTH}, "https://index.docker.io/v1/": {"username": "hub"}})
    assert find_login("ghcr.io", environ) == Login(user="ada", password="se:cret")
    assert find_login("docker.io", environ) == Login(user="hub")
    assert find_login("quay.io", environ) is None
    assert find_login("ghcr.io", {"HOME": str(tmp_path / "nobody")}) is None


def test_a_helper_is_asked_and_its_tokens_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-box"
    helper.write_text(
        '#!/bin/sh\nread key\n[ "$key" = ghcr.io ] && echo \'{"Username": "ada", "Secret": "x"}\' && exit 0\n'
        '[ "$key" = quay.io ] && echo \'{"Username": "<token>", "Secret": "t"}\' && exit 0\n'
        '[ "$key" = none.io ] && echo "credentials not found" && exit 1\necho "it is locked"; exit 1\n'
    )
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    hosts = ("ghcr.io", "quay.io", "none.io", "locked.io")
    environ = _config(tmp_path, credHelpers=dict.fromkeys(hosts, "box"))
    assert find_login("ghcr.io", environ) == Login(user="ada", password="x")
    assert find_login("quay.io", environ) == Login(identity_token="t")
    assert find_login("none.io", environ) is None
    with pytest.raises(ClusterError, match="it is locked"):
        find_login("locked.io", environ)
    with pytest.raises(ClusterError, match="not on the PATH"):
        find_login("ghcr.io", _config(tmp_path, credHelpers={"ghcr.io": "elsewhere"}))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    environ = _config(tmp_path, auths={"ghcr.io": {"auth": "*"}})
    with pytest.raises(ClusterError, match=r"config.json: the login of ghcr.io"):
        find_login("ghcr.io", environ)
    (tmp_path / ".docker" / "config.json").write_text("{")
    with pytest.raises(ClusterError, match=r"config.json, where logins for registries are"):
        find_login("ghcr.io", environ)
