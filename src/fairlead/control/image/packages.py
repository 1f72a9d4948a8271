"""Downloads Fairlead's dependencies for the image's Python: wheels by pinned hashes with pip, unpacked to files."""

import platform
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from fairlead.control.image.layers import LayerFile
from fairlead.errors import ClusterError

PINS = Path(__file__).with_name("requirements.txt")
"""Versions and hashes; `requirements/README.md` describes how to update them. No line has a marker, since pip would
evaluate it for the Python that runs pip."""

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architecture in wheel names by architecture in image names."""

GLIBC = range(17, 29)
"""Accepted minor versions of glibc 2 in wheel tags: Debian 11 has 31."""

FETCH_S = 15 * 60.0


def fetch_packages(python: str, architecture: str) -> dict[str, LayerFile]:
    """Return the files of all dependencies, by their paths relative to the import path.

    Args:
        python: Version of the Python that imports them, such as 3.12.
        architecture: A key of `MACHINES`.

    Raises:
        ClusterError: They cannot be downloaded, or pip is missing.
    """
    machine = MACHINES[architecture]
    tags = [*(f"manylinux_2_{minor}_{machine}" for minor in GLIBC), f"manylinux2014_{machine}", f"linux_{machine}"]
    with TemporaryDirectory(prefix="fairlead-wheels-") as place:
        argv = [
            *_pip(), "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
            "--only-binary", ":all:", "--implementation", "cp", "--python-version", python, "--dest", place,
            *(part for tag in tags for part in ("--platform", tag)), "-r", str(PINS),
        ]  # fmt: skip
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=FETCH_S)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"The image's packages were not fetched within {FETCH_S / 60:.0f} minutes.") from None
        if done.returncode:
            output = (done.stderr.strip() or done.stdout.strip())[-600:]
            raise ClusterError(f"The image's packages for Python {python} cannot be fetched. pip says: {output}")
        files: dict[str, LayerFile] = {}
        for wheel in sorted(Path(place).iterdir()):
            files.update(unpack(wheel))
        return files


def _pip() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    if uv is not None:
        return [
            uv,
            "run",
            "--no-project",
            "--quiet",
            "--python",
            sys.executable,
            "--with",
            "pip",
            "python",
            "-m",
            "pip",
        ]
    raise ClusterError(
        f"Building an image takes pip, and {sys.executable} of Python {platform.python_version()} has none, nor is "
        "there uv. Install either of them, as with `python3 -m ensurepip`."
    )


def unpack(wheel: Path) -> dict[str, LayerFile]:
    """Return the files of a wheel by installed path, per the binary distribution format (PEP 427).

    Files outside the import path (scripts, headers, manuals) are omitted: nothing in the image uses them.
    """
    files = {}
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            parts = PurePosixPath(entry.filename).parts
            if entry.is_dir() or ".." in parts or entry.filename.startswith("/"):
                continue
            if parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue
                parts = parts[2:]
            files["/".join(parts)] = LayerFile(
                content=archive.read(entry), is_executable=bool(entry.external_attr >> 22 & 1)
            )
    return files


def own_files() -> dict[str, LayerFile]:
    """Return the files of the running Fairlead."""
    home = Path(__file__).parents[2]
    return {
        f"fairlead/{path.relative_to(home).as_posix()}": LayerFile(content=path.read_bytes())
        for path in sorted(home.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
