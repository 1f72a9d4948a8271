"""An image as its parts: layers, a config that names them, and the manifest that names all by digest."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairlead.control.image.references import Reference
from fairlead.frozen import dataclass

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
OCI_LAYERS: Mapping[str, str] = {
    LAYER: LAYER,
    "application/vnd.oci.image.layer.v1.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": LAYER,
}
"""Kinds of layers by what registries call them: Docker's own are the same bytes under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Content that is known by its digest.

    Attributes:
        fetch: Gives a file with it, which is downloaded only when somebody asks.
        origin: The image in a registry that has it; None for what was made here.
    """

    media_type: str
    digest: str
    size: int
    fetch: Callable[[], Path]
    origin: Reference | None = None

    @property
    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image for one platform; the lowest layer is first.

    Attributes:
        settings: The parsed config.
        annotations: Of the manifest.
    """

    config: Blob
    settings: Mapping[str, Any]
    layers: tuple[Blob, ...]
    annotations: Mapping[str, str]

    @property
    def manifest(self) -> bytes:
        return to_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self.config.descriptor,
                "layers": [layer.descriptor for layer in self.layers],
                "annotations": dict(self.annotations),
            }
        )

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Everything that the manifest names."""
        return (*self.layers, self.config)


def to_json(value: Any) -> bytes:
    """Write JSON, the same bytes for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(data: bytes) -> str:
    """Name data by its content."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_blob(settings: Mapping[str, Any], directory: Path) -> Blob:
    """Write the config of an image to a file of a directory."""
    data = to_json(settings)
    path = directory / digest_of(data).replace(":", "-")
    path.write_bytes(data)
    return Blob(media_type=CONFIG, digest=digest_of(data), size=len(data), fetch=lambda: path)
