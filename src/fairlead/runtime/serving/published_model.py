"""Fetches a published model: what is here already stays, a broken transfer continues, and nothing unsigned is used.

``NAME-VERSION.json`` describes the files by chunks of a fixed size and their SHA-256; ``NAME-VERSION.sig`` has its
Ed25519 signature, and ``chunks/`` beside them has the chunks by hash. Complete versions stay in a cache, and a chunk
that one of them has is copied from it. As a program, ``python -m fairlead.runtime.serving.published_model`` prints
the directory.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import http.client
import os
import platform
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Tuple

from fairlead.errors import RuntimeFault
from fairlead.runtime.errors import MissingExtra, Misuse, StoreUnavailable
from fairlead.runtime.paths import UnsafeName, below, parts_of
from fairlead.untrusted_json import parse_object

FORMAT = 1
CHUNK_BYTES = 4 << 20
DOMAIN = b"fairlead model 1\n"
"""Precedes what is signed, so that no signature of other content serves for a model."""
INDEX_MOST_BYTES = 64 << 20
VERSIONS_KEPT = 3
TIMEOUT_S = 20.0
# Waits between tries of one request that makes no progress; then the replica fails, and continues at its next start.
WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class PublishedFile:
    """A file of a model: its bytes, its hash, and the hashes of its chunks in order."""

    size: int
    sha256: str
    chunks: Tuple[str, ...]


@dataclass(frozen=True)
class PublishedIndex:
    """The content of a version, which its signature covers.

    Attributes:
        label: NAME-VERSION, as in the name of the file.
        architectures: CPU kinds that it was made for, such as ``arm64``; empty for any.
        files: By path with ``/`` between its parts.
    """

    label: str
    architectures: Tuple[str, ...]
    chunk_bytes: int
    files: Dict[str, PublishedFile]


def architecture() -> str:
    """Return the CPU kind of this machine, by the name that images use."""
    return ARCHITECTURES.get(platform.machine().lower(), platform.machine().lower())


def fetched(source: str, signer: str, cache: Path) -> Path:
    """Return the directory with all files of a published model, checked.

    Args:
        source: URL or path of its ``NAME-VERSION.json``.
        signer: Public key, as OpenSSH writes it.
        cache: Directory of this machine's versions, shared by all replicas.

    Raises:
        RuntimeFault: It cannot be fetched, its signature is not that of the key, or it is for another CPU kind.
    """
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(cache):
            return _fetched(source, signer, cache)
    except (OSError, UnsafeName, ValueError, http.client.HTTPException) as error:
        raise StoreUnavailable(f"the model {source} cannot be fetched: {error}") from error


def signed_index(source: str, signer: str) -> PublishedIndex:
    """Return the index of a published model, whose signature and name are right; none of its files are fetched.

    Raises:
        RuntimeFault: It cannot be read, or is not signed by the key.
    """
    try:
        return _checked(source, signer, *_signed(source))
    except (OSError, UnsafeName, ValueError, http.client.HTTPException) as error:
        raise StoreUnavailable(f"the model {source} cannot be read: {error}") from error


def _signed(source: str) -> Tuple[bytes, bytes]:
    """Return an index and its signature, unchecked."""
    if not source.endswith(".json"):
        raise ValueError("give the URL of the NAME-VERSION.json that `fairlead model publish` made")
    return _read(source, INDEX_MOST_BYTES), _read(f"{source[: -len('.json')]}.sig", 1024)


def _checked(source: str, signer: str, content: bytes, signature: bytes) -> PublishedIndex:
    check_signature(content, signature, signer)
    index = read_index(content)
    if index.label != source.rpartition("/")[2][: -len(".json")]:
        raise ValueError(f"it is the signed index of {index.label}; each version is at its own name")
    return index


def _fetched(source: str, signer: str, cache: Path) -> Path:
    pointer = cache / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.source"
    try:
        content, signature = _signed(source)
    except OSError:
        # Without a link a machine continues with what it has of this very version.
        if not pointer.exists():
            raise
        place = below(cache, pointer.read_text().strip())
        content, signature = (place / "index.json").read_bytes(), (place / "index.sig").read_bytes()
    index = _checked(source, signer, content, signature)
    if index.architectures and architecture() not in index.architectures:
        raise ValueError(f"it is for {', '.join(index.architectures)}, and this CPU is {architecture()}")
    name = f"{index.label}-{hashlib.sha256(content).hexdigest()[:16]}"
    place = cache / name
    if not _is_complete(place / "files", index):
        _assemble(source, index, cache, place, content, signature)
    os.utime(place)
    pointer.write_text(name)
    _forget_old(cache, name)
    return place / "files"


def check_signature(content: bytes, signature: bytes, signer: str) -> None:
    """Check the signature of an index.

    Raises:
        Misuse: It is not that of the key.
        MissingExtra: ``cryptography`` is not installed.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise MissingExtra("signatures of models are checked by cryptography; pip install 'fairlead[edge]'") from error
    try:
        key = base64.b64decode(signer.split()[1], validate=True)[-32:]
        Ed25519PublicKey.from_public_bytes(key).verify(base64.b64decode(signature, validate=True), DOMAIN + content)
    except (InvalidSignature, ValueError, IndexError) as error:
        raise Misuse("its signature is not that of the key `signed_by`, so nothing of it is loaded") from error


def read_index(content: bytes) -> PublishedIndex:
    """Read a signed index.

    Raises:
        ValueError: It has another format.
        UnsafeName: It names a file outside of the model.
    """
    body = parse_object(content, max_bytes=INDEX_MOST_BYTES)
    if body.get("format") != FORMAT:
        raise ValueError(f"its index has format {body.get('format')!r}, and this version of Fairlead reads {FORMAT}")
    try:
        chunk_bytes = int(body["chunk_bytes"])
        files = {"/".join(parts_of(name)): _file(fields, chunk_bytes) for name, fields in body["files"].items()}
        own = tuple(str(name) for name in body["architectures"])
        return PublishedIndex(label=str(body["label"]), architectures=own, chunk_bytes=chunk_bytes, files=files)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("its index cannot be read") from error


def _file(fields: Dict[str, Any], chunk_bytes: int) -> PublishedFile:
    chunks = tuple(str(digest) for digest in fields["chunks"])
    size = int(fields["size"])
    if not 1 << 10 <= chunk_bytes <= 1 << 30 or len(chunks) != -(-size // chunk_bytes):
        raise ValueError("its index has chunks that do not make up its files")
    if any(len(digest) != 64 or not digest.isalnum() for digest in chunks):
        raise ValueError("its index has a chunk without a SHA-256")
    return PublishedFile(size=size, sha256=str(fields["sha256"]), chunks=chunks)


def _is_complete(files: Path, index: PublishedIndex) -> bool:
    """Return whether all files are there with the content that was signed."""
    for name, facts in index.files.items():
        path = below(files, name)
        if not path.is_file() or path.stat().st_size != facts.size or _sha256(path) != facts.sha256:
            return False
    return files.is_dir()


def _assemble(source: str, index: PublishedIndex, cache: Path, place: Path, content: bytes, signature: bytes) -> None:
    """Make a complete version in a directory of its own, and name it as one step."""
    shutil.rmtree(place, ignore_errors=True)
    partial = cache / f"{place.name}.partial"
    known = _known_chunks(cache)
    root = source.rpartition("/")[0]
    for name, facts in index.files.items():
        path = below(partial / "files", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(facts.size)
            for number, digest in enumerate(facts.chunks):
                at = number * index.chunk_bytes
                size = min(index.chunk_bytes, facts.size - at)
                file.seek(at)
                if hashlib.sha256(file.read(size)).hexdigest() == digest:
                    continue
                data = _local(known.get(digest, []), size, digest) or _transfer(root, digest, size, partial)
                file.seek(at)
                file.write(data)
                known.setdefault(digest, []).append((path, at))
                file.flush()
            os.fsync(file.fileno())
    if not _is_complete(partial / "files", index):
        raise ValueError("its files are not those that were signed")
    shutil.rmtree(partial / "chunks", ignore_errors=True)
    (partial / "index.json").write_bytes(content)
    (partial / "index.sig").write_bytes(signature)
    partial.rename(place)


def _known_chunks(cache: Path) -> Dict[str, List[Tuple[Path, int]]]:
    """Return where complete versions have chunks, by hash."""
    known: Dict[str, List[Tuple[Path, int]]] = {}
    for path in cache.glob("*/index.json"):
        with contextlib.suppress(OSError, ValueError):
            index = read_index(path.read_bytes())
            for name, facts in index.files.items():
                for number, digest in enumerate(facts.chunks):
                    spot = (below(path.parent / "files", name), number * index.chunk_bytes)
                    known.setdefault(digest, []).append(spot)
    return known


def _local(spots: List[Tuple[Path, int]], size: int, digest: str) -> bytes | None:
    """Return a chunk from a file of this machine; None if no file has it any more."""
    for path, at in spots:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(at)
            data = file.read(size)
            if hashlib.sha256(data).hexdigest() == digest:
                return data
    return None


def _transfer(root: str, digest: str, size: int, partial: Path) -> bytes:
    """Return a chunk from its source; what has arrived of it before is not requested again."""
    path = partial / "chunks" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    url = f"{root}/chunks/{digest[:2]}/{digest}"
    waits = iter(WAITS_S)
    while True:
        had = path.stat().st_size if path.exists() else 0
        try:
            if had < size:
                _append(url, path, had, size)
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == digest:
                path.unlink()
                return data
            path.unlink()
            raise OSError(f"{url} has another content than was signed")
        except (OSError, http.client.HTTPException) as error:
            now_has = path.stat().st_size if path.exists() else 0
            if now_has > had:
                waits = iter(WAITS_S)
            wait_s = next(waits, None)
            if wait_s is None or isinstance(error, FileNotFoundError):
                raise OSError(f"{error}; {now_has} of {size} bytes of a chunk have arrived, and stay") from error
            time.sleep(wait_s)


def _append(url: str, path: Path, had: int, size: int) -> None:
    """Append the rest of a chunk to a file, as far as it arrives."""
    if "://" not in url:
        shutil.copyfile(url, path)
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={had}-{size - 1}"} if had else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            # A server that knows no ranges sends all of it.
            with open(path, "ab" if had and response.status == 206 else "wb") as file:
                left = size - (had if had and response.status == 206 else 0)
                while left > 0 and (data := response.read(min(left, 1 << 16))):
                    file.write(data)
                    left -= len(data)
            if left:
                raise OSError("the connection was closed early")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            raise FileNotFoundError(f"{url} is not there") from error
        raise


def _read(place: str, most: int) -> bytes:
    """Return the content of a URL or a file."""
    if "://" not in place:
        with open(place, "rb") as file:
            data = file.read(most + 1)
    elif not place.startswith(("https://", "http://")):
        raise ValueError("published models are at https:// or http://, or on a path")
    else:
        with urllib.request.urlopen(place, timeout=TIMEOUT_S) as response:
            data = response.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{place} has more than {most} bytes")
    return data


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _forget_old(cache: Path, current: str) -> None:
    """Remove all but the newest versions; a replica that loaded an older one has it in memory."""
    places = sorted(cache.glob("*/index.json"), key=lambda path: path.parent.stat().st_mtime, reverse=True)
    for path in places[VERSIONS_KEPT:]:
        if path.parent.name != current:
            shutil.rmtree(path.parent, ignore_errors=True)


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Hold the cache's lock, so that replicas that start together transfer a model once."""
    with open(cache / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def model_of(env: Mapping[str, str]) -> str:
    """Return the path of a replica's published model, by the variables of its environment."""
    cache = Path(env.get("FAIRLEAD_MODEL_CACHE") or Path(env.get("FAIRLEAD_RUN_DIR", "."), "models"))
    return str(fetched(env["FAIRLEAD_MODEL"], env["FAIRLEAD_MODEL_SIGNER"], cache))


if __name__ == "__main__":
    try:
        print(model_of(os.environ))
    except RuntimeFault as error:
        sys.exit(f"fairlead: {error}")
