"""Delivers the working directory to a pod, from mounted parts or from the place where checkpoints are stored.

An archive is a compressed tar file named by the hash of its content. An archive on a volume is written through a pod
that mounts the volume: `await` keeps that pod running until the archive exists, and `receive`, executed in the same
pod, writes it from standard input. Only the standard library is needed, except for archives on an object store.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import sys
import time

from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.extraction import InvalidArchive, extract
from fairlead.runtime.places import is_url, open_place, translated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

ENDING = ".tar.gz"
DIGEST_CHARACTERS = 32
OLD_DIGEST_CHARACTERS = 16
"""Of names that were written by earlier versions, and are still read."""
PIECE_BYTES = 1024 * 1024
TRIES, FIRST_PAUSE_S = 5, 1.0
AWAIT_S = 600.0
LOOK_EVERY_S = 0.2
READY = "send"


def unpack(parts: str, directory: str, digest: str | None = None) -> None:
    """Extract the archive whose parts are the files of a directory, in the order of their names.

    Args:
        digest: The archive's name, which its content has to match; None where an earlier version did not pass it on.

    Raises:
        StoreUnavailable: It differs from what was sent, or cannot be unpacked.
    """
    pieces = []
    for name in sorted(os.listdir(parts)):
        path = os.path.join(parts, name)
        if not name.startswith(".") and os.path.isfile(path):
            with open(path, "rb") as file:
                pieces.append(file.read())
    content = b"".join(pieces)
    if digest is not None and not _is_named(digest + ENDING, hashlib.sha256(content).hexdigest()):
        raise StoreUnavailable("the working directory's archive differs from what was sent; submit the run again")
    _extract(io.BytesIO(content), directory)


def fetch(place: str, directory: str, scratch: str) -> None:
    """Extract the archive at a path or URL whose last part is the archive's name.

    Args:
        scratch: An existing directory on the pod's own disk, for an archive that has to be downloaded first.

    Raises:
        StoreUnavailable: The archive cannot be read after several tries, does not exist, or does not match its name.
        MissingExtra: The URL needs a package that the image does not have.
    """
    if not is_url(place):
        _extract_checked(place.removeprefix("file://"), place, directory)
        return
    system, path = open_place(place, what="working directories")
    local = os.path.join(scratch, "archive")
    for left in reversed(range(TRIES)):
        try:
            translated(lambda: system.get_file(path, local), f"{place} cannot be read")
            break
        except FileNotFoundError as error:
            raise _gone(place) from error
        except StoreUnavailable:
            if not left:
                raise
            time.sleep(FIRST_PAUSE_S * 2 ** (TRIES - 1 - left))
    _extract_checked(local, place, directory)
    os.unlink(local)


def wait_for(path: str) -> int:
    """Wait until a file exists and return 0; return 1 if its unfinished copy does not grow for ten minutes."""
    since, seen = time.monotonic(), 0
    while not os.path.exists(path):
        size = _size(_unfinished(path))
        if size != seen:
            since, seen = time.monotonic(), size
        if time.monotonic() - since > AWAIT_S:
            print(f"{os.path.basename(path)} was not uploaded within {AWAIT_S:.0f} s", file=sys.stderr)
            return 1
        time.sleep(LOOK_EVERY_S)
    return 0


def receive(path: str, source: BinaryIO) -> int:
    """Write an archive from an input that begins with a line of JSON: ``size`` in bytes and ``keep``, other names.

    Archives beside it that ``keep`` does not name are removed. Returns the exit code: 1 if the archive could not be
    written, or if its content does not match its name.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    print(READY, flush=True)
    header = json.loads(source.readline())
    _keep_only({*header["keep"], os.path.basename(path)}, os.path.dirname(path))
    digest, left, problem = hashlib.sha256(), int(header["size"]), ""
    try:
        with open(_unfinished(path), "wb") as file:
            while left and (piece := source.read(min(PIECE_BYTES, left))):
                left -= len(piece)
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        problem = str(error)
        # The sender learns of the failure only after all of its data was read.
        while left and (piece := source.read(min(PIECE_BYTES, left))):
            left -= len(piece)
    if not problem and not _is_named(path, digest.hexdigest()):
        problem = "it arrived incomplete"
    if problem:
        if os.path.isfile(_unfinished(path)):
            os.unlink(_unfinished(path))
        print(f"{path} cannot be written: {problem}", file=sys.stderr)
        return 1
    os.replace(_unfinished(path), path)
    return 0


def _keep_only(names: Iterable[str], directory: str) -> None:
    for name in set(os.listdir(directory)) - set(names):
        if name.endswith(ENDING):
            os.unlink(os.path.join(directory, name))


def _extract_checked(path: str, place: str, directory: str) -> None:
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
            if not _is_named(place, digest.hexdigest()):
                raise StoreUnavailable(f"{place} differs from what was sent; remove it, and submit the run again")
            file.seek(0)
            _extract(file, directory)
    except FileNotFoundError as error:
        raise _gone(place) from error


def _extract(content: BinaryIO, directory: str) -> None:
    try:
        extract(content, directory)
    except InvalidArchive as error:
        raise StoreUnavailable(f"the working directory's archive cannot be unpacked: {error}") from error


def _gone(place: str) -> StoreUnavailable:
    return StoreUnavailable(f"{place} no longer exists; submit the run again")


def _is_named(path: str, digest: str) -> bool:
    lengths = (DIGEST_CHARACTERS, OLD_DIGEST_CHARACTERS)
    return os.path.basename(path) in [digest[:length] + ENDING for length in lengths]


def _unfinished(path: str) -> str:
    """Return the path at which this pod writes the archive; another pod may be writing the same one."""
    return f"{path}.{socket.gethostname()}.part"


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
