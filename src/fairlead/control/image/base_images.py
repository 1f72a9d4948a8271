"""Looks up base images: images with Python, on which Fairlead's own and those of environments are built."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.control.image.content import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    INDEX,
    MANIFEST,
    OCI_LAYERS,
    Blob,
    digest_of,
)
from fairlead.control.image.references import Reference, is_digest
from fairlead.control.image.registry import Registry
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)


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
        environment = dict(setting.partition("=")[::2] for setting in settings_of(self.config).get("Env") or ())
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


def settings_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that says how programs start."""
    settings: Mapping[str, Any] = config.get("config") or {}
    return settings
