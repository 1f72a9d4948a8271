"""Container images that are built here, without a registry: Debian with Python, and what a test adds to it.

An image is one archive as `docker save` writes it: two small JSON files and a tar of each layer.
"""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.errors import Unavailable

PYTHON = "testcluster.fairlead.dev/python:1"
"""Debian's essential packages, Python without pip, and the C++ library that PyTorch needs; user 65532 by default."""

RELEASE = "bookworm"
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
IMAGE_S = 15 * 60.0
ENVIRONMENT = ("PATH=/usr/local/bin:/usr/bin:/bin",)
SLEEPS = ("/bin/sleep", "infinity")
EXTRACTED: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in 3.11.2


def python_image() -> Path:
    """The archive of `PYTHON`, built once (a minute) into the user's cache. Raises `Unavailable`."""
    key = hashlib.sha256(" ".join((RELEASE, *PACKAGES, PYTHON)).encode()).hexdigest()[:12]
    directory = binaries.cache() / f"image-{key}"
    archive = directory / "python.tar"
    if not archive.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with binaries.alone(directory):
            if not archive.exists():
                layer = directory / "layer.tar"
                _make_root(layer)
                write_archive(directory / "unfinished", PYTHON, [layer])
                (directory / "unfinished").rename(archive)
                layer.unlink()
    return archive


def extend(
    target: Path, name: str, layers: Sequence[Path], *, user: str = "65532", env: Sequence[str] = ENVIRONMENT
) -> None:
    """An image of `PYTHON` with more layers on top, such as `layer_of` makes."""
    with tarfile.open(python_image()) as tar, tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO(b"[]"))
        below = manifest[0]["Layers"]
        tar.extractall(scratch, members=[tar.getmember(layer) for layer in below], **EXTRACTED)
        write_archive(target, name, [*(Path(scratch) / layer for layer in below), *layers], user=user, env=env)


def layer_of(target: Path, files: Mapping[str, Path]) -> Path:
    """A layer with files and directories of this machine, by their paths in the image."""
    with tarfile.open(target, "w") as tar:
        for name, source in files.items():
            tar.add(source, arcname=name.lstrip("/"))
    return target


def write_archive(
    target: Path,
    name: str,
    layers: Sequence[Path],
    *,
    user: str = "65532",
    env: Sequence[str] = ENVIRONMENT,
    command: Sequence[str] = SLEEPS,
) -> None:
    """An image of these layers, the lowest first, that runs the command unless a pod says what to run."""
    digests = [_digest(layer) for layer in layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": list(command), "User": user, "Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    written = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(written).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}.tar" for digest in digests]}]
    with tarfile.open(target, "w") as tar:
        for path, data in ((config_name, written), ("manifest.json", json.dumps(manifest).encode())):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for layer, digest in zip(layers, digests, strict=True):
            tar.add(layer, arcname=f"{digest}.tar")


def _make_root(target: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        raise Unavailable("mmdebstrap is not installed; images for real nodes are built with it")
    binaries.say("building an image with Python (once; a minute) ...")
    argv = ["mmdebstrap", "--variant=essential", f"--include={','.join(PACKAGES)}", RELEASE, str(target)]
    try:
        done = subprocess.run(["nice", *argv], capture_output=True, text=True, check=False, timeout=IMAGE_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the image was not built within {IMAGE_S / 60:.0f} minutes") from None
    if done.returncode:
        raise Unavailable(f"the image could not be built: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
