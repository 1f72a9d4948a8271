"""Compiles the image's modules ahead, since a pod without a place to write would compile them at every start.

The bytecode is of the image's Python, so a Python of the same version has to be at hand. It is taken unchecked
(PEP 552): it has no time in it, and the files beside it do not change. A patch release may compile to other bytes.

See decision 133.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from fairlead.control.image.layers import LayerFile
from fairlead.errors import ClusterError
from fairlead.runtime.paths import below

LARGE = ("numpy", "pygments")
"""Packages that are not compiled: half of all source text, and neither operator nor page imports them."""

COMPILE_S = 10 * 60.0
ASK_S = 30.0


def interpreter_of(python: str) -> str | None:
    """Return a Python of a version such as 3.12 on this machine; None if there is none."""
    if python == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        return None
    try:
        answer = subprocess.run(
            [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, check=False, timeout=ASK_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return interpreter if answer.returncode == 0 and answer.stdout.strip() == python else None


def compile_modules(interpreter: str, files: Mapping[str, LayerFile]) -> dict[str, LayerFile]:
    """Return the bytecode of the modules among files, by absolute path like these.

    Raises:
        ClusterError: A module cannot be compiled.
    """
    modules = {
        name: file
        for name, file in files.items()
        if name.endswith(".py") and not any(f"/{package}/" in name for package in LARGE)
    }
    with TemporaryDirectory(prefix="fairlead-bytecode-") as place:
        root = Path(place)
        for name, file in modules.items():
            path = below(root, name.lstrip("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
        argv = [
            interpreter, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash",
            "-s", place, "-p", "/", place,
        ]  # fmt: skip
        # Sets among constants have the order of their hashes, and the bytecode belongs beside its module.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environ["PYTHONHASHSEED"] = "0"
        try:
            ended = subprocess.run(
                argv, env=environ, cwd=place, capture_output=True, text=True, check=False, timeout=COMPILE_S
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"The image's modules were not compiled within {COMPILE_S / 60:.0f} minutes.") from None
        if ended.returncode:
            output = (ended.stdout.strip() or ended.stderr.strip())[-600:]
            raise ClusterError(f"{interpreter} cannot compile the image's modules. It says: {output}")
        return {
            f"/{path.relative_to(root).as_posix()}": LayerFile(content=path.read_bytes())
            for path in sorted(root.rglob("*.pyc"))
        }
