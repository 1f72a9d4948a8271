"""Makes the image of a run's ``environment``: a base image, layers of wheels, and a virtual environment of them.

The lock is made when a run is admitted, and the image when it is submitted, before its object exists. What is known of
locks, layers and pushed images is stored in the state directory, so that only what the registry lacks is downloaded,
built and sent, several layers at a time. A layer is removed from this machine when it is sent.

See decision 254.
"""

import errno
import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages.build import BuildFailed, resolve, write_atomically
from fairlead.cluster.local.packages.requests import read_request, with_file
from fairlead.control.image import locks
from fairlead.control.image.base_images import Base, pull_base
from fairlead.control.image.content import EPOCH, LAYER, Blob, Image, config_blob, to_json
from fairlead.control.image.layers import Layer
from fairlead.control.image.locks import LockedWheel, choose_wheels, wheels_in
from fairlead.control.image.packages import MACHINES
from fairlead.control.image.pool_matching import MatchedLock, match_pools
from fairlead.control.image.references import Reference, is_digest, read_reference
from fairlead.control.image.registry import Registry
from fairlead.control.image.registry_settings import RegistrySettings, read_settings
from fairlead.control.image.wheel_layers import FORMAT, PREFIX, base_layer, cut, layer_of
from fairlead.control.image.wheels import fetch_wheel, size_of
from fairlead.errors import ClusterError, Conflict, FairleadError, NotFound
from fairlead.frozen import dataclass
from fairlead.policy.gpu.cuda_support import TorchBuild
from fairlead.runtime.paths import below
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.specs.overlay import overlay
from fairlead.specs.training import Training
from fairlead.specs.workload import Kind
from fairlead.specs.workspace import Ide
from fairlead.state.snapshot import Node
from fairlead.text.quantities import describe_memory, plural
from fairlead.untrusted_json import text

NUM_WORKERS = 4
ABANDONED_S = 86_400.0
NO_REGISTRY = (
    "its packages go into an image, and no registry is set for it; `fairlead registry set ghcr.io/acme/environments` "
    "sets one"
)
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedLayer:
    """A layer that the registry has.

    Attributes:
        num_sent: Bytes that were sent for it.
    """

    layer: Layer
    num_sent: int = 0


def lock_for_pods(
    spec: Training, directory: Path | None, home: Home, environ: Mapping[str, str], nodes: tuple[Node, ...]
) -> MatchedLock:
    """Return a run with the lock of its ``environment`` for the Python of its base image, and for its nodes.

    An ``image`` of the spec is the base of its own.

    Args:
        nodes: Those of the cluster; empty if they are unknown.

    Raises:
        Conflict: No registry is set, the packages cannot be had or cannot work on the nodes, or the base image has
            another Python.
        InvalidSpec: A file of the environment is missing or asks for what is not done.
    """
    assert spec.environment is not None
    settings = _settings(spec, home)
    place = (directory or Path.cwd()).absolute() / Path(spec.workdir or ".").expanduser()
    spec_here = with_file(replace(spec, workdir=str(place)), place)
    environment = spec_here.environment
    assert environment is not None
    python, machine = settings.python, MACHINES[settings.platform.partition("/")[2]]
    wanted = environment.python
    if wanted is not None and python != wanted and not python.startswith(f"{wanted}."):
        raise Conflict(
            f"{spec.name}: environment.python: {wanted} was asked for, and the base image {settings.base_name} has "
            f"{python}. Name a base that has it, by `image: python:{wanted}-slim` or `fairlead registry set "
            f"{settings.url} --base python:{wanted}-slim`."
        )

    def request_for(build: TorchBuild | None) -> dict[str, Any]:
        backend = None if build is None else build.backend
        target = (locks.UV_PLATFORMS[machine], python)
        return read_request(spec_here, home, environ, target=target, torch_backend=backend)

    def resolved(build: TorchBuild | None) -> str:
        request = first if build is None else request_for(build)
        stored = below(home.environment_images, "locks", f"{request['digest']}.toml")
        if not stored.is_file():
            lock = _resolved(spec, request, python, machine, environ)
            stored.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(stored, lock.encode())
        return stored.read_text()

    first = request_for(None)
    # A lock says which build it has, and so does whoever sets the variable.
    may_choose = first["form"] in ("requirements", "pyproject") and "UV_TORCH_BACKEND" not in environ
    matched = match_pools(spec, nodes, python, machine, resolved, may_choose=may_choose)
    if spec.kind == Kind.WORKSPACE and spec.image is None:
        _refuse_lock_without_server(spec.name, getattr(spec, "ide", None), matched.lock)
    spec = replace(matched.spec, environment=replace(environment, lock=matched.lock))
    spec = spec if settings.pull_secret is None else _with_pull_secret(spec, settings.pull_secret)
    return replace(matched, spec=spec)


def _refuse_lock_without_server(name: str, ide: str | None, lock: str) -> None:
    """Refuse a workspace whose lock alone could have its notebook server, and has none."""
    if ide == Ide.JUPYTER and not {wheel.name for wheel in wheels_in(lock)} & {"jupyterlab", "jupyter-server"}:
        raise Conflict(
            f"{name}: environment: its lock has no jupyterlab, which `ide: jupyter` needs. Add it to the packages, and "
            "lock them again."
        )


def note_of(spec: Training, home: Home) -> str:
    """Return what becomes of a locked environment, for a plan."""
    assert spec.environment is not None
    settings = _settings(spec, home)
    wheels = wheels_in(spec.environment.lock)
    size = sum(wheel.size for wheel in wheels)
    return (
        f"environment: {plural(len(wheels), 'package')}, {describe_memory(size)} of wheels, become an image on "
        f"{settings.base_name} with Python {settings.python} in {settings.url}"
    )


def with_image(spec: Training, home: Home, environ: Mapping[str, str], tell: Tell) -> Training:
    """Return a run with the image of its lock, which is built and pushed unless the registry has it.

    Raises:
        ClusterError: It cannot be built or pushed.
    """
    environment = spec.environment
    if environment is None or environment.image:
        return spec
    if not environment.lock:
        raise Conflict(f"{spec.name}: environment: it was not locked, since programs may not be started here.")
    settings = _settings(spec, home)
    try:
        image = push_environment(environment.lock, settings, home.environment_images, environ, tell)
    except FairleadError as error:
        error.args = (f"{spec.name}: environment: {error}",)
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ClusterError(
            f"{spec.name}: environment: there is no room for its layers in {home.environment_images}. `fairlead prune "
            "--environments` removes environments that no run needs."
        ) from error
    return replace(spec, environment=replace(environment, image=image))


def push_environment(lock: str, settings: RegistrySettings, store: Path, environ: Mapping[str, str], tell: Tell) -> str:
    """Build the image of a lock and push what the registry lacks; return its name by digest.

    Args:
        store: Directory with records of layers and images.
    """
    target, base_name = settings.target, read_reference(settings.base)
    key = _hash([FORMAT, lock, settings.base, settings.url, settings.platform])
    record_path = below(store, "pushed", f"{key}.json")
    with Registry(target) as registry:
        digest = text((read_json(record_path) or {}).get("digest"))
        if digest is not None and _has_image(registry, target, digest):
            return str(target.at(digest))
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        wheels = wheels_in(lock)
        tell(f"Building the image of {plural(len(wheels), 'package')} on {settings.base_name}.")
        with TemporaryDirectory(prefix="building-", dir=store) as place, Registry(base_name) as source:
            directory = Path(place)
            base = pull_base(source, base_name, settings.platform, directory)
            groups = cut(wheels)
            with ThreadPoolExecutor(NUM_WORKERS) as pool:
                push = _LayerPush(target, settings.python, store, directory, environ)
                futures = [pool.submit(push.send, group) for group in groups]
                try:
                    sent_of_base = [_send(registry, target, blob) for blob in base.layers]
                    own = base_layer(lock, settings.python, directory)
                    parts = [PushedLayer(layer=own, num_sent=_send(registry, target, own.blob))]
                    parts += [future.result() for future in futures]
                except BaseException:
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise
                finally:
                    push.close()
            image = _image(base, [part.layer for part in parts], directory)
            registry.send(target.repository, image.config)
            for version in (f"env-{key[:32]}", image.digest):
                registry.tag(target.repository, version, image.manifest)
    record_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(record_path, {"digest": image.digest}, durably=False)
    sent = sum(sent_of_base) + sum(part.num_sent for part in parts)
    whole = sum(layer.size for layer in image.layers)
    tell(f"Pushed {describe_memory(sent)} of {describe_memory(whole)} in {plural(len(image.layers), 'layer')}.")
    return str(target.at(image.digest))


def forget_images(store: Path) -> None:
    """Remove what is known of locks, layers and pushed images, and what killed commands have left of builds."""
    for name in ("locks", "layers", "pushed"):
        shutil.rmtree(below(store, name), ignore_errors=True)
    for directory in store.glob("building-*"):
        if time.time() - directory.stat().st_mtime > ABANDONED_S:
            shutil.rmtree(directory, ignore_errors=True)


class _LayerPush:
    """Sends layers of wheels from several threads, each with its own connection to the registry."""

    def __init__(
        self, target: Reference, python: str, store: Path, directory: Path, environ: Mapping[str, str]
    ) -> None:
        self._target = target
        self._python = python
        self._store = store
        self._directory = directory
        self._environ = environ
        self._own = threading.local()
        self._registries: list[Registry] = []

    def send(self, wheels: Sequence[LockedWheel]) -> PushedLayer:
        """Return the layer of some wheels, after it was sent if the registry lacks it."""
        registry = self._registry()
        key = _hash([FORMAT, self._python, [wheel.sha256 for wheel in wheels]])
        record_path = below(self._store, "layers", f"{key}.json")
        known = _read_layer(read_json(record_path) or {})
        if known is not None and registry.has(self._target.repository, known.blob.digest):
            return PushedLayer(layer=known)
        with TemporaryDirectory(prefix="layer-", dir=self._directory) as place:
            directory = Path(place)
            fetched = [(wheel, fetch_wheel(wheel, directory, self._environ)) for wheel in wheels]
            layer = layer_of(fetched, self._python, directory)
            for _, path in fetched:
                path.unlink()
            num_sent = _send(registry, self._target, layer.blob)
        record = {"digest": layer.blob.digest, "size": layer.blob.size, "diff_id": layer.diff_id}
        record_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(record_path, record, durably=False)
        return PushedLayer(layer=layer, num_sent=num_sent)

    def close(self) -> None:
        for registry in self._registries:
            registry.__exit__(None, None, None)

    def _registry(self) -> Registry:
        registry: Registry | None = getattr(self._own, "registry", None)
        if registry is None:
            registry = self._own.registry = Registry(self._target)
            self._registries.append(registry)
        return registry


def _settings(spec: Training, home: Home) -> RegistrySettings:
    """Return the settings for a run, whose own ``image`` is another base."""
    settings = read_settings(home.registry)
    if settings is None:
        raise Conflict(f"{spec.name}: environment: {NO_REGISTRY}.")
    return settings if spec.image is None else with_base(settings, spec.image)


def with_base(settings: RegistrySettings, base_name: str) -> RegistrySettings:
    """Return the settings with another base image, looked up in its registry.

    Raises:
        NotFound: There is no such image.
        ClusterError: It is not for the platform, or has no Python that is known.
    """
    named = read_reference(base_name)
    with TemporaryDirectory(prefix="fairlead-base-") as place, Registry(named) as registry:
        base = pull_base(registry, named, settings.platform, Path(place))
    return replace(settings, base=address_of(base.name), base_name=base_name, python=full_version(base))


def address_of(name: Reference) -> str:
    """Return a name from which the same image is read again, with the scheme where it matters."""
    return f"http://{name}" if name.is_plain else str(name)


def full_version(base: Base) -> str:
    """Return the whole version of the base's Python, such as 3.12.7.

    Raises:
        ClusterError: It is unknown or unsupported.
    """
    minor = base.python
    for setting in (base.config.get("config") or {}).get("Env") or ():
        name, _, value = setting.partition("=")
        if name == "PYTHON_VERSION":
            return str(value)
    return minor


def _resolved(spec: Training, request: dict[str, Any], python: str, machine: str, environ: Mapping[str, str]) -> str:
    """Return the lock of a request, of the wheels for one platform alone."""
    try:
        whole = resolve(request, lambda _: None).decode()
        wheels = choose_wheels(whole, python, machine)
    except BuildFailed as error:
        message = error.failure.message.replace(
            "for this machine and this Python", f"for Python {python} on Linux, {machine}"
        )
        remedy = "" if error.failure.remedy is None else f" {error.failure.remedy}"
        raise Conflict(f"{spec.name}: environment: {message}.{remedy}") from error
    except Conflict as error:
        raise Conflict(f"{spec.name}: environment: {error}.") from error
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        sizes = list(pool.map(lambda wheel: size_of(wheel, environ), wheels))
    sized = [replace(wheel, size=size) for wheel, size in zip(wheels, sizes, strict=True)]
    return locks.lock_of(sized, python)


def _with_pull_secret(spec: Training, name: str) -> Training:
    """Return a run whose pods pull their image with a Secret, in addition to those that it names."""
    pod = spec.kubernetes.pod
    fields = pod.setdefault("spec", {})
    secrets = fields.get("imagePullSecrets", [])
    if {"name": name} not in secrets:
        fields["imagePullSecrets"] = [*secrets, {"name": name}]
    return replace(spec, kubernetes=overlay(pod))


def _image(base: Base, layers: Sequence[Layer], directory: Path) -> Image:
    """Return the image of a base and layers; without timestamps, so that builds are reproducible."""
    config = base.config
    settings = dict(config.get("config") or {})
    env = dict(setting.partition("=")[::2] for setting in settings.get("Env") or ())
    path = env.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    env |= {"PATH": f"{PREFIX}/bin:{path}", "VIRTUAL_ENV": PREFIX}
    settings["Env"] = [f"{name}={value}" for name, value in env.items()]
    own = [{"created": EPOCH, "created_by": "fairlead run (environment)"} for _ in layers]
    whole = {
        **{name: config[name] for name in ("architecture", "os", "variant", "os.version") if name in config},
        "created": EPOCH,
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [*config["rootfs"]["diff_ids"], *(part.diff_id for part in layers)]},
        "history": [*(config.get("history") or ()), *own],
    }
    annotations = {
        "org.opencontainers.image.base.digest": str(base.name.digest),
        "org.opencontainers.image.base.name": str(base.name),
    }
    return Image(
        config=config_blob(whole, directory),
        settings=whole,
        layers=(*base.layers, *(part.blob for part in layers)),
        annotations=annotations,
    )


def _send(registry: Registry, target: Reference, blob: Blob) -> int:
    """Send a blob and return the bytes that were sent."""
    return blob.size if registry.send(target.repository, blob) == "sent" else 0


def _has_image(registry: Registry, target: Reference, digest: str) -> bool:
    if not is_digest(digest):
        return False
    try:
        registry.manifest(target.repository, digest)
    except NotFound:
        return False
    return True


def _read_layer(record: Mapping[str, Any]) -> Layer | None:
    digest, diff_id, size = text(record.get("digest")), text(record.get("diff_id")), record.get("size")
    if digest is None or diff_id is None or not isinstance(size, int):
        return None

    def fetch() -> Path:
        raise AssertionError("a layer that the registry has is not sent")

    return Layer(blob=Blob(media_type=LAYER, digest=digest, size=size, fetch=fetch), diff_id=diff_id)


def _hash(value: Any) -> str:
    return hashlib.sha256(to_json(value)).hexdigest()
