"""Contents of files, each kept once and named by its hash.

Whoever adds objects holds ``writing`` until a file that outlives them names what they added; ``prune`` takes what no
such file names, and lets be when somebody writes. So nothing is taken that is still to be named.
"""

import fcntl
import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path


class Objects:
    """Those of one state directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.parent / "objects.lock"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep everybody from pruning."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def has(self, digest: str, size: int) -> bool:
        """Return whether a content is kept; one that a power cut left short is not."""
        try:
            return os.stat(self._place(digest)).st_size == size
        except FileNotFoundError:
            return False

    def put(self, content: bytes) -> str:
        """Keep a content; its name."""
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
        """A content by its name; None when it is not there, or is damaged."""
        try:
            content = Path(self._place(digest)).read_bytes()
        except FileNotFoundError:
            return None
        return content if digest_of(content) == digest else None

    def prune(self, needed: Collection[str]) -> int:
        """Remove what is not needed, unless somebody writes just now; how many objects went."""
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
    """The name of a content."""
    return hashlib.blake2b(content, digest_size=20).hexdigest()
