"""Set up this checkout in .venv and run a command there: ``python3 bootstrap.py COMMAND [ARG ...]``.

Needs Python 3.11 or newer and a package index, nothing else. The first call makes the environment from the pinned
and hashed requirements; later calls see that they are unchanged and start the command at once.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
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
    venv.create(VENV, with_pip=True, clear=True)
    python, uv = str(BIN / "python"), str(BIN / "uv")
    pins = ["--quiet", "--require-hashes", "-r"]
    _run(python, "-m", "pip", "--disable-pip-version-check", "install", *pins, str(ROOT / "requirements" / "uv.txt"))
    _run(uv, "--no-config", "pip", "install", "--python", python, *pins, str(PINS))
    _run(uv, "--no-config", "pip", "install", "--python", python, "--quiet", "--no-deps", "--editable", str(ROOT))
    # As pip would: where Python may keep nothing, each command would compile them anew, which takes as long as it does.
    packages = next((VENV / "lib").glob("python3*/site-packages"))
    _run(python, "-m", "compileall", "-q", str(ROOT / "src"), *(str(packages / name) for name in LOADED))
    STAMP.write_text(wanted)


def _run(*argv: str) -> None:
    if subprocess.run(argv, stdout=sys.stderr, check=False).returncode != 0:
        sys.exit(f"Setting up failed at: {' '.join(argv)}")


if __name__ == "__main__":
    main()
