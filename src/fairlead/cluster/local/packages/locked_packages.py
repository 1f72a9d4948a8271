"""Reads which packages of a lock (PEP 751) a Python on Linux gets, by their markers."""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any


def applying(lock: Mapping[str, Any], python: str, machine: str) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a lock for a Python on Linux.

    Args:
        lock: The parsed content of a lock.
        python: Full version, such as 3.12.7.
        machine: Architecture as ``uname -m`` has it, such as x86_64.

    Raises:
        packaging.markers.InvalidMarker: A marker is none.
    """
    from packaging.markers import Marker  # here, since few runs have an environment

    values = _marker_values(lock, python, machine)
    for package in lock.get("packages", ()):
        marker = package.get("marker")
        if not marker or Marker(str(marker)).evaluate(values, context="lock_file"):
            yield package


def packages_of(lock: bytes, python: str, machine: str) -> tuple[tuple[str, str], ...]:
    """Return name and version of each package that `applying` yields; none of what is no lock."""
    try:
        return tuple(
            (str(package["name"]), str(package["version"]))
            for package in applying(tomllib.loads(lock.decode()), python, machine)
            if "version" in package
        )
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return ()  # uv says what is wrong with it


def _marker_values(lock: Mapping[str, Any], python: str, machine: str) -> dict[str, Any]:
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
        "extras": frozenset[str](),
        "dependency_groups": frozenset(lock.get("default-groups", ())),
    }
