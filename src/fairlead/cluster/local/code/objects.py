"""Contents of files, each stored once and named by its hash.

A writer holds ``writing`` until a permanent file refers to the objects it added; ``prune`` removes objects without such
a reference and does nothing while a writer is active. So no object is removed before its reference is written.
"""

import fcntl
import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path


class Objects:
    """The objects of one state directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.parent / "objects.lock"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Block pruning while the context is active."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def has(self, digest: str, size: int) -> bool:
        """Return whether a content is stored; one that a power cut truncated is not."""
        try:
            return os.stat(self._place(digest)).st_size == size
        except FileNotFoundError:
            return False

    def put(self, content: bytes) -> str:
        """Store a content; return its name."""
        digest = digest_of(content)
        if not self.has(digest, len(content)):
            place = self._place(digest)
            temporary = f"{place}.{os.getpid()}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            try:
                descriptor = os.open(temporary, flags, 0o600)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(place), exist_ok=True)
                descriptor = os.open(temporary, flags, 0o600)
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, place)
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return a content by its name; None when it is missing or damaged."""
        try:
            content = Path(self._place(digest)).read_bytes()
        except FileNotFoundError:
            return None
        return content if digest_of(content) == digest else None

    def prune(self, needed: Collection[str]) -> int:
        """Remove objects that are not needed, unless a writer is active; return the number removed."""
        if not self._path.is_dir():
            return 0
        gone = 0
        with self._lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 0
            for place in self._path.glob("??/*"):
                if place.parent.name + place.name not in needed:
                    place.unlink(missing_ok=True)
                    gone += 1
        return gone

    def _place(self, digest: str) -> str:
        return f"{self._path}/{digest[:2]}/{digest[2:]}"


def digest_of(content: bytes) -> str:
    """Return the name of a content."""
    return hashlib.blake2b(content, digest_size=20).hexdigest()
