"""Wheels and settings for tests of images of environments."""

import random
import zipfile
from pathlib import Path

from fairlead.control.image.environments import with_base
from fairlead.control.image.locks import LockedWheel
from fairlead.control.image.references import Reference
from fairlead.control.image.registry_settings import RegistrySettings
from tests.image.images import put_base
from tests.wheels import make_wheel

PYTHON = "3.12.4"
TIME = (2026, 11, 2, 12, 0, 0)


def packed_wheel(directory: Path, name: str, version: str, *, kib: int = 0, data: dict[str, str] | None = None) -> Path:
    """Make a wheel with deflated files: a module, some random bytes, and other files by name."""
    path = make_wheel(directory, name, version)
    with zipfile.ZipFile(path) as archive:
        files = {member.filename: archive.read(member) for member in archive.infolist()}
    files[f"{name}.py"] += b"# the same again and again\n" * 100
    if kib:
        files[f"{name}_data.bin"] = random.Random(f"{name} {version}").randbytes(kib << 10)
    files |= {place: text.encode() for place, text in (data or {}).items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, content in files.items():
            info = zipfile.ZipInfo(place, TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return path


def locked(path: Path, digest: str) -> LockedWheel:
    """A wheel of a directory, as a lock has it."""
    name, version = path.name.split("-")[:2]
    return LockedWheel(name=name, version=version, url=path.as_uri(), sha256=digest, size=path.stat().st_size)


def settings_on(host: str, directory: Path, *, base: Reference | None = None) -> RegistrySettings:
    """Settings for a registry that has the base image."""
    base = base or put_base(host, directory)
    empty = RegistrySettings(url=f"{host}/acme/environments", base="", base_name="", python="", platform="linux/amd64")
    return with_base(empty, str(base))
