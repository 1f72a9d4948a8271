"""Reads locks (PEP 751): the one wheel that each package of a lock has for the Python and platform of an image.

What is chosen is a lock as well, of these wheels alone: the image has exactly its files, and nothing without a hash.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from fairlead.cluster.local.packages.locked_packages import applying
from fairlead.errors import Conflict
from fairlead.frozen import dataclass

if TYPE_CHECKING:
    from packaging.tags import Tag

NEWEST_GLIBC, OLDEST_GLIBC = 28, 17
"""Minor versions of glibc 2 for which wheels are taken: Debian 11 has 31."""
UV_PLATFORMS = {"x86_64": "x86_64-manylinux_2_28", "aarch64": "aarch64-manylinux_2_28"}
"""Platform of uv by the machine in names of wheels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWheel:
    """A wheel of a lock.

    Attributes:
        url: Its address, of the scheme https, http or file.
        sha256: Its hash in hexadecimal.
        size: Bytes; 0 where the lock does not say.
    """

    name: str
    version: str
    url: str
    sha256: str
    size: int = 0
    index: str | None = None

    @property
    def filename(self) -> str:
        return _filename(self.url)


def choose_wheels(lock: str, python: str, machine: str) -> tuple[LockedWheel, ...]:
    """Return the wheels of a lock for a Python on Linux, by name.

    Args:
        python: Full version, such as 3.12.7.
        machine: Architecture in names of wheels, such as x86_64.

    Raises:
        Conflict: A package has no such wheel, or the lock is for another Python.
    """
    from packaging.specifiers import SpecifierSet

    content = tomllib.loads(lock)
    platform = f"Python {python} on Linux, {machine}"
    wanted = content.get("requires-python")
    if wanted and python not in SpecifierSet(str(wanted)):
        raise Conflict(f"the lock is for Python {wanted}, and the base image has {python}")
    ranks = {tag: rank for rank, tag in enumerate(_tags(python, machine))}
    chosen: dict[str, LockedWheel] = {}
    for package in applying(content, python, machine):
        name = str(package["name"])
        if name in chosen:
            raise Conflict(f"the lock has {name} twice for {platform}")
        wheel = _best(package.get("wheels", ()), ranks)
        if wheel is None:
            raise Conflict(
                f"{name} {package.get('version', '')} has no wheel for {platform}. Take a version that has one; "
                "nothing is compiled for pods, but a wheel that you made is taken from the directory that a line "
                "`--find-links DIR` names"
            )
        chosen[name] = LockedWheel(
            name=name,
            version=str(package.get("version", "")),
            url=_url(wheel),
            sha256=str(wheel["hashes"]["sha256"]),
            size=int(wheel.get("size") or 0),
            index=package.get("index"),
        )
    return tuple(chosen[name] for name in sorted(chosen))


def lock_of(wheels: Iterable[LockedWheel], python: str) -> str:
    """Return the lock of these wheels; the same ones give the same text."""
    minor = ".".join(python.split(".")[:2])
    lines = ['lock-version = "1.0"', 'created-by = "fairlead"', f'requires-python = ">={minor}"']
    for wheel in sorted(wheels, key=lambda wheel: wheel.name):
        size = f", size = {wheel.size}" if wheel.size else ""
        lines += ["", "[[packages]]", f"name = {json.dumps(wheel.name)}", f"version = {json.dumps(wheel.version)}"]
        if wheel.index is not None:
            lines.append(f"index = {json.dumps(wheel.index)}")
        hashes = f"hashes = {{ sha256 = {json.dumps(wheel.sha256)} }}"
        lines.append(f"wheels = [{{ url = {json.dumps(wheel.url)}{size}, {hashes} }}]")
    return "\n".join(lines) + "\n"


def wheels_in(lock: str) -> tuple[LockedWheel, ...]:
    """Return the wheels of a lock that `lock_of` wrote."""
    return tuple(
        LockedWheel(
            name=package["name"],
            version=package["version"],
            url=package["wheels"][0]["url"],
            sha256=package["wheels"][0]["hashes"]["sha256"],
            size=package["wheels"][0].get("size", 0),
            index=package.get("index"),
        )
        for package in tomllib.loads(lock).get("packages", ())
    )


def _best(wheels: Iterable[Mapping[str, Any]], ranks: "Mapping[Tag, int]") -> Mapping[str, Any] | None:
    """Return the wheel with the most particular tag; None if none fits, or has a SHA-256."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    best: tuple[int, Mapping[str, Any]] | None = None
    for wheel in wheels:
        if "sha256" not in (wheel.get("hashes") or {}):
            continue
        try:
            name = wheel.get("name") or _filename(_url(wheel))
            tags = parse_wheel_filename(name)[3]
        except InvalidWheelFilename:
            continue
        rank = min((ranks[tag] for tag in tags if tag in ranks), default=None)
        if rank is not None and (best is None or rank < best[0]):
            best = rank, wheel
    return None if best is None else best[1]


def _filename(url: str) -> str:
    return PurePosixPath(unquote(urlsplit(url).path)).name


def _url(wheel: Mapping[str, Any]) -> str:
    return str(wheel["url"]) if "url" in wheel else f"file://{wheel['path']}"


def _tags(python: str, machine: str) -> "Iterable[Tag]":
    from packaging.tags import compatible_tags, cpython_tags

    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)]
    platforms += [f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    major, minor = map(int, python.split(".")[:2])
    yield from cpython_tags((major, minor), platforms=platforms)
    yield from compatible_tags((major, minor), f"cp{major}{minor}", platforms)
