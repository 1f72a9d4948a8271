"""Images of environments go to a real registry once, with what it lacks alone, and not where something fails."""

import hashlib
import http.server
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.cluster.local.home import Home
from fairlead.control.image.environments import lock_for_pods, note_of, push_environment, with_image
from fairlead.control.image.locks import LockedWheel, lock_of
from fairlead.control.image.registry_settings import RegistrySettings, write_settings
from fairlead.control.image.wheel_layers import PREFIX
from fairlead.control.image.wheels import fetch_wheel, login_of
from fairlead.errors import ClusterError, FairleadError, NotAllowed, NotFound
from fairlead.specs.environment import PythonEnvironment
from fairlead.specs.training import Training
from tests.builders import training
from tests.image.environments import PYTHON, locked, packed_wheel, settings_on
from tests.image.images import put_base
from tests.image.registries import Access, RegistryServer, login_file, registry


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return Home.open()


@pytest.fixture
def settings(shared: RegistryServer, tmp_path: Path, home: Home) -> RegistrySettings:
    settings = settings_on(shared.host, tmp_path / "base")
    settings = replace(settings, url=f"{shared.host}/{tmp_path.name.replace('_', '-')[:40].strip('-').lower()}/env")
    write_settings(home.registry, settings)
    return settings


def a_lock(*wheels: Path) -> str:
    return lock_of([locked(path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in wheels], PYTHON)


def manifest(name: str) -> dict[str, list[dict[str, object]]]:
    """The manifest of a pushed image, as another client sees it."""
    host, _, rest = name.partition("/")
    repository, _, digest = rest.partition("@")
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    request = urllib.request.Request(f"http://{host}/v2/{repository}/manifests/{digest}", headers=accept)
    with urllib.request.urlopen(request, timeout=10) as answer:
        content: dict[str, list[dict[str, object]]] = json.loads(answer.read())
        return content


def config(name: str) -> dict[str, dict[str, list[str]]]:
    host, _, rest = name.partition("/")
    digest = manifest(name)["config"]["digest"]  # type: ignore[call-overload]
    with urllib.request.urlopen(f"http://{host}/v2/{rest.partition('@')[0]}/blobs/{digest}", timeout=10) as answer:
        content: dict[str, dict[str, list[str]]] = json.loads(answer.read())
        return content


@pytest.mark.slow
def test_an_image_is_pushed_once_and_has_the_same_digest_from_another_machine(
    shared: RegistryServer, settings: RegistrySettings, tmp_path: Path
) -> None:
    wheels = [packed_wheel(tmp_path / "wheels", f"fl_{number}", "1.0", kib=40) for number in range(6)]
    lock, told = a_lock(*wheels), list[str]()
    image = push_environment(lock, settings, tmp_path / "one", os.environ, told.append)
    assert told[0] == f"Building the image of 6 packages on {settings.base_name}."
    assert told[1].startswith("Pushed ")
    env = config(image)["config"]["Env"]
    assert f"PATH={PREFIX}/bin:/usr/local/bin:/usr/bin" in env
    assert f"VIRTUAL_ENV={PREFIX}" in env
    before = len(shared.requests("PUT"))
    assert push_environment(lock, settings, tmp_path / "one", os.environ, told.append) == image
    assert len(shared.requests("PUT")) == before, "nothing is sent again"
    assert len(told) == 2
    elsewhere = replace(settings, url=f"{settings.url}-of-another")
    again = push_environment(lock, elsewhere, tmp_path / "two", os.environ, told.append)
    assert again.partition("@")[2] == image.partition("@")[2]
    assert not list((tmp_path / "one").glob("building-*")), "layers are removed when they are sent"


@pytest.mark.slow
def test_a_changed_requirement_sends_a_tenth_of_the_bytes_at_most(
    shared: RegistryServer, settings: RegistrySettings, tmp_path: Path
) -> None:
    place, store = tmp_path / "wheels", tmp_path / "store"
    large = packed_wheel(place, "fl_large", "1.0", kib=5 << 10)
    small = [packed_wheel(place, f"fl_{number}", "1.0", kib=60) for number in range(20)]
    first = manifest(push_environment(a_lock(large, *small), settings, store, os.environ, lambda _: None))
    newer = [packed_wheel(place, "fl_0", "2.0", kib=60), *small[1:]]
    second = manifest(push_environment(a_lock(large, *newer), settings, store, os.environ, lambda _: None))
    had = {layer["digest"] for layer in first["layers"]}
    sent = sum(int(str(layer["size"])) for layer in second["layers"] if layer["digest"] not in had)
    whole = sum(int(str(layer["size"])) for layer in second["layers"])
    assert 0 < sent <= 0.1 * whole
    assert sum(layer["digest"] not in had for layer in second["layers"]) == 2, "that of the wheel, and the lock"


@pytest.mark.slow
def test_a_registry_that_lost_its_layers_gets_them_again(
    shared: RegistryServer, settings: RegistrySettings, tmp_path: Path
) -> None:
    lock = a_lock(packed_wheel(tmp_path / "wheels", "fl_one", "1.0", kib=8))
    image = push_environment(lock, settings, tmp_path / "store", os.environ, lambda _: None)
    elsewhere = replace(settings, url=f"{settings.url}-new")
    again = push_environment(lock, elsewhere, tmp_path / "store", os.environ, lambda _: None)
    assert again.partition("@")[2] == image.partition("@")[2]
    assert manifest(again)["layers"] == manifest(image)["layers"]


def a_run(workdir: Path, environment: PythonEnvironment) -> Training:
    return training(name="fl", run="python a.py", workdir=str(workdir), environment=environment)


@pytest.mark.slow
def test_a_run_is_locked_for_the_python_of_the_base_and_stays_so(
    settings: RegistrySettings, tmp_path: Path, home: Home
) -> None:
    work = tmp_path / "work"
    packed_wheel(work / "wheels", "fl_one", "1.0")
    (work / "requirements.txt").write_text("--no-index\n--find-links wheels\nfl_one\n")
    run = a_run(work, PythonEnvironment(file="auto"))
    locked_run = lock_for_pods(run, work, home, os.environ, ()).spec
    assert locked_run.environment is not None
    assert locked_run.environment.file == "requirements.txt"
    assert 'name = "fl-one"\nversion = "1.0"' in locked_run.environment.lock
    assert note_of(locked_run, home).startswith("environment: 1 package, ")
    packed_wheel(work / "wheels", "fl_one", "2.0")
    assert lock_for_pods(run, work, home, os.environ, ()).spec == locked_run
    pushed = with_image(locked_run, home, os.environ, lambda _: None)
    assert pushed.environment is not None
    assert pushed.environment.image.startswith(f"{settings.url}@sha256:")
    assert with_image(pushed, home, os.environ, lambda _: None) is pushed
    with_secret = replace(settings, pull_secret="pull")
    write_settings(home.registry, with_secret)
    assert lock_for_pods(run, work, home, os.environ, ()).spec.kubernetes.pod == {
        "spec": {"imagePullSecrets": [{"name": "pull"}]}
    }


@pytest.mark.slow
def test_what_cannot_be_had_is_one_sentence_and_nothing_is_pushed(
    shared: RegistryServer, settings: RegistrySettings, tmp_path: Path, home: Home
) -> None:
    work = tmp_path / "work"
    packed_wheel(work / "wheels", "fl_one", "1.0")
    two = packed_wheel(work / "wheels", "fl_two", "1.0", data={"fl_two-1.0.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: fl_two\nVersion: 1.0\nRequires-Dist: fl_one>=2\n"
    )})  # fmt: skip
    binary = packed_wheel(tmp_path / "other", "fl_three", "1.0")
    binary.rename(two.with_name("fl_three-1.0-cp39-cp39-manylinux_2_28_x86_64.whl"))
    before = len(shared.requests("PUT"))

    def refusal(requirements: str, python: str | None = None) -> str:
        (work / "requirements.txt").write_text(f"--no-index\n--find-links wheels\n{requirements}\n")
        with pytest.raises(FairleadError) as caught:
            lock_for_pods(a_run(work, PythonEnvironment(file="auto", python=python)), work, home, os.environ, ())
        return str(caught.value)

    assert refusal("fl_nobody").startswith("fl: environment: no index has a package fl-nobody.")
    assert "fl_one" in refusal("fl_two").replace("-", "_")
    assert "fl-three" in refusal("fl_three").replace("_", "-")
    assert refusal("fl_one", "3.11").startswith("fl: environment.python: 3.11 was asked for, and the base image ")
    assert len(shared.requests("PUT")) == before
    home.registry.unlink()
    assert "no registry is set for it; `fairlead registry set" in refusal("fl_one")


@pytest.mark.slow
def test_a_file_that_changed_or_is_gone_is_not_built_into_an_image(settings: RegistrySettings, tmp_path: Path) -> None:
    wheel = packed_wheel(tmp_path / "wheels", "fl_one", "1.0")
    lock = a_lock(wheel)
    wheel.write_bytes(wheel.read_bytes() + b" ")
    with pytest.raises(ClusterError, match="A file of fl_one has another hash than its lock"):
        push_environment(lock, settings, tmp_path / "store", os.environ, lambda _: None)
    wheel.unlink()
    with pytest.raises(NotFound, match=r"fl_one-1\.0-py3-none-any\.whl of the lock is not there"):
        push_environment(lock, settings, tmp_path / "store", os.environ, lambda _: None)


@pytest.mark.slow
def test_a_registry_that_refuses_the_login_says_how_to_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with registry(tmp_path / "registry", Access.PASSWORD) as server:
        monkeypatch.setenv("DOCKER_CONFIG", str(login_file(tmp_path / "docker", server.host)))
        settings = settings_on(server.host, tmp_path / "base")
        lock = a_lock(packed_wheel(tmp_path / "wheels", "fl_one", "1.0"))
        monkeypatch.setenv(
            "DOCKER_CONFIG", str(login_file(tmp_path / "docker", server.host, username="x", password="y"))
        )
        with pytest.raises(NotAllowed, match=f"docker login {server.host}"):
            push_environment(lock, settings, tmp_path / "store", os.environ, lambda _: None)
        monkeypatch.setenv("DOCKER_CONFIG", str(login_file(tmp_path / "docker", server.host)))
        assert push_environment(lock, settings, tmp_path / "store", os.environ, lambda _: None)


@pytest.mark.slow
def test_an_index_gets_its_own_login_alone(tmp_path: Path) -> None:
    wheel = packed_wheel(tmp_path / "wheels", "fl_one", "1.0")
    content, seen = wheel.read_bytes(), list[str | None]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            body = content if seen[-1] == "Basic dTpw" else b""
            self.send_response(200 if body else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        host = f"http://127.0.0.1:{server.server_port}"
        digest = hashlib.sha256(content).hexdigest()
        of_index = LockedWheel(name="fl_one", version="1.0", url=f"{host}/{wheel.name}", sha256=digest)
        try:
            with pytest.raises(NotAllowed, match="refuses to answer without a valid login"):
                fetch_wheel(of_index, tmp_path, {})
            environ = {
                "UV_INDEX": f"own={host}/simple", "UV_INDEX_OWN_USERNAME": "u", "UV_INDEX_OWN_PASSWORD": "p"
            }  # fmt: skip
            assert fetch_wheel(of_index, tmp_path, environ).read_bytes() == content
            assert login_of("https://elsewhere.example/x", environ) is None
            assert login_of(f"{host}/x", {"UV_DEFAULT_INDEX": host.replace("//", "//u:p%40@")}) == ("u", "p@")
        finally:
            server.shutdown()
            thread.join(10)
    assert seen == [None, "Basic dTpw"]


@pytest.mark.slow
def test_the_registry_is_set_shown_and_forgotten(
    shared: RegistryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = put_base(shared.host, tmp_path / "base")
    assert main.call(["registry", "show"]) == 5
    url = f"{shared.host}/acme/environments"
    assert main.call(["registry", "set", url, "--base", str(base), "--pull-secret", "pull"]) == 0
    assert f"Images go to {url}, on {base} with Python 3.12.4 for linux/amd64." in capsys.readouterr().err
    assert main.call(["registry", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["base"].startswith(f"http://{shared.host}/python@sha256:")
    assert (shown["url"], shown["pull_secret"]) == (url, "pull")
    assert main.call(["registry", "set", f"{url}:1", "--base", str(base)]) == 2
    assert "names one image" in capsys.readouterr().err
    assert main.call(["registry", "set", url, "--base", f"{shared.host}/nobody:1"]) == 5
    assert main.call(["registry", "unset"]) == 0
    assert not Home.at().registry.exists()


def test_a_damaged_file_of_settings_is_an_error(home: Home) -> None:
    home.registry.write_text("{}")
    run = training(name="fl", environment=PythonEnvironment(packages=("six",)))
    with pytest.raises(ClusterError, match="is damaged"):
        lock_for_pods(run, None, home, os.environ, ())
