"""Images go to a real registry and come from it, with whatever it asks of those who come."""

import hashlib
import json
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import __version__
from fairlead.cli import main
from fairlead.control.image import building
from fairlead.control.image.base_images import pull_base
from fairlead.control.image.building import build, push
from fairlead.control.image.content import EMPTY, INDEX, MANIFEST, Blob, Image, to_json
from fairlead.control.image.references import Reference, read_reference
from fairlead.control.image.registry import Registry
from fairlead.errors import ClusterError, NotAllowed, NotFound
from tests.image.images import PACKAGES, base_image, put_base
from tests.image.registries import Access, RegistryServer, login_file, registry

AMD64 = "linux/amd64"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture(autouse=True)
def _packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index is asked; `test_real_image.py` asks one."""
    monkeypatch.setattr(building, "fetch_packages", lambda python, architecture: PACKAGES)


def built_on(base: Reference, place: Path) -> Image:
    """The image, with the base's layers here."""
    place.mkdir(parents=True, exist_ok=True)
    with Registry(base) as source:
        image = build(pull_base(source, base, AMD64, place), place, lambda _: None)
        for layer in image.layers:
            layer.fetch()
    return image


def manifest_of(host: str, name: str, version: str) -> tuple[str, dict[str, Any]]:
    """Digest and content, as another client sees them."""
    asked = urllib.request.Request(f"http://{host}/v2/{name}/manifests/{version}", headers={"Accept": MANIFEST})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        data = answer.read()
        return str(answer.headers["Docker-Content-Digest"]), json.loads(data)


@pytest.mark.slow
def test_an_image_is_built_on_a_base_of_the_registry_and_pushed(shared: RegistryServer, tmp_path: Path) -> None:
    base = put_base(shared.host, tmp_path / "base")
    image = built_on(base, tmp_path / "built")
    target = read_reference(f"{shared.host}/acme/fairlead:1")
    said: list[str] = []
    with Registry(target) as there:
        named = push(image, there, target, said.append)
    assert [each.split()[-1] for each in said] == ["mounted", "sent", "sent", "sent"]
    digest, manifest = manifest_of(shared.host, "acme/fairlead", "1")
    assert str(named) == f"{shared.host}/acme/fairlead@{digest}"
    assert digest == image.digest
    for described in [*manifest["layers"], manifest["config"]]:
        with urllib.request.urlopen(
            f"http://{shared.host}/v2/acme/fairlead/blobs/{described['digest']}", timeout=10
        ) as answer:
            assert f"sha256:{hashlib.sha256(answer.read()).hexdigest()}" == described["digest"]
    settings = image.settings["config"]
    assert settings["User"] == "65532:65532"
    assert settings["Entrypoint"] == ["fairlead"]
    assert "PYTHON_VERSION=3.12.4" in settings["Env"]
    assert f"PYTHONPATH={building.FAIRLEAD}:{building.PACKAGES}" in settings["Env"]


def test_a_pushed_image_has_its_bill_of_materials_inside_and_beside_it(shared: RegistryServer, tmp_path: Path) -> None:
    image = built_on(put_base(shared.host, tmp_path / "base"), tmp_path / "built")
    target = read_reference(f"{shared.host}/acme/billed:1")
    with Registry(target) as there:
        push(image, there, target, lambda _: None)
    assert image.sbom is not None
    document = image.sbom.fetch().read_bytes()
    with tarfile.open(image.layers[-1].fetch()) as layer:
        inside = layer.extractfile(building.SBOM.lstrip("/"))
        assert inside is not None
        assert inside.read() == document
    digest_of_nothing = f"sha256:{hashlib.sha256(b'{}').hexdigest()}"
    empty = Blob(media_type=EMPTY, digest=digest_of_nothing, size=2, fetch=lambda: tmp_path)
    attached = f"sha256:{hashlib.sha256(image.attachment(image.sbom, empty)).hexdigest()}"
    digest, manifest = manifest_of(shared.host, "acme/billed", attached)
    assert digest == attached
    assert manifest["subject"]["digest"] == image.digest
    assert manifest["artifactType"] == "application/spdx+json"
    (described,) = manifest["layers"]
    with urllib.request.urlopen(
        f"http://{shared.host}/v2/acme/billed/blobs/{described['digest']}", timeout=10
    ) as answer:
        assert answer.read() == document


def test_what_the_registry_has_is_not_sent_again(shared: RegistryServer, tmp_path: Path) -> None:
    image = built_on(put_base(shared.host, tmp_path / "base"), tmp_path / "built")
    target = read_reference(f"{shared.host}/acme/again:1")
    with Registry(target) as there:
        push(image, there, target, lambda _: None)
        said: list[str] = []
        push(image, there, target, said.append)
    assert [each.split()[-1] for each in said] == ["there"] * 4


def test_layers_of_a_base_in_another_registry_are_brought_along(shared: RegistryServer, tmp_path: Path) -> None:
    base = put_base(shared.host, tmp_path / "base")
    with registry(tmp_path / "other") as other, Registry(base) as source:
        (tmp_path / "built").mkdir()
        image = build(pull_base(source, base, AMD64, tmp_path / "built"), tmp_path / "built", lambda _: None)
        target = read_reference(f"{other.host}/fairlead")
        said: list[str] = []
        with Registry(target) as there:
            push(image, there, target, said.append)
        assert [each.split()[-1] for each in said] == ["sent"] * 4
        assert manifest_of(other.host, "fairlead", "latest")[0] == image.digest


def test_the_same_input_gives_the_same_archive(
    shared: RegistryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = put_base(shared.host, tmp_path / "base")
    for name in ("first.tar", "second.tar"):
        code = main.call(["image", "build", str(tmp_path / name), "--base-image", str(base), "--json"])
        assert code == 0, capsys.readouterr().err
        told = json.loads(capsys.readouterr().out)
    first, second = (tmp_path / name for name in ("first.tar", "second.tar"))
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as tar:
        files = {each.name: (tar.extractfile(each) or first.open("rb")).read() for each in tar}
    assert list(files) == sorted(files)
    index = json.loads(files["index.json"])
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    described = index["manifests"][0]
    assert described["digest"] == told["digest"]
    assert described["annotations"]["io.containerd.image.name"] == f"docker.io/library/fairlead:{__version__}"
    for name, data in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"
    manifest = json.loads(files[f"blobs/{described['digest'].replace(':', '/')}"])
    assert {f"blobs/{each['digest'].replace(':', '/')}" for each in [*manifest["layers"], manifest["config"]]} < set(
        files
    )


def test_install_names_the_image_that_it_pushed_by_its_digest(
    shared: RegistryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = put_base(shared.host, tmp_path / "base")
    target = f"{shared.host}/acme/installed"
    code = main.call(["install", "--render", "--image-to", target, "--base-image", str(base)])
    said = capsys.readouterr()
    assert code == 0, said.err
    digest, _ = manifest_of(shared.host, "acme/installed", __version__)
    assert f"image: {target}@{digest}" in said.out
    assert main.call(["install", "--render", "--image-to", target, "--image", "x"]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert main.call(["install", "--render", "--image-to", f"{target}@{digest}", "--base-image", str(base)]) == 2
    assert "give a tag, or neither" in capsys.readouterr().err


@pytest.mark.parametrize("access", [Access.PASSWORD, Access.TOKENS])
def test_who_is_not_logged_in_is_told_how_and_who_is_may(
    access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(tmp_path / "registry", access) as server:
        target = read_reference(f"{server.host}/acme/fairlead:1")
        image = base_image(tmp_path / "image")
        with Registry(target) as there, pytest.raises(NotAllowed, match="docker login"):
            push(image, there, target, lambda _: None)
        monkeypatch.setenv("DOCKER_CONFIG", str(login_file(tmp_path / "login", server.host)))
        with Registry(target) as there:
            assert push(image, there, target, lambda _: None).digest == image.digest
            assert there.manifest("acme/fairlead", "1")[1] == image.manifest
        other = read_reference(f"{server.host}/other/fairlead:1")
        (tmp_path / "built").mkdir()
        with Registry(target) as source:
            image = build(pull_base(source, target, AMD64, tmp_path / "built"), tmp_path / "built", lambda _: None)
        said: list[str] = []
        with Registry(other) as there:
            push(image, there, other, said.append)
        assert said[0].endswith("mounted")
        if access is Access.TOKENS:
            wanted = {"repository:acme/fairlead:pull", "repository:acme/fairlead:pull,push"}
            assert set(server.scopes) == {*wanted, "repository:other/fairlead:pull,push"}
            entry = {"identitytoken": "refreshing"}
            monkeypatch.setenv("DOCKER_CONFIG", str(login_file(tmp_path / "refresh", server.host, **entry)))
            with Registry(target) as there:
                assert there.has("acme/fairlead", image.layers[0].digest)


def test_an_index_is_asked_for_the_platform(shared: RegistryServer, tmp_path: Path) -> None:
    manifests = []
    for architecture in ("amd64", "arm64"):
        name = f"many:{architecture}"
        reference = put_base(shared.host, tmp_path / architecture, name, architecture=architecture)
        with Registry(reference) as there:
            _, data = there.manifest("many", architecture)
        described = {"mediaType": MANIFEST, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
        manifests.append({**described, "platform": {"os": "linux", "architecture": architecture}})
    index = to_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    asked = urllib.request.Request(
        f"http://{shared.host}/v2/many/manifests/all", data=index, headers={"Content-Type": INDEX}, method="PUT"
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert answer.status == 201
    reference = read_reference(f"{shared.host}/many:all")
    with Registry(reference) as there:
        for architecture, described in zip(("amd64", "arm64"), manifests, strict=True):
            base = pull_base(there, reference, f"linux/{architecture}", tmp_path)
            assert base.name.digest == described["digest"]
        with pytest.raises(ClusterError, match=r"nothing for linux/s390x; it has: linux/amd64, linux/arm64"):
            pull_base(there, reference, "linux/s390x", tmp_path)


def test_a_base_without_a_python_that_is_known_is_refused(shared: RegistryServer, tmp_path: Path) -> None:
    for python, why in (("", "does not say which Python"), ("3.9.1", "needs one from 3.11 to 3.14")):
        base = put_base(shared.host, tmp_path / f"base{python}", f"old:x{python}", python=python)
        with pytest.raises(ClusterError, match=why):
            built_on(base, tmp_path / "built")


def test_what_is_not_there_or_not_what_it_says_is_told(shared: RegistryServer, tmp_path: Path) -> None:
    missing = read_reference(f"{shared.host}/nothing:1")
    with Registry(missing) as there, pytest.raises(NotFound, match="Is the name right"):
        pull_base(there, missing, AMD64, tmp_path)
    nowhere = read_reference("127.0.0.1:1/nothing:1")
    with Registry(nowhere) as there, pytest.raises(ClusterError, match=r"127.0.0.1:1 cannot be reached"):
        there.manifest("nothing", "1")
    with registry(tmp_path / "broken") as broken:
        base = put_base(broken.host, tmp_path / "base")
        blob = base_image(tmp_path / "base").layers[0]
        hexadecimal = blob.digest.removeprefix("sha256:")
        place = tmp_path / "broken/content/docker/registry/v2/blobs/sha256" / hexadecimal[:2] / hexadecimal / "data"
        place.write_bytes(bytes(blob.size))
        with Registry(base) as there, pytest.raises(ClusterError, match="what came as"):
            there.fetch(base.repository, blob.digest, tmp_path / "blob")
        assert not (tmp_path / "blob").exists()
