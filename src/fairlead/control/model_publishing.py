"""Publishes a version of a model as signed chunks, which any web server or object store hands to edge sites."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.errors import Conflict, InvalidSpec, NotFound
from fairlead.frozen import dataclass
from fairlead.runtime.serving.published_model import CHUNK_BYTES, DOMAIN, FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVersion:
    """A published version.

    Attributes:
        index: The file that endpoints name.
        signer: The public key of its signature.
        size: Bytes of its files.
        written: Bytes of chunks that were not there before.
    """

    index: Path
    signer: str
    size: int
    written: int


def publish(
    content: Path,
    label: str,
    goal: Path,
    key: Path,
    *,
    architectures: Sequence[str] = (),
    chunk_bytes: int = CHUNK_BYTES,
) -> PublishedVersion:
    """Write the chunks of a model's files, its index and the signature; chunks that are there already stay.

    Args:
        content: A file, or a directory with all files.
        label: NAME-VERSION.
        key: Private Ed25519 key in OpenSSH's form.
        architectures: CPU kinds that the model was made for; empty for any.

    Raises:
        NotFound: There is no such key.
        InvalidSpec: The key is of another kind, or has a passphrase.
        Conflict: Another model was published under that label.
    """
    private, signer = _read_key(key)
    files, written, total = {}, 0, 0
    names = [content] if content.is_file() else sorted(path for path in content.rglob("*") if path.is_file())
    if not names:
        raise Conflict(f"{content} has no files to publish.")
    for path in names:
        name = path.name if path == content else path.relative_to(content).as_posix()
        whole, chunks = hashlib.sha256(), []
        with open(path, "rb") as file:
            while data := file.read(chunk_bytes):
                whole.update(data)
                chunks.append(hashlib.sha256(data).hexdigest())
                written += _store(goal / "chunks", chunks[-1], data)
        size = path.stat().st_size
        total += size
        files[name] = {"size": size, "sha256": whole.hexdigest(), "chunks": chunks}
    body: dict[str, Any] = {
        "format": FORMAT, "label": label, "architectures": list(architectures), "chunk_bytes": chunk_bytes,
        "files": files,
    }  # fmt: skip
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    index = goal / f"{label}.json"
    if index.exists() and index.read_bytes() != text:
        raise Conflict(f"{index} is another model already. Push the new one, which gets a number of its own.")
    _replace(goal / f"{label}.sig", base64.b64encode(private.sign(DOMAIN + text)))
    _replace(index, text)
    return PublishedVersion(index=index, signer=signer, size=total, written=written)


def _store(chunks: Path, digest: str, data: bytes) -> int:
    path = chunks / digest[:2] / digest
    if path.exists() and path.stat().st_size == len(data):
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, data)
    return len(data)


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    draft.replace(path)


def _read_key(path: Path) -> tuple[Any, str]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise Conflict("Models are signed by cryptography; `pip install 'fairlead[edge]'` brings it.") from error
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NotFound(
            f"{path} cannot be read: {error.strerror}. `ssh-keygen -t ed25519 -N '' -f {path}` makes a key."
        ) from error
    try:
        private = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError) as error:
        hint = " Give the private key, without `.pub`." if path.suffix == ".pub" else ""
        raise InvalidSpec((f"--key {path}: it is no private key of OpenSSH without a passphrase.{hint}",)) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise InvalidSpec((f"--key {path}: it is no Ed25519 key; `ssh-keygen -t ed25519 -N '' -f {path}` makes one.",))
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return private, private.public_key().public_bytes(*form).decode()
