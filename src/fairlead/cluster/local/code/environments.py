"""Records the environment of an attempt: the machine, its GPUs, and the program's Python with its packages.

A Python is inspected once, beside the program and at the lowest priority, and again after a change in the directories
of its packages. Unknown facts are left out.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import fairlead.runtime
from fairlead.cluster.local import machine
from fairlead.cluster.local.code.objects import Objects
from fairlead.cluster.local.home import Home
from fairlead.cluster.preflight import read_command
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.state.snapshot import Node

SCRIPT = Path(fairlead.runtime.__file__).resolve().parent / "interpreter.py"
MOST_ATTEMPTS = 20


class Environments:
    """Environments of one state directory, written by its supervisor."""

    def __init__(self, home: Home, objects: Objects, node: Node) -> None:
        self._home = home
        self._objects = objects
        self._node = node
        self._inspections: list[tuple[subprocess.Popen[bytes], str, int, Path]] = []
        self._driver: str | None = None
        self._has_driver = False

    def record(self, uid: str, attempt: int, spec: Mapping[str, Any], at: float) -> None:
        """Record the environment of an attempt; its Python may follow later.

        Args:
            spec: The content of a pod's ``pod.json``.
        """
        known = self._read(uid)
        if str(attempt) in known:
            return
        python = interpreter_of(str(spec["command"]), str(spec["workdir"]), spec["env"])
        record = {"at": at, "host": socket.gethostname(), "platform": platform.platform(), "python": None}
        record |= {"gpus": [gpu.model for gpu in self._node.gpus], "gpu_driver": self._gpu_driver()}
        self._write(uid, {**known, str(attempt): record})
        if python is None:
            return
        answer = self._answer(python, spec["env"])
        cached = read_json(answer)
        if cached is not None and all(_mtime(path) == mtime for path, mtime in cached["stamps"].items()):
            self._keep(uid, attempt, cached["record"])
            return
        answer.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            child = subprocess.Popen(
                [python, str(SCRIPT), str(answer)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: value for name, value in spec["env"].items() if not name.startswith("FAIRLEAD_")},
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            return  # no such Python: the program itself reports that
        self._inspections.append((child, uid, attempt, answer))

    def collect(self) -> None:
        """Store the finished inspections."""
        for inspection in list(self._inspections):
            child, uid, attempt, answer = inspection
            if child.poll() is None:
                continue
            self._inspections.remove(inspection)
            content = read_json(answer) if child.returncode == 0 else None
            if content is not None:
                self._keep(uid, attempt, content["record"])

    def close(self) -> None:
        """Stop running inspections; the next attempt starts them again."""
        for child, *_ in self._inspections:
            child.kill()
            child.wait()
        self._inspections.clear()

    def _keep(self, uid: str, attempt: int, record: dict[str, Any]) -> None:
        known = self._read(uid)
        if str(attempt) not in known:
            return
        with self._objects.writing():
            digest = self._objects.put(json.dumps(record).encode())
            known[str(attempt)]["python"] = digest
            self._write(uid, known)

    def _read(self, uid: str) -> dict[str, Any]:
        return (read_json(self._home.environments(uid)) or {}).get("attempts") or {}

    def _write(self, uid: str, attempts: dict[str, Any]) -> None:
        if self._home.run(uid).is_dir():
            newest = dict(list(attempts.items())[-MOST_ATTEMPTS:])
            write_json(self._home.environments(uid), {"attempts": newest}, durably=False)

    def _answer(self, python: str, env: Mapping[str, str]) -> Path:
        key = f"{python}\n{env.get('PYTHONPATH')}\n{env.get('PYTHONHOME')}\n{env.get('HOME')}"
        return self._home.path / "code" / "interpreters" / hashlib.sha256(os.fsencode(key)).hexdigest()[:32]

    def _gpu_driver(self) -> str | None:
        if not self._has_driver:
            self._driver, self._has_driver = machine.gpu_driver() if self._node.gpus else None, True
        return self._driver


def editable_directories(command: str, workdir: str, env: Mapping[str, str]) -> list[str]:
    """Return the directories from which a command's Python imports projects that are installed as editable."""
    python = interpreter_of(command, workdir, env)
    prefixes = [None if python is None else os.path.dirname(os.path.dirname(os.path.abspath(python)))]
    prefixes += [env.get("VIRTUAL_ENV"), env.get("CONDA_PREFIX"), os.path.join(workdir, ".venv")]
    directories: dict[str, None] = {}
    for prefix in dict.fromkeys(prefix for prefix in prefixes if prefix):
        for place in Path(prefix).glob("lib/python3*/site-packages"):
            for path in sorted((*place.glob("*.pth"), *place.glob("__editable__*finder.py"))):
                with suppress(OSError, UnicodeDecodeError):  # Python itself reports it
                    text = path.read_text()
                    directories |= dict.fromkeys(_of_finder(text) if path.suffix == ".py" else _of_pth(text))
    return list(directories)


def _of_pth(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if os.path.isabs(line.strip())]


def _of_finder(text: str) -> list[str]:
    """Return the directories of the packages in the mapping of a setuptools finder."""
    mapping = re.search(r"^MAPPING\b[^=]*= (\{.*\})$", text, re.MULTILINE)
    return re.findall(r": '((?:/[^/']+)*)/[^/']+'", mapping[1]) if mapping else []


def interpreter_of(command: str, workdir: str, env: Mapping[str, str]) -> str | None:
    """Return the Python of a command: its program, or that of its script's first line; for a shell, the PATH's."""
    invocation = read_command(command)
    name = "python" if invocation is None else invocation.program
    path = os.pathsep.join(
        os.path.join(workdir, directory) for directory in env.get("PATH", os.defpath).split(os.pathsep)
    )
    program = os.path.join(workdir, name) if "/" in name else shutil.which(name, path=path)
    if program is None or os.path.basename(program).startswith("python"):
        return program
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env" and len(words) > 1:
        words = [shutil.which(words[1], path=path) or ""]
    return words[0] if words and os.path.basename(words[0]).startswith("python") else None


def _mtime(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
