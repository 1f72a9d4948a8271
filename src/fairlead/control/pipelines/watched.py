"""Detects changes of watched data: files and directories by content, objects of a store by their metadata."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from fairlead.control.pipelines.artefacts import content_digest
from fairlead.errors import RuntimeFault
from fairlead.runtime.places import is_url, open_place, translated
from fairlead.runtime.progress import Reporter

STATED = ("ETag", "etag", "md5Hash", "checksum", "mtime", "LastModified", "last_modified", "created")
"""Metadata of an object, across fsspec file systems, that change when it is rewritten."""


def content_of(paths: Iterable[Path]) -> str:
    """Return the hash of the content of files and directories, or of their absence."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update((content_digest(path) if path.exists() else "none").encode())
    return digest.hexdigest()


def signature_of(paths: Iterable[Path]) -> str:
    """Return the hash of names, sizes and modification times, which is fast."""
    digest = hashlib.sha256()
    for path in paths:
        for file in (path, *sorted(path.rglob("*"))) if path.is_dir() else (path,):
            try:
                status = os.stat(file)
            except FileNotFoundError:
                continue
            digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def listing_of(url: str) -> str:
    """Return the hash of an object store's metadata of the objects at a URL.

    Raises:
        RuntimeFault: The store cannot be reached, or needs a package that is not installed.
    """
    system, root = open_place(url, what="watched data")
    system.invalidate_cache()
    try:
        listing = translated(partial(system.find, root, detail=True), f"{url} cannot be listed")
    except FileNotFoundError:
        return "none"
    lines = sorted(
        f"{name}\0{entry.get('size')}\0{[str(entry[key]) for key in STATED if key in entry]}"
        for name, entry in listing.items()
    )
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest() if lines else "none"


def watch(
    data: tuple[str, ...],
    every_s: float,
    reporter: Reporter,
    *,
    and_look: Callable[[], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    looks: int | None = None,
) -> None:
    """Report the hash of the data's content each time it has changed and then been stable for one interval.

    Args:
        and_look: Another check to run at the same interval.
        looks: Number of checks; None for no limit.
    """
    urls = [place for place in data if is_url(place)]
    paths = [Path(place.removeprefix("file://")).expanduser() for place in data if not is_url(place)]
    before, latest, problem = "", "", ""
    while looks is None or looks > 0:
        try:
            if data:
                signature = " ".join((signature_of(paths), *map(listing_of, urls)))
                if signature == before and signature != latest:
                    # Read the content only when writing has stopped.
                    whole = hashlib.sha256(" ".join((content_of(paths), *map(listing_of, urls))).encode())
                    reporter.fact(seen=whole.hexdigest())
                    latest = signature
                before, problem = signature, ""
        except (OSError, RuntimeFault) as error:
            if str(error) != problem:
                problem = str(error)
                print(f"fairlead: the data cannot be looked at: {problem}", flush=True)
        if and_look is not None:
            and_look()
        looks = None if looks is None else looks - 1
        if looks != 0:
            sleep(every_s)
