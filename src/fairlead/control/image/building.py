"""Builds Fairlead's image: a base image with Python, a layer of dependencies, and a layer of Fairlead.

The base image's layers are not inspected, and not downloaded if the target registry has them. `Containerfile` in the
root of the repository describes the same image for other build tools.

See decision 38.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairlead.control.image.bytecode import compile_modules, interpreter_of
from fairlead.control.image.content import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    EMPTY,
    INDEX,
    MANIFEST,
    OCI_LAYERS,
    Blob,
    Image,
    config_blob,
    digest_of,
    local_blob,
)
from fairlead.control.image.layers import File, make_layer
from fairlead.control.image.packages import MACHINES, fetch_packages, own_files
from fairlead.control.image.references import Reference, is_digest
from fairlead.control.image.registry import Registry
from fairlead.control.image.sbom import EPOCH, MEDIA_TYPE, bill_of_materials
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

DEFAULT_BASE = "python:3.12-slim"
PLATFORMS = tuple(f"linux/{architecture}" for architecture in MACHINES)
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
HOME = "/opt/fairlead"
PACKAGES, FAIRLEAD = f"{HOME}/packages", f"{HOME}/fairlead"
USER = "65532:65532"
PROGRAM = b"#!/usr/bin/env python3\nfrom fairlead.cli.main import main\n\nmain()\n"
SBOM = f"{HOME}/sbom.spdx.json"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The base image.

    Attributes:
        name: Name with digest, so that it can be pulled again.
    """

    name: Reference
    config: Mapping[str, Any]
    layers: tuple[Blob, ...]

    @property
    def python(self) -> str:
        """Return the version of its Python, such as 3.12, from PYTHON_VERSION, which the official images set.

        Raises:
            ClusterError: The version is unknown or unsupported.
        """
        environment = dict(setting.partition("=")[::2] for setting in _settings(self.config).get("Env") or ())
        full_version = str(environment.get("PYTHON_VERSION", ""))
        parts = full_version.split(".")
        if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
            raise ClusterError(
                f"The base image {self.name} does not say which Python it has: PYTHON_VERSION in its environment is "
                f"{full_version!r}. Give the official python image, one made from it, or set the variable in it."
            )
        version = int(parts[0]), int(parts[1])
        if not OLDEST_PYTHON <= version <= NEWEST_PYTHON:
            allowed = " to ".join(".".join(map(str, bound)) for bound in (OLDEST_PYTHON, NEWEST_PYTHON))
            raise ClusterError(
                f"The base image {self.name} has Python {full_version}; the image needs one from {allowed}."
            )
        return f"{version[0]}.{version[1]}"


def pull_base(registry: Registry, reference: Reference, platform: str, directory: Path) -> Base:
    """Look up a base image; its layers are downloaded to a directory on demand.

    Raises:
        NotFound: The image does not exist.
        ClusterError: It lacks the platform, or has parts that cannot be copied.
    """
    try:
        return _pull_base(registry, reference, platform, directory)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"{reference} is described in a way that is none of an image: {error!r}.") from error


def _pull_base(registry: Registry, reference: Reference, platform: str, directory: Path) -> Base:
    kind, data = registry.manifest(reference.repository, reference.version)
    if kind in (INDEX, DOCKER_INDEX):
        digest = _of_platform(json.loads(data), platform, reference)
        kind, data = registry.manifest(reference.repository, digest)
    if kind not in (MANIFEST, DOCKER_MANIFEST):
        raise ClusterError(f"{reference} is a {kind or 'thing without a type'}, and no image that can be built on.")
    manifest = json.loads(data)

    def blob(described: Mapping[str, Any], media_type: str) -> Blob:
        digest = str(described["digest"])
        if not is_digest(digest):  # it becomes a file name
            raise ClusterError(f"{reference} names a part by {digest!r}, and not by sha256: and 64 digits.")
        place = directory / digest.replace(":", "-")

        def fetch() -> Path:
            return place if place.exists() else registry.fetch(reference.repository, digest, place)

        size = int(described["size"])
        return Blob(media_type=media_type, digest=digest, size=size, fetch=fetch, origin=reference)

    layers = []
    for layer in manifest["layers"]:
        if layer["mediaType"] not in OCI_LAYERS:
            raise ClusterError(f"{reference} has a layer of the kind {layer['mediaType']}, which cannot be copied.")
        layers.append(blob(layer, OCI_LAYERS[layer["mediaType"]]))
    config = json.loads(blob(manifest["config"], MANIFEST).fetch().read_bytes())
    base_platform = f"{config.get('os')}/{config.get('architecture')}"
    if base_platform != platform:
        raise ClusterError(f"{reference} is for {base_platform}, and {platform} is asked for.")
    return Base(name=reference.at(digest_of(data)), config=config, layers=tuple(layers))


def build(base: Base, directory: Path, tell: Tell) -> Image:
    """Build Fairlead's image on a base image, with its blobs as files in a directory.

    Raises:
        ClusterError: The base image is unsuitable, or a package cannot be downloaded.
    """
    python = base.python
    tell(f"Fetching packages for Python {python} on linux/{base.config['architecture']}.")
    packages = fetch_packages(python, str(base.config["architecture"]))
    below_files = {f"{PACKAGES}/{name}": file for name, file in packages.items()}
    own = {f"{FAIRLEAD}/{name}": file for name, file in own_files().items()}
    interpreter = interpreter_of(python)
    if interpreter is None:
        tell(f"There is no python{python} here to compile modules with: each start compiles them, twice the time.")
    else:
        tell(f"Compiling modules with {interpreter}.")
        below_files |= compile_modules(interpreter, below_files)
        own |= compile_modules(interpreter, own)
    below = make_layer(below_files, HOME, directory)
    command = {"/usr/local/bin/fairlead": File(content=PROGRAM, is_executable=True)}
    bill = bill_of_materials(packages, base.name)
    above = make_layer({**own, **command, SBOM: File(content=bill)}, HOME, directory)
    settings = _config(base.config, (below.diff_id, above.diff_id))
    annotations = {
        "org.opencontainers.image.base.digest": str(base.name.digest),
        "org.opencontainers.image.base.name": str(base.name),
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.title": "fairlead",
    }
    return Image(
        config=config_blob(settings, directory),
        settings=settings,
        layers=(*base.layers, below.blob, above.blob),
        annotations=annotations,
        sbom=local_blob(bill, MEDIA_TYPE, directory),
    )


def push(image: Image, registry: Registry, target: Reference, tell: Tell) -> Reference:
    """Push an image to a registry, and its bill of materials beside it; return its name by digest.

    Raises:
        ClusterError: The registry refused it.
    """
    for number, blob in enumerate(image.blobs, 1):
        how = registry.send(target.repository, blob)
        tell(f"{number}/{len(image.blobs)}  {blob.digest[7:19]}  {blob.size / 1e6:.1f} MB  {how}")
    for version in {target.version, image.digest} if target.digest is None else {image.digest}:
        registry.tag(target.repository, version, image.manifest)
    if image.sbom is not None:
        with TemporaryDirectory(prefix="fairlead-sbom-") as place:
            empty = local_blob(b"{}", EMPTY, Path(place))
            for blob in (image.sbom, empty):
                registry.send(target.repository, blob)
        attached = image.attachment(image.sbom, empty)
        registry.tag(target.repository, digest_of(attached), attached)
    return target.at(image.digest)


def _of_platform(index: Mapping[str, Any], platform: str, reference: Reference) -> str:
    system, _, architecture = platform.partition("/")
    platforms = []
    for manifest in index.get("manifests") or ():
        of = manifest.get("platform") or {}
        if (of.get("os"), of.get("architecture")) == (system, architecture):
            return str(manifest["digest"])
        platforms.append(f"{of.get('os')}/{of.get('architecture')}")
    listed = ", ".join(sorted({name for name in platforms if "unknown" not in name})) or "none"
    raise ClusterError(f"{reference} has nothing for {platform}; it has: {listed}.")


def _config(base: Mapping[str, Any], diff_ids: tuple[str, ...]) -> dict[str, Any]:
    """Return the base's config with ours added; without timestamps, so that builds are reproducible."""
    settings = dict(_settings(base))
    environment = [setting for setting in settings.get("Env") or () if not setting.startswith("PYTHONPATH=")]
    environment.append(f"PYTHONPATH={FAIRLEAD}:{PACKAGES}")
    settings |= {"Env": environment, "Entrypoint": ["fairlead"], "Cmd": [], "User": USER, "WorkingDir": "/"}
    ours = [{"created": EPOCH, "created_by": f"fairlead image build ({what})"} for what in ("packages", "fairlead")]
    return {
        **{name: base[name] for name in ("architecture", "os", "variant", "os.version") if name in base},
        "created": EPOCH,
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [*base["rootfs"]["diff_ids"], *diff_ids]},
        "history": [*(base.get("history") or ()), *ours],
    }


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = config.get("config") or {}
    return settings
