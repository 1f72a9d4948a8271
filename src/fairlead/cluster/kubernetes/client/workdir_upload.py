"""Uploads a user's directory with a run, in ConfigMaps that the run owns or through a store of the team.

A given ``workdir`` is uploaded. Without one the image has the program; a run that names no image either uploads the
directory of its file, because its program can be nowhere else.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.client.pending_uploads import STORED, Uploads, nobody
from fairlead.cluster.kubernetes.client.run_code import revision_of
from fairlead.cluster.kubernetes.client.workdir_stores import ArchiveStore, Submit, store_of
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests import workdir
from fairlead.cluster.kubernetes.manifests.revision_files import CODE, RevisionFiles
from fairlead.cluster.kubernetes.manifests.workdir import (
    WORKDIR,
    Archive,
    WorkdirTree,
    measure,
    pack,
    packed_large,
    part_names,
    render_parts,
    stored_digest,
)
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.workloads.run_record import AnyObject
from fairlead.cluster.preflight import packed_problem
from fairlead.cluster.project_files import Withheld, no_project, walk, withheld_sentence
from fairlead.errors import ClusterError, Conflict, InvalidSpec, NotAllowed
from fairlead.frozen import dataclass
from fairlead.policy.kinds.table import runs_of
from fairlead.specs.training import Training
from fairlead.specs.workload import Kind, Spec, renamed
from fairlead.state.snapshot import AnyWorkload
from fairlead.text.quantities import describe_memory, plural

HERE = "."
MOST_STORED_BYTES = 8 * 1024**3  # of files before packing; every pod unpacks them onto its node's disk
KEEPER = "fairlead-upload"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkdirUpload:
    """The chosen directory and files.

    Attributes:
        spec: The spec with ``workdir`` as it is stored, which is the same for every user.
        directory: Directory whose files are uploaded; None for none.
        sentence: Description of the upload, for users.
        note: The same for a plan; None if no directory was requested.
    """

    spec: Training
    directory: Path | None = None
    sentence: str | None = None
    note: str | None = None


def choose(spec: Training, directory: Path) -> WorkdirUpload:
    """Choose the files to upload with a spec whose file is in ``directory``.

    Raises:
        InvalidSpec: The directory does not exist, or lacks a program that only it can have.
        Conflict: The directory is too large, or ``snapshot: false`` was requested.
    """
    if spec.workdir is None and (spec.image is not None or spec.kind == Kind.WORKSPACE):
        return WorkdirUpload(spec=spec)
    place = Path(directory.absolute(), Path(spec.workdir or HERE).expanduser())
    if not place.is_dir():
        if spec.workdir is not None and Path(spec.workdir).is_absolute() and spec.image is not None:
            return WorkdirUpload(
                spec=spec, note=f"{spec.workdir} does not exist here, so it is taken as a directory of the image"
            )
        raise InvalidSpec(
            (
                f"{spec.name}: workdir: there is no directory {place}. Correct `workdir`; an absolute path that is not "
                "here means a directory of the image, and then `image` has to be given.",
            )
        )
    if (objection := no_project(place)) is not None:
        raise Conflict(f"{spec.name}: workdir: its files would go to this cluster, but {objection}.")
    problem, is_certain = packed_problem(spec, place, _names(place)) or (None, False)
    if problem is not None and is_certain:
        raise InvalidSpec((f"{spec.name}: run: {problem}.",))
    lack = "" if problem is None else f"; {problem}, so the image must contain it"
    if not spec.snapshot:
        raise Conflict(
            f"{spec.name}: snapshot: false was asked for, but the files of {place} go to this cluster as they are at "
            "submission, and no pod sees later ones. Leave `snapshot` out; or have the files on a volume or in the "
            "image, and leave `workdir` out."
        )
    archive = pack(place)
    if archive is not None:
        num_files, size = archive.num_files, f"{describe_memory(len(archive.content))} when packed"
    else:
        what = measure(place)
        store = _store_for(spec, place, what)
        num_files, size = what.num_files, f"{describe_memory(what.num_bytes)}, by way of {store.description}"
    summary = f"{plural(num_files, 'file')} of {place.resolve()}"
    secrets = withheld_sentence([entry.path for entry in walk(place) if isinstance(entry, Withheld)])
    without = "" if secrets is None else f"; {secrets}"
    return WorkdirUpload(
        spec=replace(spec, workdir=spec.workdir or HERE),
        directory=place,
        sentence=f"Taking along {summary}, {size}{without}.",
        note=f"{summary}, {size}, are taken along{lack}{without}",
    )


def _names(directory: Path) -> frozenset[str]:
    """Return the files to upload, as paths below the directory."""
    return frozenset(path.relative_to(directory).as_posix() for path in workdir.files(directory))


def send(client: Client, spec: Spec, directory: Path, submit: Submit) -> AnyWorkload:
    """Upload the files, submit the workload, and make it their owner; children of a parent use the parent's files.

    If this process is killed before the run exists, files without an owner remain, which a later run cleans up, but
    never a run that waits for files forever.
    """
    archive, uploads = pack(directory), Uploads(client, spec.team)
    with _explained(spec.team):
        uploads.collect(time.time())
        if archive is None:
            return _send_large(client, spec, directory, submit, uploads)
        uploads.begin(archive.annotation, time.time())
        _put(client, spec.team, archive, None)
    workload = submit(spec, {WORKDIR: archive.annotation, **revision_of(directory)})
    with _explained(spec.team):
        # Apply all parts again: the end of another run may have removed them in the meantime.
        _put(client, spec.team, archive, workload)
        uploads.end(archive.annotation)
    return workload


def let_go(client: Client, endpoint: AnyObject, needed: RevisionFiles) -> bool:
    """Remove an endpoint's ownership of unneeded files; the garbage collector removes those without another owner.

    Returns False if the endpoint has changed in the meantime.

    If this process is killed between the two writes, the files remain until the endpoint is deleted.
    """
    if needed == endpoint.files or endpoint.workload is None:
        return True
    path = objects_path(endpoint.kind, endpoint.namespace, endpoint.name)
    metadata = {"uid": endpoint.uid, "resourceVersion": str(endpoint.version), "annotations": {CODE: needed.listed()}}
    try:
        client.merge(path, {"metadata": metadata})
    except ApiError as error:
        if error.status in (404, 409):
            return False
        raise
    gone = {sent.workdir for sent in endpoint.files.sent} - {sent.workdir for sent in needed.sent}
    for name in (name for annotation in gone for name in part_names(annotation)):
        owned: dict[str, object] = {"name": name, "ownerReferences": [nobody()]}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": owned}
        maps = f"/api/v1/namespaces/{segment(endpoint.namespace)}/configmaps"
        client.apply(f"{maps}/{segment(name)}", body, manager=_manager(endpoint.workload))
    return True


def is_same(annotation: str, directory: Path) -> bool:
    """Return whether a run with this annotation has the same files as the directory has now."""
    stored = stored_digest(annotation)
    if stored is None:
        archive = pack(directory)
        return archive is not None and archive.annotation == annotation
    with packed_large(directory) as large:
        return large.digest == stored


def _send_large(client: Client, spec: Spec, directory: Path, submit: Submit, uploads: Uploads) -> AnyWorkload:
    """Upload through a store, so that only the archive's name passes through the API."""
    run = next(run for run in runs_of(spec) if run.workdir is not None)
    store = _store_for(renamed(run, spec.name, spec.team), directory, measure(directory))
    with packed_large(directory) as archive:
        folder = uploads.begin(f"{archive.digest}{STORED}", time.time())
        place = store.keep(archive, folder, uploads.stored(), client, submit)
        workload = submit(spec, {WORKDIR: archive.annotation(place), **revision_of(directory)})
        uploads.end(f"{archive.digest}{STORED}")
    return workload


def _store_for(spec: Training, directory: Path, what: WorkdirTree) -> ArchiveStore:
    """Choose the store for files that are too large for the API.

    Raises:
        Conflict: There is no such store, or they are too large for it as well.
    """
    name, num_bytes = what.largest
    description = (
        f"workdir: {directory} is {describe_memory(what.num_bytes)} in {plural(what.num_files, 'file')}, the largest "
    )
    description += f"{name} with {describe_memory(num_bytes)}"
    if what.num_bytes > MOST_STORED_BYTES:
        raise Conflict(
            f"{description}; at most {describe_memory(MOST_STORED_BYTES)} go along. "
            "Add what the run does not need to .gitignore, "
            "and have its data on a volume or in a store."
        )
    store = store_of(spec)
    if store is None:
        raise Conflict(
            f"{description}; at most {describe_memory(workdir.MOST_BYTES)} when packed go through the API. Up to "
            f"{describe_memory(MOST_STORED_BYTES)} go where the checkpoints do: give `checkpoint.to`, a URL such as "
            "s3://bucket/runs or a directory on a volume of `kubernetes`. Or add what the run does not need to "
            ".gitignore, or build it into the image."
        )
    return store


def _put(client: Client, namespace: str, archive: Archive, workload: AnyWorkload | None) -> None:
    """Apply each part, each owner with a separate field manager, so that runs that share files keep their ownership."""
    manager = KEEPER if workload is None else _manager(workload)
    for name, body in zip(part_names(archive.annotation), render_parts(archive, namespace, workload), strict=True):
        path = f"/api/v1/namespaces/{segment(namespace)}/configmaps/{segment(name)}"
        client.apply(path, body, manager=manager)


def _manager(workload: AnyWorkload) -> str:
    """Return the field manager by which a workload owns files."""
    return f"fairlead-run-{workload.uid[:13]}"


@contextmanager
def _explained(namespace: str) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status == 403:
            raise NotAllowed(
                f"Your account may not keep files in the namespace {namespace!r}, so the working directory cannot "
                f"be taken along: {error.server_message}. Ask for the role fairlead-user there, or build the files "
                "into the image and leave `workdir` out."
            ) from error
        if error.status == 404:
            raise ClusterError(
                f"There is no namespace {namespace!r}. Create it, apply a Team of that name, or choose another "
                "with `--namespace`."
            ) from error
        raise
