"""Admits the data of a run: refuses what cannot be read, and records the version that there is.

See decision 209.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.local.dataset_files import stored_datasets
from fairlead.errors import Conflict, InvalidSpec, NotFound, RuntimeFault
from fairlead.frozen import dataclass
from fairlead.runtime.data.cache import BundleCache, read_usage
from fairlead.runtime.data.credentials import StoreKeys
from fairlead.runtime.data.manifest import DataManifest, Entry, is_version, load, make, save
from fairlead.runtime.data.stores import FolderStore, open_data
from fairlead.runtime.errors import MissingExtra, Misuse, StoreUnavailable
from fairlead.runtime.paths import below
from fairlead.runtime.places import open_place, translated, upload
from fairlead.specs.data import DATASET, VOLUME, DataMode, DataSource
from fairlead.specs.dataset import LATEST, Dataset, select
from fairlead.specs.training import Training
from fairlead.text.lists import listed

MOUNT_FILES = 50_000
"""Files of a mounted directory that are listed for a version; a larger one has none, unless its spec gives it."""

UPLOADS = 16
MOST_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedData:
    """The data of a run with its versions, and a sentence about each."""

    data: dict[str, DataSource]
    notes: tuple[str, ...]


def admit_data(
    spec: Training,
    base: Path,
    *,
    in_pods: bool,
    directory: Path,
    secrets: Path,
    datasets: Callable[[str], Sequence[Dataset]] = lambda team: (),
) -> AdmittedData:
    """Return the data of a run with absolute paths and versions.

    Args:
        base: Directory that relative paths start from.
        in_pods: Whether ranks run in pods, which do not see files of this machine.
        directory: Directory of manifests of this machine.
        secrets: Directory of its secrets.
        datasets: Returns the data sets that a team may use.

    Raises:
        Conflict: This cluster cannot give ranks the data.
        InvalidSpec: There is no such data, or not of the version that the spec gives.
    """
    admitted: dict[str, DataSource] = {}
    notes: list[str] = []
    for name, source in spec.data.items():
        where = f"{spec.name}: data.{name}"
        source = locate(where, source, spec.team, base, datasets)
        own, note = _admit(where, source, name, base, in_pods, directory, secrets)
        admitted[name] = own
        notes.append(f"data.{name}: {note}")
    return AdmittedData(data=admitted, notes=tuple(notes))


def locate(
    where: str, source: DataSource, team: str, base: Path, datasets: Callable[[str], Sequence[Dataset]]
) -> DataSource:
    """Return where the data of a Dataset is, if ``from`` names one; a path or a URL as it is.

    Args:
        where: Place of the source, for messages.
        team: Team that wants to read it.
        base: Directory that relative paths start from.
        datasets: Returns the data sets that a team may use.

    Raises:
        InvalidSpec: There is no such Dataset or version, or the source has keys that contradict it.
    """
    reference = DATASET.fullmatch(source.origin)
    if reference is None:
        return source
    name, version = reference.groups()
    path = source.origin
    is_path = (base / path).exists()
    known = datasets(team)
    try:
        dataset = select(known, name, team)
        if dataset is None:
            if (version is None or is_path) and source.credentials is None:
                return source
            names = sorted(dataset.name if dataset.team == team else str(dataset) for dataset in known)
            raise ValueError(f"there is no Dataset {name} of team {team} or shared with it; {_choices(names)}")
        if is_path and version is None:
            raise ValueError(
                f"{source.origin} is a directory here and a Dataset too; give ./{source.origin}, or "
                f"{source.origin}@{LATEST}"
            )
        known_source = dataset.source(version)
        for key in ("include", "profile", "version"):
            value, fixed = getattr(source, key), getattr(known_source, key)
            if value is not None and value != fixed and (key != "version" or fixed is not None):
                raise ValueError(f"`{key}` is the Dataset's own, {fixed or 'and it has none'}; leave it out")
        return replace(
            known_source,
            mode=source.mode,
            at=source.at,
            write=source.write,
            rate=source.rate,
            version=known_source.version or source.version,
            credentials=source.credentials or known_source.credentials,
        )
    except KeyError as error:
        assert dataset is not None
        versions = _choices(sorted(dataset.versions)) if dataset.versions else f"give {name} alone, as it has none"
        raise InvalidSpec((f"{where}: the Dataset {name} has no version {version}; {versions}.",)) from error
    except ValueError as error:
        raise InvalidSpec((f"{where}: {error}.",)) from error


def version_of(text: str, team: str, base: Path, state: Path) -> str | None:
    """Return the version that data has now; None for a path that is no Dataset.

    Args:
        text: URL, or NAME or NAME@VERSION of a Dataset of this machine.
        team: Team that reads it.
        base: Directory that relative paths start from.
        state: State directory, with Datasets, secrets and manifests.

    Raises:
        InvalidSpec: It cannot be read, or is not of the version that the Dataset has.
    """

    def datasets(team: str) -> tuple[Dataset, ...]:
        return tuple(dataset for dataset in stored_datasets(below(state, "datasets")) if dataset.is_for(team))

    source = locate(text, DataSource(origin=text), team, base, datasets)
    if source.dataset is None and "://" not in text:
        return None
    admitted, note = _admit(text, source, "input", base, False, below(state, "data"), below(state, "secrets"))
    if admitted.version is None:
        raise InvalidSpec((f"{text}: {note}.",))
    return admitted.version


def _choices(names: Sequence[str]) -> str:
    if not names:
        return "there is none; `fairlead apply FILE` stores one"
    return f"there are {listed(names, MOST_NAMED)}"


def _admit(
    where: str, source: DataSource, name: str, base: Path, in_pods: bool, directory: Path, secrets: Path
) -> tuple[DataSource, str]:
    if source.scheme == VOLUME and not in_pods:
        raise Conflict(
            f"{where}: {source.origin} is a claim of Kubernetes, and the local cluster has none. Give a path of this "
            "machine, or name a cluster with `--context`."
        )
    if source.scheme == VOLUME:
        return source, f"the claim {source.claim} at {source.mount_path(name)}; its version is not recorded"
    if source.scheme == "file" and in_pods:
        if not source.origin.startswith("file:///"):
            raise Conflict(
                f"{where}: {source.origin} is a path of this machine, which pods do not have. Put the files into a "
                "store (s3://, gs://, az://) or on a claim (pvc://CLAIM/PATH); a path in the image is file:///PATH."
            )
        return source, f"{source.origin.removeprefix('file://')} of the image; its version is not recorded"
    if source.scheme == "file":
        path = Path(source.origin.removeprefix("file://")).expanduser()
        source = replace(source, origin=os.path.normpath(base / path))
    if source.credentials is not None and in_pods:
        secret = f"the Secret {source.credentials} of their namespace"
        return source, f"pods record its version, since {secret} is not read here"
    try:
        manifest = _listed(source, directory, secrets, is_bounded=source.way is DataMode.MOUNT)
    except StoreUnavailable as error:
        if in_pods and source.version is None:
            return source, f"pods record its version, since it cannot be listed from here ({_clause(error)})"
        raise InvalidSpec((f"{where}: {_clause(error)}.",)) from error
    except MissingExtra as error:
        if in_pods:
            return source, f"pods record its version, since it cannot be listed from here ({_clause(error)})"
        raise InvalidSpec((f"{where}: {_clause(error)}.",)) from error
    except RuntimeFault as error:
        raise InvalidSpec((f"{where}: {_clause(error)}.",)) from error
    if manifest is None:
        return source, f"more than {MOUNT_FILES} files, so its version is not recorded; `mode: cache` records it"
    if source.version is not None and source.version != manifest.version:
        raise InvalidSpec(
            (
                f"{where}: {source.origin} has version {manifest.version} now, and not {source.version}, which was "
                "asked for. Put the objects back, or leave `version` out to train on those of today.",
            )
        )
    objects = "1 object" if len(manifest.entries) == 1 else f"{len(manifest.entries):,} objects"
    return replace(source, version=manifest.version), (
        f"version {manifest.version}, {objects}, {manifest.num_bytes / 1e9:.3g} GB"
    )


def _listed(source: DataSource, directory: Path, secrets: Path, *, is_bounded: bool) -> DataManifest | None:
    """Return the manifest of today; None if there are too many files to look at.

    Raises:
        RuntimeFault: The data cannot be listed.
    """
    credentials = None if source.credentials is None else str(below(secrets, source.credentials))
    store = open_data(source.origin, credentials=credentials, profile=source.profile)
    try:
        if is_bounded and isinstance(store, FolderStore) and store.has_more_than(MOUNT_FILES):
            return None
        manifest = make(store.entries(), source.include, source.origin)
    finally:
        store.close()
    with contextlib.suppress(OSError):  # ranks list it again
        save(manifest, below(directory, "manifests", f"{manifest.version}.json"))
    return manifest


def _clause(error: RuntimeFault) -> str:
    return str(error).removeprefix("data: ")


def upload_directory(directory: Path, url: str, credentials: str | None = None) -> int:
    """Upload the files of a directory to a store; return their number.

    Args:
        credentials: Directory of a secret with the keys of the store; None for those of the environment.

    Raises:
        Misuse: The directory is empty, or the URL is that of a store that is only read.
        StoreUnavailable: The store cannot be reached, or refuses.
    """
    if "://" not in url or url.startswith(("http://", "https://", "file://")):
        raise Misuse(f"data: {url} is no store to upload to; give s3://, gs:// or az://, or copy files by other tools")
    manifest = make(FolderStore(str(directory)).entries(), None, str(directory))
    options = None if credentials is None else StoreKeys(credentials).options(url.partition("://")[0])
    system, root = open_place(url, what="data", options=options)

    def send(entry: Entry) -> None:
        translated(lambda: upload(system, below(directory, entry.key), f"{root}/{entry.key}"), f"data: {url}")

    with ThreadPoolExecutor(UPLOADS) as threads:
        for _ in threads.map(send, manifest.entries):
            pass
    return len(manifest.entries)


def remove_version(directory: Path, version: str) -> int:
    """Remove the bundles, the copy and the manifest of a version; return the bytes of its files.

    Raises:
        NotFound: There is nothing of that version.
    """
    places = (("bundles", version), ("trees", version), ("manifests", f"{version}.json"), ("trees", f"{version}.done"))
    present = [path for path in (below(directory, *names) for names in places) if path.exists()]
    if not is_version(version) or not present:
        raise NotFound(f"There is nothing of a version {version!r}; `fairlead data versions` lists those there are.")
    size = 0
    for path in reversed(present):  # the mark of a whole copy goes first
        if path.is_dir():
            size += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            shutil.rmtree(path)
        else:
            path.unlink()
    BundleCache(directory / "bundles", version).forget()
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVersion:
    """A version of data of which this machine has something.

    Attributes:
        num_objects: Objects in its manifest; None if there is none.
        num_bytes: Bytes in its manifest; None if there is none.
        cached_bytes: Bytes of its bundles here.
        copied: Whether a whole copy is here.
        at: When it was last listed, in Unix time.
    """

    version: str
    num_objects: int | None
    num_bytes: int | None
    cached_bytes: int
    copied: bool
    at: float


def known_versions(directory: Path) -> Iterator[KnownVersion]:
    """Yield the versions of which a data directory has a manifest, bundles or a copy, the newest first."""
    usage = read_usage(directory / "bundles")
    names = {path.stem: path for path in (directory / "manifests").glob("*.json")}
    times = {name: path.stat().st_mtime for name, path in names.items()}
    copies = {path.stem for path in (directory / "trees").glob("*.done")}
    for version in sorted({*names, *usage, *copies}, key=lambda name: -times.get(name, 0.0)):
        manifest = load(names[version]) if version in names else None
        yield KnownVersion(
            version=version,
            num_objects=None if manifest is None else len(manifest.entries),
            num_bytes=None if manifest is None else manifest.num_bytes,
            cached_bytes=usage[version]["bytes"] if version in usage else 0,
            copied=version in copies,
            at=times.get(version, time.time()),
        )
