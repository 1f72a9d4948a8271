"""Secrets of this machine: a directory for each version of one, of mode 0700, with a file for each entry, of mode 0600.

``secrets/NAME`` is a link to the current version, which replaces the former as a whole, as kubelet does with the volume
of a Secret. So the path of an entry is the same before and after, and a kill at any time leaves one version or the
other. See decision 251.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fairlead.cluster.local.disk_errors import explained
from fairlead.errors import ClusterError, InvalidArgument, NotFound, RuntimeFault
from fairlead.frozen import dataclass
from fairlead.runtime.paths import below
from fairlead.runtime.private_directory import make_private
from fairlead.runtime.secret_entries import MOST_BYTES, MOST_ENTRIES, entry_names, read_entries, variables
from fairlead.specs.constraints import quote
from fairlead.specs.gang import ProgramSpec
from fairlead.specs.overlay import SET_BY_FAIRLEAD, SET_BY_US
from fairlead.specs.secret_reference import ENTRY_NAME, SECRET_NAME, SecretReference, as_files, as_variables

_NAME, _ENTRY = re.compile(SECRET_NAME), re.compile(ENTRY_NAME)
_LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSecret:
    """A secret without its values.

    Attributes:
        set_at: When it was last set, in Unix time.
    """

    name: str
    entries: tuple[str, ...]
    set_at: float


class SecretStore:
    """The secrets below one directory, which exists from the first secret on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, name: str) -> Path:
        """Return the directory of a secret's entries, existing or not.

        Raises:
            InvalidArgument: It is not the name of a secret.
        """
        if _NAME.fullmatch(name) is None:
            raise InvalidArgument(
                f"{quote(name)} is not a name of a secret; use lower-case letters, digits, `-` and `.`, such as `hf`."
            )
        return below(self._directory, name)

    def write(self, name: str, entries: Mapping[str, bytes]) -> None:
        """Replace all entries of a secret, durably.

        Raises:
            InvalidArgument: The name of the secret or of an entry is none, a value is empty, or it is too large.
            ClusterError: It cannot be written.
        """
        path = self.path(name)
        _check(entries)
        try:
            with self._locked():
                version = f".{name}.{secrets.token_hex(8)}"
                made = below(self._directory, version)
                made.mkdir(mode=0o700)
                for entry, content in entries.items():
                    _write(below(made, entry), content)
                _sync(made)
                link = made.with_name(f"{made.name}.link")
                link.symlink_to(version)
                link.replace(path)
                _sync(self._directory)
                self._remove_unused()
        except OSError as error:
            raise explained(self._directory.parent, error) from error

    def remove(self, name: str) -> None:
        """Remove a secret.

        Raises:
            NotFound: There is none of that name.
            ClusterError: It cannot be removed.
        """
        path = self.path(name)
        try:
            with self._locked():
                path.unlink()
                _sync(self._directory)
                self._remove_unused()
        except FileNotFoundError as error:
            raise NotFound(self._unknown(name)) from error
        except OSError as error:
            raise explained(self._directory.parent, error) from error

    def names(self) -> list[str]:
        """Return the names of all secrets, sorted."""
        try:
            return sorted(name for name in os.listdir(self._directory) if _NAME.fullmatch(name) is not None)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ClusterError(f"{self._directory} cannot be read: {error.strerror or error}.") from error

    def stored(self) -> Sequence[StoredSecret]:
        """Return all secrets without their values, by name."""
        return [*self._listed()]

    def _listed(self) -> Iterator[StoredSecret]:
        for name in self.names():
            path = self.path(name)
            try:
                yield StoredSecret(name=name, entries=tuple(entry_names(path)), set_at=path.stat().st_mtime)
            except FileNotFoundError:  # removed meanwhile
                continue
            except OSError as error:
                raise ClusterError(f"{path} cannot be read: {error.strerror or error}.") from error

    def problem(self, references: Iterable[SecretReference], env: Mapping[str, str]) -> str | None:
        """Return why a run cannot get its secrets now, as a clause without any value; None if it can.

        Args:
            env: The variables of its spec.
        """
        references = tuple(references)
        files = as_files(references)
        try:
            by_name = [(name, self.path(name)) for name in as_variables(references)]
            for name in dict.fromkeys(reference.name for reference in references):
                if not self.path(name).is_dir():
                    return self._unknown(name).rstrip(".")
            values = variables(by_name)
            for reference in files:
                known = read_entries(reference.name, self.path(reference.name))
                if reference.entry is not None and reference.entry not in known:
                    return (
                        f"the secret `{reference.name}` has no entry {quote(reference.entry)}; it has "
                        f"{', '.join(sorted(known))}"
                    )
        except RuntimeFault as error:
            return str(error)
        own = {reference.variable for reference in files}
        for variable in values:
            if SET_BY_FAIRLEAD.fullmatch(variable) is not None:
                return f"{variable}, an entry of a secret,{SET_BY_US}"
            if variable in env or variable in own:
                other = "`env`" if variable in env else "`secrets` as a file"
                return f"{variable} is an entry of a secret and in {other} too; remove one of them"
        return None

    def _unknown(self, name: str) -> str:
        known = ", ".join(self.names())
        others = f"; there are {known}" if known else ""
        return f"there is no secret `{name}` on this machine{others}; `fairlead secrets set {name} VARIABLE` makes it."

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_private(self._directory)
        descriptor = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _remove_unused(self) -> None:
        """Remove the versions to which no name leads, also those that a kill left."""
        links = [link for name in self.names() if (link := self._directory / name).is_symlink()]
        current = {_LOCK, *map(os.readlink, links)}
        for item in os.scandir(self._directory):
            if item.name.startswith(".") and item.name not in current:
                if item.is_dir(follow_symlinks=False):
                    shutil.rmtree(item.path)
                else:
                    os.unlink(item.path)


def secret_problem(directory: Path, spec: ProgramSpec) -> str | None:
    """Return why a run cannot get the secrets that its spec names, as a clause with the key; None if it can.

    Args:
        directory: Directory of the secrets.
    """
    store = SecretStore(directory)
    if spec.secrets and (problem := store.problem(spec.secrets, spec.env)) is not None:
        return f"secrets: {problem}"
    for name, source in spec.data.items():
        if source.credentials is not None:
            of_data = SecretReference(name=source.credentials, variable="CREDENTIALS")
            if (problem := store.problem((of_data,), {})) is not None:
                return f"data.{name}.credentials: {problem}"
    return None


def _check(entries: Mapping[str, bytes]) -> None:
    if not entries:
        raise InvalidArgument("A secret has at least one entry; name a variable, or give `--from-file KEY=PATH`.")
    if len(entries) > MOST_ENTRIES:
        raise InvalidArgument(f"{len(entries)} entries; a secret has at most {MOST_ENTRIES}.")
    for entry, content in entries.items():
        if _ENTRY.fullmatch(entry) is None:
            raise InvalidArgument(
                f"{quote(entry)} is not a name of an entry; use letters, digits, `-`, `_` and `.`, such as `API_KEY` "
                "for a variable or `key.json` for a file."
            )
        if not content:
            raise InvalidArgument(f"The value of {entry} is empty; nothing was set.")
    if sum(map(len, entries.values())) > MOST_BYTES:
        raise InvalidArgument(f"The entries have more than {MOST_BYTES >> 20} MiB, which is the most of a secret.")


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
