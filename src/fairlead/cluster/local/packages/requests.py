"""Reads what a run's ``environment`` asks for at its submission, so that later edits of its files change nothing.

A request is the text of the files, the Python and the index; its hash names the lock. It is kept in the directory of
the run, from which the supervisor has the environment made. See decision 227.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.cluster.local.home import Home
from fairlead.errors import Conflict, InvalidSpec
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.specs.environment import AUTO, FILES, PythonEnvironment, form_of
from fairlead.specs.training import Training
from fairlead.specs.workspace import Ide
from fairlead.untrusted_json import parse_json, text

AUTO_ORDER = ("pylock.toml", "uv.lock", "pyproject.toml", "requirements.txt")
MOST_BYTES = 4 << 20
MOST_INCLUDED = 64
ASK_S = 30.0
MOST_FACTS = 8192
# Variables of uv that change which packages are chosen; their values may hold credentials, so that only a hash is kept.
CHOOSING = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX_STRATEGY",
    "UV_EXCLUDE_NEWER", "UV_PRERELEASE", "UV_RESOLUTION", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_TORCH_BACKEND",
    "UV_NO_INDEX",
)  # fmt: skip
NO_UV = (
    "packages are resolved and installed by uv, which is not on the PATH; install it with "
    "`pip install 'fairlead[environments]'`, or as docs.astral.sh/uv says"
)
IDE_PACKAGE = "jupyterlab"
"""Goes along with the packages of a workspace that opens notebooks; a lock has to have it."""
_INCLUDE = re.compile(r"(?:-r|--requirement)(?:\s+|=)(\S+)")
_CONSTRAINT = re.compile(r"(?:-c|--constraint)(?:\s+|=)(\S+)")
_LINKS = re.compile(r"(-f|--find-links)(?:\s+|=)(\S+)")
_LOCAL = re.compile(r"(?:-e|--editable)\b.*|\.{1,2}(?:/\S*)?")
_FACTS = (
    "import json, os, sys; print(json.dumps([os.path.realpath(sys.executable), '%d.%d.%d' % sys.version_info[:3]]))"
)


def with_file(spec: Training, workdir: Path) -> Training:
    """Return the spec with the file that ``environment: auto`` stands for.

    Raises:
        InvalidSpec: The working directory has none, or not the one that is named.
    """
    environment = spec.environment
    if environment is None or environment.file is None:
        return spec
    if environment.file == AUTO:
        name = next((name for name in AUTO_ORDER if (workdir / name).is_file()), None)
        if name is None:
            raise InvalidSpec((f"{spec.name}: environment: {workdir} has none of {FILES}; add one, or name a file.",))
        return replace(spec, environment=replace(environment, file=name))
    if not (workdir / Path(environment.file).expanduser()).is_file():
        raise InvalidSpec((f"{spec.name}: environment.file: there is no file {environment.file!r} in {workdir}.",))
    return spec


def find_uv(environ: Mapping[str, str]) -> str | None:
    """Return the path of uv: that of the user's PATH, or the one beside Fairlead's own Python; None without one."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    return shutil.which("uv", path=environ.get("PATH", os.defpath)) or (beside if os.access(beside, os.X_OK) else None)


def key_of(environment: PythonEnvironment, workdir: str | None) -> str:
    """Return the name of a request among those of one workload, whose runs may have several."""
    parts = (environment.file, environment.packages, environment.python, workdir)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def read_request(
    spec: Training,
    home: Home,
    environ: Mapping[str, str],
    *,
    target: tuple[str, str] | None = None,
    torch_backend: str | None = None,
) -> dict[str, Any]:
    """Return the request of a run whose working directory is absolute.

    Args:
        target: Platform of uv and version of Python of another machine, for which it is; None for this one.
        torch_backend: The build of torch to take, by uv's name, such as cu126; None for that of the indexes.

    Raises:
        InvalidSpec: A file is missing or asks for what is not done here.
        Conflict: There is no uv, or not that Python.
    """
    environment = spec.environment
    assert environment is not None
    uv = find_uv(environ)
    if uv is None:
        raise Conflict(f"{spec.name}: environment: {NO_UV}.")
    workdir = Path(spec.workdir or Path.home())
    place = workdir if environment.file is None else workdir / Path(environment.file).expanduser()
    try:
        if environment.file is None:
            form, files = _requirements_of("\n".join(environment.packages), workdir)
        else:
            form, files = _read_files(place)
        if form == "requirements" and getattr(spec, "ide", None) == Ide.JUPYTER:
            files["requirements.txt"] += f"\n{IDE_PACKAGE}"
    except OSError as error:
        problem = f"{spec.name}: environment.file: {place} cannot be read: {error.strerror or error}."
        raise InvalidSpec((problem,)) from error
    except ValueError as error:
        key = "packages" if environment.file is None else f"file: {place}"
        raise InvalidSpec((f"{spec.name}: environment.{key}: {error}.",)) from error
    chosen = "\n".join(f"{name}={environ[name]}" for name in CHOOSING if name in environ)
    index = hashlib.sha256(chosen.encode()).hexdigest()
    content: dict[str, Any] = {"form": form, "files": files, "index": index}
    if torch_backend is not None:
        content["torch_backend"] = torch_backend
    if target is not None:
        content["target"] = list(target)
    else:
        python = _python(environment.python, home, uv, environ)
        if python is None:
            named = "" if environment.python is None else f" {environment.python}"
            raise Conflict(
                f"{spec.name}: environment.python: there is no Python{named} on this machine's PATH; install it with "
                f"`uv python install{named}`, or name another version."
            )
        content["python"] = python
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
    # Neither changes what is installed.
    return {**content, "digest": digest, "uv": uv, "source": environment.file or "packages"}


def keep_request(spec: Training, home: Home, uid: str, environ: Mapping[str, str]) -> None:
    """Keep the request of a run with the run."""
    if spec.environment is None:
        return
    directory = home.packages_of(uid)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    request = read_request(spec, home, environ)
    write_json(directory / f"{key_of(spec.environment, spec.workdir)}.json", request)


def inherit_request(spec: Training, home: Home, uid: str, parent: str) -> None:
    """Give a child the request that its parent was submitted with."""
    if spec.environment is None:
        return
    name = f"{key_of(spec.environment, spec.workdir)}.json"
    request = read_json(home.packages_of(parent) / name)
    if request is not None:
        directory = home.packages_of(uid)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(directory / name, request, durably=False)


def request_of(spec: Training, home: Home, uid: str) -> dict[str, Any] | None:
    """Return the kept request of a run; None if it has none."""
    if spec.environment is None:
        return None
    return read_json(home.packages_of(uid) / f"{key_of(spec.environment, spec.workdir)}.json")


def _read_files(place: Path) -> tuple[str, dict[str, str]]:
    """Return the form of a file, and the texts by the names under which uv reads them.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file asks for what is not done here, or has no hashes.
    """
    form = form_of(place.name)
    if form == "requirements":
        return _requirements_of(_text(place), place.parent)
    if form == "pylock":
        content = _text(place)
        _check_lock(content)
        return form, {"pylock.toml": content}
    project = place.with_name("pyproject.toml")
    files = {"pyproject.toml": _text(project)}
    lock = place.with_name("uv.lock")
    if form == "uv.lock" or lock.is_file():
        return "uv.lock", {**files, "uv.lock": _text(lock)}
    return "pyproject", files


def _text(place: Path) -> str:
    with open(place, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    return content.decode()


def _requirements_of(content: str, directory: Path) -> tuple[str, dict[str, str]]:
    """Return form and texts of requirements, whose paths are relative to a directory."""
    constraints: list[str] = []
    files = {"requirements.txt": "\n".join(_requirements(content, directory, constraints, []))}
    return "requirements", files | ({"constraints.txt": "\n".join(constraints)} if constraints else {})


def _requirements(content: str, directory: Path, constraints: list[str], seen: list[Path]) -> list[str]:
    """Return the lines of requirements with those of the files that they include, and absolute paths."""

    def included(name: str) -> list[str]:
        if len(seen) >= MOST_INCLUDED:
            raise ValueError(f"it includes more than {MOST_INCLUDED} files")
        place = directory / name
        seen.append(place)
        return _requirements(_text(place), place.parent, constraints, seen)

    lines: list[str] = []
    for line in content.splitlines():
        words = line.split(" #")[0].strip()
        if (file := _INCLUDE.fullmatch(words)) is not None:
            lines += included(file[1])
        elif (file := _CONSTRAINT.fullmatch(words)) is not None:
            constraints += included(file[1])
        elif (links := _LINKS.fullmatch(words)) is not None and "://" not in links[2]:
            lines.append(f"{links[1]} {os.path.normpath(directory / links[2])}")
        elif _LOCAL.fullmatch(words) is not None:
            raise ValueError(
                f"{words!r} is a directory, which no lock can hold; leave it out, since the program runs in `workdir` "
                "anyway, and give `env: {PYTHONPATH: src}` where its modules are elsewhere"
            )
        else:
            lines.append(line)
    return lines


def _check_lock(content: str) -> None:
    """Refuse a lock with a file without a hash, or with a directory.

    Raises:
        ValueError: It has one, or is not a lock.
    """
    try:
        packages = tomllib.loads(content).get("packages", [])
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is no TOML: {error}") from error
    if not isinstance(packages, list) or not all(isinstance(package, dict) for package in packages):
        raise ValueError("its `packages` are no list of tables, as PEP 751 has them")
    for package in packages:
        name = package.get("name", "a package")
        if "directory" in package:
            raise ValueError(f"{name} is a directory, which has no hash; leave it out")
        files = [*package.get("wheels", []), *(package[key] for key in ("sdist", "archive") if key in package)]
        if any(not isinstance(file, dict) or not file.get("hashes") for file in files):
            raise ValueError(f"{name} has a file without a hash; lock it with `uv pip compile --format pylock.toml`")


def _python(version: str | None, home: Home, uv: str, environ: Mapping[str, str]) -> list[str] | None:
    """Return path and version of the Python to take; None without one.

    The answer is stored, since asking takes a fifth of a second.
    """
    path = environ.get("PATH", os.defpath)
    shims = os.path.join(environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "shims")
    if version is not None and shims in path.split(os.pathsep):
        # pyenv's shims fail for versions that are not active, which ends uv's search.
        versions = sorted(Path(shims).parent.glob("versions/*/bin"), reverse=True)
        path = os.pathsep.join([*map(str, versions), *(part for part in path.split(os.pathsep) if part != shims)])
    first = shutil.which("python3", path=path) if version is None else None
    key = hashlib.sha256(f"{version}\n{path}\n{environ.get('PYENV_VERSION')}".encode()).hexdigest()[:32]
    place = home.packages / "pythons" / f"{key}.json"
    cached = read_json(place) or {}
    python, has_version, stamp = text(cached.get("path")), text(cached.get("version")), cached.get("stamp")
    if python is not None and has_version is not None and stamp == [_stamp(python), _stamp(first or "")]:
        return [python, has_version]
    env = {**environ, "PATH": path}
    python = first if version is None else _ask([uv, "python", "find", "--no-project", "--system", version], env)
    facts = None if python is None else _ask([python, "-I", "-c", _FACTS], env)
    if facts is None:
        return None
    python, has_version = parse_json(facts, max_bytes=MOST_FACTS)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = [_stamp(str(python)), _stamp(first or "")]
    write_json(place, {"path": python, "version": has_version, "stamp": stamp}, durably=False)
    return [str(python), str(has_version)]


def _ask(argv: list[str], env: Mapping[str, str]) -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=ASK_S, check=True, cwd="/")
        return answer.stdout.strip() or None
    return None


def _stamp(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
