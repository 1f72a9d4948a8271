"""``fairlead data``: data sets in stores, their versions, and what this machine has of them."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.commands.secrets import SecretName
from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.secret_store import SecretStore
from fairlead.control.data import known_versions, locate, remove_version, upload_directory
from fairlead.errors import InvalidArgument, NotFound
from fairlead.runtime.data.manifest import is_version
from fairlead.runtime.data.reader import Data, DataSet
from fairlead.runtime.data.sources import cache_limit
from fairlead.specs.data import DATASET, DataSource
from fairlead.specs.dataset import LATEST, Dataset, select
from fairlead.specs.training import DEFAULT_TEAM
from fairlead.text.quantities import describe_memory, plural

if TYPE_CHECKING:
    from fairlead.runtime.data.reader import Data

URL = click.argument("url", metavar="URL")
INCLUDE = click.option("--include", metavar="PATTERN", help="Shell pattern for names of objects; all when left out.")
CREDENTIALS = click.option(
    "--credentials", metavar="SECRET", type=SecretName(), help="Secret of this machine with the keys of the store."
)
PROFILE = click.option("--profile", metavar="PROFILE", help="Profile of the AWS tools.")
MOST_LISTED = 20


@click.group()
def data() -> None:
    """List, copy and cache data sets, which specs name by `data`.

    URL is a path, s3://, gs://, az://, hf:// or http(s)://, as in a spec, or NAME or NAME@VERSION of a Dataset that
    `fairlead apply` stored. Manifests, bundles and copies are in the directory `data` of the state directory, shared by
    all runs of this machine.
    """


@data.command()
@click.argument("url", metavar="[URL]", required=False)
@INCLUDE
@CREDENTIALS
@PROFILE
@json_option
@cluster_options
def ls(
    url: str | None, include: str | None, credentials: str | None, profile: str | None, json_: bool, target: Target
) -> None:
    """Show the version of the data at URL of today, and its first objects; without URL list the Datasets."""
    if url is None:
        _list(target.quietly().datasets(), json_=json_)
        return
    opened = _open(target, url, include, credentials, profile)
    entries = opened.entries()
    if json_:
        objects = [{"key": entry.key, "size": entry.size, "etag": entry.etag} for entry in entries]
        print(as_json({"url": url, "version": opened.version, "objects": objects}))
        return
    print(table([("OBJECT", "SIZE"), *((entry.key, describe_memory(entry.size)) for entry in entries[:MOST_LISTED])]))
    if len(entries) > MOST_LISTED:
        message(f"{len(entries) - MOST_LISTED} more; `--json` lists all.")
    size = describe_memory(sum(entry.size for entry in entries))
    message(f"Version {opened.version}: {plural(len(entries), 'object')}, {size}.")


@data.command()
@click.argument("name", required=False)
@json_option
@cluster_options
def versions(name: str | None, json_: bool, target: Target) -> None:
    """List the versions of the Dataset NAME, or those that were used on this machine and what it has of them."""
    if name is not None:
        _list_versions(_dataset(target.quietly(), name), json_=json_)
        return
    known = list(known_versions(Home.at().data))
    if json_:
        print(as_json([_version_row(version) for version in known]))
        return
    rows = [
        (
            version.version,
            "-" if version.num_objects is None else f"{version.num_objects:,}",
            "-" if version.num_bytes is None else describe_memory(version.num_bytes),
            describe_memory(version.cached_bytes) if version.cached_bytes else "-",
            "yes" if version.copied else "-",
            describe_time(version.at),
        )
        for version in known
    ]
    if not rows:
        message("No data was used on this machine yet.")
        return
    print(table([("VERSION", "OBJECTS", "SIZE", "CACHED", "COPIED", "LISTED"), *rows]))


@data.command()
@URL
@INCLUDE
@CREDENTIALS
@PROFILE
@json_option
@cluster_options
def warm(
    url: str, include: str | None, credentials: str | None, profile: str | None, json_: bool, target: Target
) -> None:
    """Fetch the data at URL into the cache of this machine, as far as it has room, before runs need it."""
    opened = _open(target, url, include, credentials, profile)
    size = opened.warm()
    whole = sum(entry.size for entry in opened.entries())
    sentence = f"{describe_memory(size)} of version {opened.version} are in the cache."
    if size < whole:
        sentence += (
            f" It has no room for the other {describe_memory(whole - size)}, which runs read from the store each time; "
            "`fairlead data rm VERSION` makes room, and FAIRLEAD_DATA_CACHE bounds it."
        )
    print(as_json({"version": opened.version, "cached_bytes": size}) if json_ else sentence)
    opened.close()


@data.command()
@URL
@click.argument("directory", type=click.Path(path_type=Path))
@INCLUDE
@CREDENTIALS
@PROFILE
@json_option
@cluster_options
def pull(
    url: str,
    directory: Path,
    include: str | None,
    credentials: str | None,
    profile: str | None,
    json_: bool,
    target: Target,
) -> None:
    """Copy the data at URL into DIRECTORY."""
    opened = _open(target, url, include, credentials, profile)
    count = opened.copy_to(directory)
    sentence = f"{plural(count, 'object')} of version {opened.version} copied to {directory}."
    print(as_json({"version": opened.version, "objects": count}) if json_ else sentence)
    opened.close()


@data.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@URL
@CREDENTIALS
@json_option
@cluster_options
def push(directory: Path, url: str, credentials: str | None, json_: bool, target: Target) -> None:
    """Upload the files of DIRECTORY to URL, and print the version that they are there.

    NAME@VERSION adds a version to a Dataset: the files go to the folder VERSION below its `from`.
    """
    reference = DATASET.fullmatch(url)
    if reference is not None and reference[2] is not None:
        _push_version(target.quietly(), directory, url, credentials, json_=json_)
        return
    count = upload_directory(directory, url, None if credentials is None else _secret(credentials))
    opened = _open(target, url, None, credentials, None)
    sentence = f"{plural(count, 'file')} uploaded; {url} has version {opened.version}."
    print(as_json({"version": opened.version, "files": count}) if json_ else sentence)
    opened.close()


@data.command()
@click.argument("version")
@json_option
@cluster_options
def rm(version: str, json_: bool, target: Target) -> None:
    """Remove what this machine has of VERSION: bundles, copy and manifest. The store keeps its objects.

    NAME removes a Dataset, and NAME@VERSION one of its versions; the store keeps the objects of these as well.
    """
    if not is_version(version):
        _remove_named(target.quietly(), version, json_=json_)
        return
    size = remove_version(Home.at().data, version)
    sentence = f"{describe_memory(size)} of version {version} removed."
    print(as_json({"version": version, "removed_bytes": size}) if json_ else sentence)


def _list(datasets: Sequence[Dataset], *, json_: bool) -> None:
    if json_:
        print(as_json([_dataset_row(dataset) for dataset in datasets]))
    elif datasets:
        rows = [
            (
                dataset.name, dataset.team, dataset.newest or "-", str(len(dataset.versions)), dataset.origin,
                ", ".join(dataset.share) or "-",
            )
            for dataset in datasets
        ]  # fmt: skip
        print(table([("NAME", "TEAM", "NEWEST", "VERSIONS", "FROM", "SHARED WITH"), *rows]))
    else:
        message("There is no Dataset; `fairlead apply FILE` stores those of FILE.")


def _list_versions(dataset: Dataset, *, json_: bool) -> None:
    if json_:
        print(as_json(_dataset_row(dataset)))
        return
    rows = [
        (f"{dataset.name}@{name}", version.version or "-", version.origin or dataset.origin)
        for name, version in dataset.versions.items()
    ]
    print(table([("VERSION", "HASH", "FROM"), *(rows or [(dataset.name, "-", dataset.origin)])]))


def _push_version(
    cluster: ClusterClient, directory: Path, reference: str, credentials: str | None, *, json_: bool
) -> None:
    """Upload a version of a Dataset, and record the hash that it has."""
    name, _, version = reference.partition("@")
    dataset = _dataset(cluster, name)
    if version == LATEST:
        raise InvalidArgument(f"{reference}: {LATEST} is the newest version by itself; give the new one a name.")
    known = dataset.versions.get(version)
    if known is not None and known.version is not None:
        raise InvalidArgument(
            f"{reference} is version {known.version} already, on which runs may have trained; give another name, or "
            f"remove it first with `fairlead data rm {reference}`."
        )
    place, keys = dataset.place_of(version), credentials or dataset.credentials
    secret = None if keys is None else _secret(keys)
    count = upload_directory(directory, place, secret)
    source = DataSet(
        url=place, mode="cache", include=dataset.include, credentials=secret, profile=dataset.profile,
        directory=Home.open().data,
    )  # fmt: skip
    opened = Data(source)
    pushed = dataset.pushed(version, opened.version)
    cluster.store_dataset(pushed, dataset)
    if dataset.preload and pushed.newest == version:
        opened.warm()
    sentence = f"{plural(count, 'file')} uploaded to {place}; {reference} is version {opened.version}."
    print(as_json({"dataset": reference, "version": opened.version, "files": count}) if json_ else sentence)
    opened.close()


def _remove_named(cluster: ClusterClient, reference: str, *, json_: bool) -> None:
    """Remove a Dataset, or one of its versions."""
    name, at, version = reference.partition("@")
    dataset = _dataset(cluster, name)
    if at and version not in dataset.versions:
        raise NotFound(f"The Dataset {name} has no version {version!r}; `fairlead data versions {name}` lists them.")
    if at:
        rest = {key: known for key, known in dataset.versions.items() if key != version}
        cluster.store_dataset(replace(dataset, versions=rest), dataset)
    else:
        cluster.remove_dataset(dataset)
    sentence = f"{reference} removed; its objects stay at {dataset.place_of(version) if at else dataset.origin}."
    print(as_json({"removed": reference}) if json_ else sentence)


def _dataset(cluster: ClusterClient, name: str) -> Dataset:
    """Return the Dataset of a name, alone or as TEAM/NAME.

    Raises:
        NotFound: There is none.
        InvalidArgument: Several teams share one of that name.
    """
    try:
        dataset = select(cluster.datasets(), name, _team(cluster))
    except ValueError as error:
        raise InvalidArgument(f"{name}: {error}.") from error
    if dataset is None:
        raise NotFound(f"There is no Dataset {name!r}, nor a version; `fairlead data ls` lists the Datasets.")
    return dataset


def _team(cluster: ClusterClient) -> str:
    return str(getattr(cluster, "namespace", DEFAULT_TEAM))


def _open(target: Target, url: str, include: str | None, credentials: str | None, profile: str | None) -> "Data":
    if credentials is not None and profile is not None:
        raise InvalidArgument("Keys are either in a secret or in a profile; leave --credentials or --profile out.")
    version = None
    if DATASET.fullmatch(url) is not None:
        cluster = target.quietly()
        source = DataSource(origin=url, include=include, credentials=credentials)
        source = locate(url, source, _team(cluster), Path.cwd(), lambda _: cluster.datasets())
        url, version, include, credentials = source.origin, source.version, source.include, source.credentials
        profile = profile or source.profile
    secret = None if credentials is None else _secret(credentials)
    return Data(
        DataSet(
            url=url,
            mode="cache",
            version=version,
            include=include,
            credentials=secret,
            profile=profile,
            directory=Home.open().data,
            limit=cache_limit(os.environ),
        )
    )


def _secret(name: str) -> str:
    """Return the directory of a secret of this machine."""
    return str(SecretStore(Home.open().secrets).path(name))


def _dataset_row(dataset: Dataset) -> dict[str, Any]:
    known = {
        name: {"version": version.version, "from": version.origin or dataset.origin}
        for name, version in dataset.versions.items()
    }
    return {
        "name": dataset.name,
        "team": dataset.team,
        "from": dataset.origin,
        "newest": dataset.newest,
        "versions": known,
        "share": list(dataset.share),
    }


def _version_row(version: Any) -> dict[str, Any]:
    return {
        "version": version.version,
        "objects": version.num_objects,
        "bytes": version.num_bytes,
        "cached_bytes": version.cached_bytes,
        "copied": version.copied,
        "listed_at": version.at,
    }
