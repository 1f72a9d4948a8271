"""Reads the entries of secrets: files of a directory, in this machine's store or in the volume of a Secret in a pod.

A secret reaches the ranks as variables that a shim adds in memory, or by the path of a file. Neither ``pod.json`` nor a
log has a value. Standard library only, Python 3.9 or newer. See decision 251.
"""

from __future__ import annotations

import os
import re

from fairlead.errors import RuntimeFault
from fairlead.runtime import podfiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

NAMES = "FAIRLEAD_SECRET_VARIABLES"
"""Variable of the ranks with the names, joined by commas, of those that are secret: no submission keeps them."""
MOST_BYTES = 1 << 20  # as of a Secret of Kubernetes
MOST_ENTRIES = 256
MOST_VARIABLE_BYTES = 128 * 1024 - 1  # of name, `=` and value, Linux' MAX_ARG_STRLEN
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TRIES = 10


def entry_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the entries of a secret, sorted; kubelet's own files begin with two dots.

    Raises:
        OSError: The directory cannot be read.
    """
    return sorted(name for name in os.listdir(path) if not name.startswith(".."))


def read_entries(name: str, path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the entries of a secret, all of the same version.

    Args:
        path: Directory of the entries, or a link to it, which is replaced as a whole when the secret changes.

    Raises:
        RuntimeFault: There is no such secret, it has no entries, or it is too large.
    """
    for _ in range(_TRIES):
        version = os.path.realpath(path)
        try:
            return _read(name, version)
        except OSError as error:
            if os.path.realpath(path) == version:  # else it was replaced while it was read
                break
            problem = error
    else:
        raise RuntimeFault(f"the secret `{name}` cannot be read: {problem.strerror}")
    if not os.path.isdir(path):
        raise RuntimeFault(f"there is no secret `{name}`")
    raise RuntimeFault(f"the secret `{name}` cannot be read")


def _read(name: str, directory: str) -> dict[str, bytes]:
    names = entry_names(directory)
    if not names:
        raise RuntimeFault(f"the secret `{name}` has no entries")
    if len(names) > MOST_ENTRIES:
        raise RuntimeFault(f"the secret `{name}` has {len(names)} entries; at most {MOST_ENTRIES} can be used")
    entries, room = {}, MOST_BYTES
    for entry in names:
        with open(os.path.join(directory, entry), "rb") as file:
            entries[entry] = file.read(room + 1)
        room -= len(entries[entry])
        if room < 0:
            raise RuntimeFault(f"the secret `{name}` has more than {MOST_BYTES >> 20} MiB")
    return entries


def variables(secrets: Iterable[tuple[str, str | os.PathLike[str]]]) -> dict[str, str]:
    """Return the variables of secrets, each a name and a directory, in which every entry is a variable.

    Raises:
        RuntimeFault: A secret cannot be used as variables; no value is in the message.
    """
    values: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name, path in secrets:
        for entry, content in read_entries(name, path).items():
            if entry in owners:
                raise RuntimeFault(
                    f"the secrets `{owners[entry]}` and `{name}` both set the variable {entry}; leave one of them out"
                )
            owners[entry], values[entry] = name, _value(name, entry, content)
    return values


def _value(name: str, entry: str, content: bytes) -> str:
    where, as_file = f"the entry `{entry}` of the secret `{name}`", f"take it as a file: `VARIABLE={name}/{entry}`"
    if VARIABLE.fullmatch(entry) is None:
        raise RuntimeFault(f"{where} is no name of a variable; {as_file}")
    if not content:
        raise RuntimeFault(f"{where} is empty; set it again with its value")
    if len(entry) + 1 + len(content) > MOST_VARIABLE_BYTES:
        raise RuntimeFault(f"{where} is too long for a variable, which holds {MOST_VARIABLE_BYTES} bytes; {as_file}")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise RuntimeFault(f"{where} is no text, and a variable holds text alone; {as_file}")
    return text


def read_pod(pod_dir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the content of a ``pod.json`` with the variables of its secrets, for who starts processes from it.

    Where they cannot be read, ``problem`` is the reason, as a clause. In a pod, ``inherits`` adds the environment of
    its container, in which kubelet put them. The result is never written.
    """
    pod = podfiles.read_json(os.path.join(os.fspath(pod_dir), "pod.json"))
    if pod is None:
        return None
    env = pod["env"]
    if pod.get("inherits"):
        env = {**{name: value for name, value in os.environ.items() if name not in pod["inherits"]}, **env}
    if pod.get("secrets"):
        try:
            values = variables(pod["secrets"].items())
        except RuntimeFault as error:
            return {**pod, "env": env, "problem": str(error)}
        env = {**env, **values, NAMES: ",".join(sorted(values))}
    return {**pod, "env": env}


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that are secrets of the run that this process belongs to."""
    own = {NAMES, *environ.get(NAMES, "").split(",")}
    return {name: value for name, value in environ.items() if name not in own}
