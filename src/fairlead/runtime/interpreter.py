"""Writes this Python's version and packages as JSON: `python interpreter.py FILE`.

Standard library only, Python 3.9 or newer. It is started beside a program and runs at the lowest priority.
"""

from __future__ import annotations

import json
import os
import platform
import sys

MOST_PACKAGES = 2_000


def main() -> None:
    os.nice(19)
    # The program does not import from the directory of this file.
    sys.path.pop(0)
    from importlib.metadata import distributions

    packages: dict[str, str] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name and len(packages) < MOST_PACKAGES:
            packages.setdefault(str(name), str(distribution.version))
    record = {
        "executable": sys.executable,
        "version": platform.python_version(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }
    stamps = {path: os.stat(path).st_mtime_ns for path in sys.path if os.path.isdir(path)}
    temporary = f"{sys.argv[1]}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"stamps": stamps, "record": record}, file)
    os.replace(temporary, sys.argv[1])


if __name__ == "__main__":
    main()
