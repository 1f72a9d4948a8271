"""The parts of an image: layers, a config that names them, and the manifest that names all by digest."""

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
EMPTY = "application/vnd.oci.empty.v1+json"
"""Media type of a config that says nothing, `{}`."""
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
EPOCH = "1970-01-01T00:00:00Z"
"""Time of all that is built, so that builds are reproducible."""
OCI_LAYERS: Mapping[str, str] = {
    LAYER: LAYER,
    "application/vnd.oci.image.layer.v1.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": LAYER,
}
"""OCI media type of a layer by the media type in a registry: Docker's types have the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Content addressed by its digest.

    Attributes:
        fetch: Returns a file with the content, downloaded on demand.
        origin: Image in a registry that has it; None for local content.
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
    """An image for one platform, with the lowest layer first.

    Attributes:
        settings: Parsed config.
        annotations: Annotations of the manifest.
        sbom: Its bill of materials, which a registry keeps beside it; None for an image that is not ours.
    """

    config: Blob
    settings: Mapping[str, Any]
    layers: tuple[Blob, ...]
    annotations: Mapping[str, str]
    sbom: Blob | None = None

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

    def attachment(self, blob: Blob, empty: Blob) -> bytes:
        """Return the manifest of an artefact that refers to this image, a referrer by OCI 1.1."""
        subject = {"mediaType": MANIFEST, "digest": self.digest, "size": len(self.manifest)}
        return to_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "artifactType": blob.media_type,
                "config": empty.descriptor,
                "layers": [blob.descriptor],
                "subject": subject,
            }
        )

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Return all blobs that the manifest names."""
        return (*self.layers, self.config)


def to_json(value: Any) -> bytes:
    """Serialize to JSON; the same value gives the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(data: bytes) -> str:
    """Return the digest of data."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_blob(settings: Mapping[str, Any], directory: Path) -> Blob:
    """Write the config of an image to a file of a directory."""
    return local_blob(to_json(settings), CONFIG, directory)


def local_blob(data: bytes, media_type: str, directory: Path) -> Blob:
    """Write a blob to a file of a directory."""
    path = directory / digest_of(data).replace(":", "-")
    path.write_bytes(data)
    return Blob(media_type=media_type, digest=digest_of(data), size=len(data), fetch=lambda: path)
