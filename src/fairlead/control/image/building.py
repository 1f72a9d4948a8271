"""Builds Fairlead's image: a base image with Python, a layer of dependencies, and a layer of Fairlead.

The base image's layers are not inspected, and not downloaded if the target registry has them. `Containerfile` in the
root of the repository describes the same image for other build tools.

See decision 38.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairlead.control.image.base_images import Base, settings_of
from fairlead.control.image.bytecode import compile_modules, interpreter_of
from fairlead.control.image.content import EMPTY, EPOCH, Image, config_blob, digest_of, local_blob
from fairlead.control.image.layers import LayerFile, make_layer
from fairlead.control.image.packages import MACHINES, fetch_packages, own_files
from fairlead.control.image.references import Reference
from fairlead.control.image.registry import Registry
from fairlead.control.image.sbom import MEDIA_TYPE, bill_of_materials

DEFAULT_BASE = "python:3.12-slim"
PLATFORMS = tuple(f"linux/{architecture}" for architecture in MACHINES)
HOME = "/opt/fairlead"
PACKAGES, FAIRLEAD = f"{HOME}/packages", f"{HOME}/fairlead"
USER = "65532:65532"
PROGRAM = b"#!/usr/bin/env python3\nfrom fairlead.cli.main import main\n\nmain()\n"
SBOM = f"{HOME}/sbom.spdx.json"

Tell = Callable[[str], None]


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
    command = {"/usr/local/bin/fairlead": LayerFile(content=PROGRAM, is_executable=True)}
    bill = bill_of_materials(packages, base.name)
    above = make_layer({**own, **command, SBOM: LayerFile(content=bill)}, HOME, directory)
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


def _config(base: Mapping[str, Any], diff_ids: tuple[str, ...]) -> dict[str, Any]:
    """Return the base's config with ours added; without timestamps, so that builds are reproducible."""
    settings = dict(settings_of(base))
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
