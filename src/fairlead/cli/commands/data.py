"""``fairlead data``: data sets in stores, their versions, and what this machine has of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.commands.secrets import SecretName
from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.secret_store import SecretStore
from fairlead.control.data import known_versions, remove_version, upload_directory
from fairlead.errors import InvalidArgument
from fairlead.runtime.data.reader import Data, DataSet
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

    URL is a path, s3://, gs://, az://, hf:// or http(s)://, as in a spec. Manifests, bundles and copies are in the
    directory `data` of the state directory, shared by all runs of this machine.
    """


@data.command()
@URL
@INCLUDE
@CREDENTIALS
@PROFILE
@json_option
def ls(url: str, include: str | None, credentials: str | None, profile: str | None, json_: bool) -> None:
    """Show the version of the data at URL of today, and its first objects."""
    opened = _open(url, include, credentials, profile)
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
@json_option
def versions(json_: bool) -> None:
    """List the versions that were used on this machine, and what it has of them."""
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
def warm(url: str, include: str | None, credentials: str | None, profile: str | None, json_: bool) -> None:
    """Fetch the data at URL into the cache of this machine, as far as it has room, before runs need it."""
    opened = _open(url, include, credentials, profile)
    size = opened.warm()
    sentence = f"{describe_memory(size)} of version {opened.version} are in the cache."
    print(as_json({"version": opened.version, "cached_bytes": size}) if json_ else sentence)
    opened.close()


@data.command()
@URL
@click.argument("directory", type=click.Path(path_type=Path))
@INCLUDE
@CREDENTIALS
@PROFILE
@json_option
def pull(
    url: str, directory: Path, include: str | None, credentials: str | None, profile: str | None, json_: bool
) -> None:
    """Copy the data at URL into DIRECTORY."""
    opened = _open(url, include, credentials, profile)
    count = opened.copy_to(directory)
    sentence = f"{plural(count, 'object')} of version {opened.version} copied to {directory}."
    print(as_json({"version": opened.version, "objects": count}) if json_ else sentence)
    opened.close()


@data.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@URL
@CREDENTIALS
@json_option
def push(directory: Path, url: str, credentials: str | None, json_: bool) -> None:
    """Upload the files of DIRECTORY to URL, and print the version that they are there."""
    count = upload_directory(directory, url, None if credentials is None else _secret(credentials))
    opened = _open(url, None, credentials, None)
    sentence = f"{plural(count, 'file')} uploaded; {url} has version {opened.version}."
    print(as_json({"version": opened.version, "files": count}) if json_ else sentence)
    opened.close()


@data.command()
@click.argument("version")
@json_option
def rm(version: str, json_: bool) -> None:
    """Remove what this machine has of VERSION: bundles, copy and manifest. The store keeps its objects."""
    size = remove_version(Home.at().data, version)
    sentence = f"{describe_memory(size)} of version {version} removed."
    print(as_json({"version": version, "removed_bytes": size}) if json_ else sentence)


def _open(url: str, include: str | None, credentials: str | None, profile: str | None) -> "Data":
    if credentials is not None and profile is not None:
        raise InvalidArgument("Keys are either in a secret or in a profile; leave --credentials or --profile out.")
    secret = None if credentials is None else _secret(credentials)
    source = DataSet(
        url=url, mode="cache", include=include, credentials=secret, profile=profile, directory=Home.open().data
    )
    return Data(source)


def _secret(name: str) -> str:
    """Return the directory of a secret of this machine."""
    return str(SecretStore(Home.open().secrets).path(name))


def _version_row(version: Any) -> dict[str, Any]:
    return {
        "version": version.version,
        "objects": version.num_objects,
        "bytes": version.num_bytes,
        "cached_bytes": version.cached_bytes,
        "copied": version.copied,
        "listed_at": version.at,
    }
