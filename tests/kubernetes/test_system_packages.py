"""What real nodes need of Debian: installed by who may, once, unless somebody has declined; then told."""

import os
from pathlib import Path

import pytest

from tests.kubernetes.testcluster import leftovers, real_nodes
from tests.kubernetes.testcluster.errors import Unavailable
from tests.system_packages import wants_long

INSTALLS = """#!/bin/sh
echo "$@" >> {asked}
[ "$1" = install ] || exit 0
for name in {programs}; do ln -sf /bin/true {place}/$name; done
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Debian machine of root's without containerd; what its apt-get is asked for is written there."""
    place, asked = tmp_path / "bin", tmp_path / "asked"
    place.mkdir()
    (place / "apt-get").write_text(
        INSTALLS.format(asked=asked, programs=" ".join(real_nodes.PROGRAMS), place=place).replace("ln ", "/bin/ln ")
    )
    (place / "apt-get").chmod(0o755)
    (tmp_path / "cgroups" / "memory").mkdir(parents=True)
    (tmp_path / "cni" / "bridge").mkdir(parents=True)
    asked.touch()
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(real_nodes.DECLINED, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(leftovers, "CGROUPS", tmp_path / "cgroups")
    monkeypatch.setattr(real_nodes, "CNI_PROGRAMS", tmp_path / "cni")
    return asked


def test_what_is_missing_is_installed_once(asked: Path) -> None:
    for _ in range(2):
        real_nodes.require()
    first, second = asked.read_text().splitlines()
    assert first.startswith("update")
    assert second.split()[-5:] == list(real_nodes.DEBIAN_PACKAGES)


def test_who_declines_is_told_what_is_missing(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(real_nodes.DECLINED, "--no-system-packages")
    with pytest.raises(Unavailable, match=r"need containerd, .*: apt-get install .* \(--no-system-packages"):
        real_nodes.require()
    assert asked.read_text() == ""


def test_who_is_not_root_is_asked_for_nothing(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not real_nodes.may_install()
    with pytest.raises(Unavailable, match="need root"):
        real_nodes.require()


def test_only_a_command_that_runs_real_nodes_asks() -> None:
    assert wants_long("long")
    assert wants_long("")
    assert wants_long("kubernetes")
    assert not wants_long("not long and not frameworks and not browser")
    assert not wants_long("not slow and not kubernetes")
