"""The image with its real packages, from the package index."""

import json
import tarfile
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.control.image import building
from tests.image.images import put_base
from tests.image.registries import registry

pytestmark = pytest.mark.long


@pytest.mark.parametrize(("python", "architecture"), [("3.11.2", "amd64"), ("3.13.1", "arm64")])
def test_every_package_is_there_for_other_pythons_and_other_machines(
    python: str, architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with registry(tmp_path / "registry") as server:
        base = put_base(server.host, tmp_path / "base", python=python, architecture=architecture)
        argv = ["--base-image", str(base), "--platform", f"linux/{architecture}", "--json"]
        digests = []
        for name in ("first.tar", "second.tar"):
            assert main.call(["image", "build", str(tmp_path / name), *argv]) == 0, capsys.readouterr().err
            digests.append(json.loads(capsys.readouterr().out)["digest"])
    assert digests[0] == digests[1]
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    names: set[str] = set()
    with tarfile.open(tmp_path / "first.tar") as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            if file is not None and entry.size > 10_000:
                with tarfile.open(fileobj=file) as layer:
                    names |= set(layer.getnames())
    packages = building.PACKAGES.lstrip("/")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[architecture]
    tag = f"cpython-{''.join(python.split('.')[:2])}-{machine}-linux-gnu.so"
    assert f"{packages}/numpy/_core/_multiarray_umath.{tag}" in names
    assert f"{packages}/aiohttp/__init__.py" in names
    assert f"{building.FAIRLEAD.lstrip('/')}/fairlead/cli/main.py" in names
    assert "usr/local/bin/fairlead" in names
