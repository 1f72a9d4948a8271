"""Writes an image as one file: the OCI image layout in a tar, for `docker load` and `ctr images import`."""

import io
import tarfile
from pathlib import Path

from fairlead.control.image.content import INDEX, MANIFEST, Image, to_json
from fairlead.control.image.references import Reference


def write_archive(image: Image, name: Reference, target: Path) -> None:
    """Write an image to a file; the same image and name give the same bytes.

    Args:
        name: Name of the image after loading the file.
    """
    annotations = {"io.containerd.image.name": str(name), "org.opencontainers.image.ref.name": name.version}
    manifest = image.manifest
    described = {"mediaType": MANIFEST, "digest": image.digest, "size": len(manifest), "annotations": annotations}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described]}
    small = {
        "oci-layout": to_json({"imageLayoutVersion": "1.0.0"}),
        "index.json": to_json(index),
        _place(image.digest): manifest,
    }
    blobs = {_place(blob.digest): blob for blob in image.blobs}
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted({*small, *blobs}):
                entry = tarfile.TarInfo(path)
                entry.mode = 0o644
                if path in small:
                    entry.size = len(small[path])
                    tar.addfile(entry, io.BytesIO(small[path]))
                else:
                    entry.size = blobs[path].size
                    with blobs[path].fetch().open("rb") as file:
                        tar.addfile(entry, file)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
