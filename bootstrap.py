"""Set up this checkout in .venv and run a command there: ``python3 bootstrap.py COMMAND [ARG ...]``.

Needs Python 3.11 or newer and a package index, nothing else. The first call makes the environment from the pinned
and hashed requirements; later calls see that they are unchanged and start the command at once.

The environment has the Python that runs this, or another of the same version that is found and is faster: one that was
compiled without optimizations takes a fifth longer, and commands and tests start many.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
PINS = ROOT / "requirements" / "dev.txt"
STAMP = VENV / "fairlead-requirements.sha256"
LOADED = (
    "aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "click", "frozenlist", "idna", "jinja2", "markupsafe",
    "multidict", "pathspec", "propcache", "psutil", "pynvml.py", "rich", "typing_extensions.py", "urllib3", "yaml",
    "yarl",
)  # fmt: skip
"""Packages that commands load."""
SPEED = """
import argparse, ensurepip, os, sys, time, venv
def seconds():
    began = time.process_time()
    for _ in range(20):
        parser = argparse.ArgumentParser(prog="speed")
        for number in range(20):
            parser.add_argument(f"--option-{number}", help="some words that are wrapped when they are printed " * 3)
        parser.format_help()
        parser.parse_args([f"--option-{number}={number}" for number in range(20)])
    return time.process_time() - began
print(min(seconds() for _ in range(4)), os.path.realpath(sys._base_executable))
"""
FASTER = 0.92
"""Share of this Python's time that another may need at most; two alike differ by less."""


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 (this is what says so)
        sys.exit(f"Fairlead needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable}).")
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wanted = hashlib.sha256(PINS.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if not (STAMP.exists() and STAMP.read_text() == wanted):
        _install(wanted)
    os.environ["VIRTUAL_ENV"] = str(VENV)
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    command = shutil.which(sys.argv[1])
    if command is None:
        sys.exit(f"{sys.argv[1]}: no such command in .venv or on PATH.")
    os.execv(command, sys.argv[1:])


def _install(wanted: str) -> None:
    print("Setting up .venv (the first time downloads about 3 GB, PyTorch with CUDA) ...", file=sys.stderr, flush=True)
    _run(_fastest(), "-m", "venv", "--clear", str(VENV))
    python, uv = str(BIN / "python"), str(BIN / "uv")
    pins = ["--quiet", "--require-hashes", "-r"]
    _run(python, "-m", "pip", "--disable-pip-version-check", "install", *pins, str(ROOT / "requirements" / "uv.txt"))
    _run(uv, "--no-config", "pip", "install", "--python", python, *pins, str(PINS))
    # Built by the backend among the pins, as one that a build fetches for itself would be neither pinned nor hashed.
    here = ["--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    _run(uv, "--no-config", "pip", "install", "--python", python, *here)
    # As pip would: where Python may keep nothing, each command would compile them anew, which takes as long as it does.
    packages = next((VENV / "lib").glob("python3*/site-packages"))
    _run(python, "-m", "compileall", "-q", str(ROOT / "src"), *(str(packages / name) for name in LOADED))
    STAMP.write_text(wanted)


def _fastest() -> str:
    """Return this Python, or the fastest of the same version on this machine if that is clearly faster."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = (*os.get_exec_path(), "/usr/local/bin", "/usr/bin")
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    found = {own, *(os.path.realpath(Path(place) / version) for place in places)}
    # In turns, as a busy machine may slow any of them.
    timed = [each for _ in range(5) for path in found if (each := _timed(path)) is not None]
    own_s = min((took for took, path in timed if path == own), default=0.0)
    least_s, path = min(timed, default=(0.0, own))
    if least_s >= FASTER * own_s:
        return own
    print(f"{path} is {own_s / least_s:.2f} times as fast as {own}; .venv gets it.", file=sys.stderr)
    return path


def _timed(python: str) -> tuple[float, str] | None:
    """Return the seconds that a Python takes to parse arguments, and its path; None if it cannot make environments."""
    try:
        done = subprocess.run([python, "-I", "-c", SPEED], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    took, path = done.stdout.strip().split(" ", 1)
    return float(took), path


def _run(*argv: str) -> None:
    if subprocess.run(argv, stdout=sys.stderr, check=False).returncode != 0:
        sys.exit(f"Setting up failed at: {' '.join(argv)}")


if __name__ == "__main__":
    main()
