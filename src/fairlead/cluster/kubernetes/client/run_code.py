"""The code of a run on Kubernetes for later inspection: the uploaded files, and their git commit."""

import base64
import gzip
import hashlib
import io
import json
import os
import zlib
from pathlib import Path
from typing import Any

from fairlead.cluster.kept_code import KeptCode, KeptFile
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.client.environment_locks import read_lock
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.revision_files import SPECS
from fairlead.cluster.kubernetes.manifests.workdir import (
    MOST_FILE_BYTES,
    REVISION,
    WORKDIR,
    archive_place,
    files,
    part_names,
)
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.revisions import MOST_DIFF_BYTES, read_revision
from fairlead.errors import NotFound
from fairlead.runtime.extraction import InvalidArchive, read_files
from fairlead.untrusted_json import parse_object

MOST_ANNOTATION_BYTES = 256 << 10
MOST_PACKED_DIFF = 32 * 1024  # the annotations of an object may have 256 KiB in total


def revision_of(directory: Path) -> dict[str, str]:
    """Return the annotation with a directory's git commit and changes; empty if it is not in a git repository."""
    revision = read_revision(directory)
    if revision is None:
        return {}
    packed = base64.b64encode(gzip.compress(revision.diff, mtime=0)).decode() if revision.diff else None
    if packed is not None and len(packed) > MOST_PACKED_DIFF:
        packed = None
    return {REVISION: json.dumps({**revision.as_data(), "diff": packed})}


def read_code(client: Client, kind: str, namespace: str, name: str, uid: str) -> KeptCode:
    """Return the kept code of a run, or the reason why the user may not read it.

    Raises:
        NotFound: The run no longer exists.
    """
    workload = client.get(objects_path(kind, namespace, name))
    if workload["metadata"].get("uid") != uid:
        raise NotFound(f"The run {name} is not there any more.")
    annotations = workload["metadata"].get("annotations") or {}
    revision = _revision(annotations.get(REVISION))
    diff = revision.pop("diff", None) if revision is not None else None
    environment = {"image": (workload.get("spec") or {}).get("image")}
    lock = read_lock(client, workload)
    try:
        contents = _contents(client, namespace, str(annotations.get(WORKDIR) or ""))
    except _Unreadable as error:
        return KeptCode(why=str(error), git=revision, diff=diff, environment=environment, lock=lock)
    kept_files = tuple(
        KeptFile(path=path, size=len(content), digest=_digest(content), executable=executable)
        for path, (content, executable) in sorted(contents.items())
    )
    return KeptCode(
        files=kept_files,
        git=revision,
        diff=diff,
        environment=environment,
        lock=lock,
        read=lambda path: contents[path][0] if path in contents else None,
    )


def edited_files(code: KeptCode, directory: Path) -> tuple[str, ...] | None:
    """Return the paths of files that differ between a directory and the kept code, without specs.

    None if the kept code cannot be read.
    """
    if code.files is None:
        return None
    submitted = {(file.path, file.digest, file.executable) for file in code.files}
    current = {
        (path.relative_to(directory).as_posix(), _digest(path.read_bytes()), os.access(path, os.X_OK))
        for path in files(directory)
    }
    return tuple(sorted({path for path, *_ in submitted ^ current if not path.endswith(SPECS)}))


class _Unreadable(Exception):
    """The files of a run cannot be shown; its text says why."""


def _contents(client: Client, namespace: str, annotation: str) -> dict[str, tuple[bytes, bool]]:
    """Return the files of an archive in ConfigMaps: content, and whether it is executable."""
    archive_url = archive_place(annotation)
    if archive_url is not None:
        raise _Unreadable(f"its files lie at {archive_url}, where its checkpoints are; fetch and unpack that archive")
    if not part_names(annotation):
        raise _Unreadable("no files went along with it: its image or its volumes have the program")
    packed = b""
    for part in part_names(annotation):
        try:
            configmap = client.get(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{segment(part)}")
        except ApiError as error:
            if error.status == 404:
                raise _Unreadable(f"its files are not in the ConfigMap {part} any more") from error
            if error.status == 403:
                raise _Unreadable(
                    f"your account may not read the ConfigMap {part}, which has its files; ask for the role "
                    f"fairlead-viewer in the namespace {namespace}"
                ) from error
            raise
        data = configmap.get("binaryData") or {}
        packed += b"".join(base64.b64decode(data[key]) for key in sorted(data))
    digest = annotation.partition("-")[0]
    if not hashlib.sha256(packed).hexdigest().startswith(digest):
        raise _Unreadable("its archive differs from what was sent")
    try:
        return read_files(io.BytesIO(packed), most_bytes=MOST_FILE_BYTES)
    except InvalidArchive as error:
        raise _Unreadable(f"its archive is damaged: {error}") from error


def _revision(text: str | None) -> dict[str, Any] | None:
    """Parse the annotation; None if there is none, or if it was not written by Fairlead."""
    try:
        record = parse_object(text or "", max_bytes=MOST_ANNOTATION_BYTES)
        diff = record["diff"]
        unpacked = None if diff is None else _unzipped(base64.b64decode(diff)).decode(errors="replace")
        return {**{name: record[name] for name in ("commit", "branch", "dirty")}, "diff": unpacked}
    except (ValueError, KeyError, TypeError, OSError, EOFError, RecursionError, zlib.error):
        return None


def _unzipped(packed: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        return file.read(MOST_DIFF_BYTES)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=20).hexdigest()
