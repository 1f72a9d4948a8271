"""Stores of data by URL: directories, HTTP servers, S3, and every other store that fsspec has a file system for.

See decision 211.
"""

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from fairlead.runtime.data.credentials import StoreKeys
from fairlead.runtime.data.http_client import HttpConnection, Response, parts_of_url
from fairlead.runtime.data.manifest import MOST_ENTRIES, Entry
from fairlead.runtime.data.s3 import S3Store
from fairlead.runtime.errors import DataChanged, Misuse, StoreUnavailable
from fairlead.runtime.paths import below
from fairlead.runtime.places import open_place, translated

T = TypeVar("T")
MOST_FILES = 100_000
MOST_REDIRECTS = 5


class DataStore(Protocol):
    """A store of objects that are only read; ``get`` is for any thread.

    Attributes:
        url: As it was given, for messages.
    """

    url: str

    def entries(self) -> list[Entry]:
        """Return the objects, in any order.

        Raises:
            Misuse: The URL names nothing that can be data.
            StoreUnavailable: The store cannot be reached, or refuses.
        """
        ...

    def get(self, entry: Entry, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` of an object.

        Raises:
            DataChanged: It is no longer the object of the manifest.
            StoreUnavailable: The store cannot be reached, or refuses.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...


def open_data(url: str, *, credentials: str | None = None, profile: str | None = None) -> DataStore:
    """Return the store of a URL or a path.

    Args:
        credentials: Directory of a secret with the keys of the store; None for a profile or the environment.
        profile: Profile of the AWS tools; None for the defaults of the environment.

    Raises:
        MissingExtra: A package for this scheme is not installed.
        Misuse: The scheme is not known, the URL is not complete, or the secret has no keys of such a store.
    """
    if "://" not in url or url.startswith("file://"):
        return FolderStore(url)
    keys = None if credentials is None else StoreKeys(credentials)
    if url.startswith(("s3://", "s3a://")):
        return S3Store(f"s3://{url.partition('://')[2]}", profile, keys)
    if url.startswith(("http://", "https://")):
        return HttpStore(url)
    return LibraryStore(url, keys)


class FolderStore:
    """Files below a directory, or a single file."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.root = Path(unquote(url.removeprefix("file://")) if url.startswith("file://") else url).expanduser()

    def entries(self) -> list[Entry]:
        try:
            status = self.root.stat()
            if stat.S_ISREG(status.st_mode):
                self.root, name = self.root.parent, self.root.name
                return [Entry(name, status.st_size, _mark(status))]
            return list(self._walk(str(self.root), ""))
        except FileNotFoundError as error:
            raise Misuse(f"data: there is no directory {self.root}; correct the path, or mount it first") from error
        except OSError as error:
            raise StoreUnavailable(f"data: {self.root} cannot be read: {error.strerror}") from error

    def has_more_than(self, count: int) -> bool:
        """Return whether there are more files, after at most so many were looked at."""
        try:
            return self.root.is_dir() and sum(1 for _ in islice(self._walk(str(self.root), ""), count + 1)) > count
        except OSError:  # which `entries` explains
            return False

    def get(self, entry: Entry, start: int, stop: int) -> bytes:
        try:
            descriptor = os.open(below(self.root, entry.key), os.O_RDONLY)
        except FileNotFoundError as error:
            raise DataChanged(self.url, entry.key, "was removed") from error
        except OSError as error:
            raise StoreUnavailable(f"data: {entry.key} of {self.url} cannot be read: {error.strerror}") from error
        try:
            data = os.pread(descriptor, stop - start, start)
            while len(data) < stop - start and (
                more := os.pread(descriptor, stop - start - len(data), start + len(data))
            ):
                data += more
            # Compared after the bytes were read, so that a change in between is noticed too.
            if _mark(os.fstat(descriptor)) != entry.etag or len(data) != stop - start:
                raise DataChanged(self.url, entry.key, "was changed")
            return data
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Do nothing, since no file is held open."""

    def _walk(self, directory: str, prefix: str) -> Iterator[Entry]:
        with os.scandir(directory) as listed:
            for item in listed:
                if item.name.startswith("."):
                    continue
                if item.is_dir():
                    yield from self._walk(item.path, f"{prefix}{item.name}/")
                elif item.is_file():
                    status = item.stat()
                    yield Entry(f"{prefix}{item.name}", status.st_size, _mark(status))


def _mark(status: os.stat_result) -> str:
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


class HttpStore:
    """Files of an HTTP server, by a URL that may name several: ``https://host/train-{000..099}.tar``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._local = threading.local()
        self._connections: list[HttpConnection] = []
        try:
            self._places = {url.rpartition("/")[2]: parts_of_url(url) for url in expand(url)}
        except ValueError as error:
            raise Misuse(f"data: {error}") from error
        if "" in self._places:
            raise Misuse(
                f"data: {url} is a directory, which an HTTP server does not list; name its files, such as "
                "https://host/train-{000..099}.tar"
            )

    def entries(self) -> list[Entry]:
        return [self._entry(name) for name in self._places]

    def _entry(self, name: str) -> Entry:
        response = self._request("HEAD", name, "")
        for _ in range(MOST_REDIRECTS):
            if response.status not in (301, 302, 303, 307, 308):
                break
            target = response.headers.get("location", "")
            scheme, host, port, _ = self._places[name]
            try:
                self._places[name] = (scheme, host, port, target) if target.startswith("/") else parts_of_url(target)
            except ValueError as error:
                raise StoreUnavailable(f"data: {self.url} leads to {ascii(target)[:100]}") from error
            response = self._request("HEAD", name, "")
        if response.status == 404:
            raise Misuse(f"data: there is no {name} at {self.url}; correct the URL")
        if response.status != 200:
            raise StoreUnavailable(f"data: {self.url} answers {response.status} for {name}")
        size = response.headers.get("content-length", "")
        etag, changed = response.headers.get("etag", ""), response.headers.get("last-modified", "")
        if not re.fullmatch(r"\d{1,18}", size):
            raise Misuse(f"data: {self.url} does not say how long {name} is; copy it to a directory or a store")
        if etag.startswith('"') and re.fullmatch(r"[\x20-\x7e]{2,300}", etag):
            return Entry(name, int(size), etag)
        if re.fullmatch(r"[\x20-\x7e]{1,100}", changed):
            return Entry(name, int(size), changed)
        raise Misuse(f"data: {self.url} has neither an ETag nor a date for {name}, so changes would not be noticed")

    def get(self, entry: Entry, start: int, stop: int) -> bytes:
        if stop <= start:
            return b""
        response = self._request("GET", entry.key, self._range(entry, start, stop))
        if response.status in (404, 410, 412, 416):
            raise DataChanged(self.url, entry.key, "was changed or removed")
        body = response.body
        if response.status == 200:  # a server without ranges
            if len(body) != entry.size:
                raise DataChanged(self.url, entry.key, "was changed")
            body = body[start:stop]
        elif response.status != 206:
            raise StoreUnavailable(f"data: {self.url} answers {response.status} for {entry.key}")
        if not _is_of(response, entry) or len(body) != stop - start:  # servers may ignore the condition
            raise DataChanged(self.url, entry.key, "was changed")
        return body

    def address(self, entry: Entry) -> tuple[str, str, int]:
        """Return the server of a file."""
        return self._places[entry.key][:3]

    def get_request(self, entry: Entry, start: int, stop: int, authority: str) -> tuple[str, str]:
        """Return the target and the header lines of the request for a range of a file."""
        return self._places[entry.key][3], self._range(entry, start, stop)

    def is_usable(self, response: Response, entry: Entry, start: int, stop: int) -> bool:
        """Return whether an answer to ``get_request`` has the bytes of the manifest's file."""
        return response.status == 206 and _is_of(response, entry)

    def _range(self, entry: Entry, start: int, stop: int) -> str:
        condition = "If-Match" if entry.etag.startswith('"') else "If-Unmodified-Since"
        return f"{condition}: {entry.etag}\r\nRange: bytes={start}-{stop - 1}\r\n"

    def close(self) -> None:
        """Close the connections of all threads; one that is in use is closed by its thread."""
        self._local = threading.local()
        while self._connections:
            self._connections.pop().close()

    def _request(self, method: str, name: str, headers: str) -> Response:
        scheme, host, port, target = self._places[name]
        local = self._local
        held: dict[tuple[str, str, int], HttpConnection] = local.__dict__.setdefault("held", {})
        connection = held.get((scheme, host, port))
        if connection is None:
            connection = held[scheme, host, port] = HttpConnection(scheme, host, port)
            self._connections.append(connection)
        try:
            return connection.request(method, target, headers)
        finally:
            if local is not self._local:  # closed meanwhile
                connection.close()


def _is_of(response: Response, entry: Entry) -> bool:
    """Return whether an answer is of the file of the manifest, as far as the server says."""
    return response.headers.get("etag" if entry.etag.startswith('"') else "last-modified", entry.etag) == entry.etag


def expand(url: str) -> list[str]:
    """Return the URLs that ``{000..099}`` and ``{a,b}`` stand for.

    Raises:
        ValueError: There would be more than 100,000.
    """
    parts = re.split(r"\{([^{}]*)\}", url)
    choices: list[list[str]] = []
    count = 1
    for place, part in enumerate(parts):
        if place % 2 == 0:
            choices.append([part])
            continue
        span = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", part)
        if span is None:
            words = part.split(",")
        else:
            first, last = int(span[1]), int(span[2])
            if last - first >= MOST_FILES:
                raise ValueError(f"{url!r} names more than {MOST_FILES} files")
            words = [str(number).zfill(len(span[1])) for number in range(first, last + 1)]
        count *= len(words)
        if count > MOST_FILES:
            raise ValueError(f"{url!r} names more than {MOST_FILES} files")
        choices.append(words)
    return ["".join(words) for words in product(*choices)]


class LibraryStore:
    """Objects of a store that fsspec has a file system for: Google Cloud Storage, Azure, the Hugging Face Hub.

    Its reads take no condition, so the object's metadata is compared after each read.
    """

    def __init__(self, url: str, keys: StoreKeys | None = None) -> None:
        self.url = url
        self._keys = keys
        scheme = urlsplit(url).scheme
        if scheme not in PACKAGES:
            known = ", ".join(f"{name}://" for name in ("s3", "http", "https", "file", *PACKAGES))
            raise Misuse(f"data: {url} has an unknown scheme; give a path, or one of {known}")
        options = {} if keys is None else keys.options(scheme)
        self._system, self._root = open_place(url, what="data", options=options)

    def entries(self) -> list[Entry]:
        listed = self._answer(lambda: self._system.find(self._root, detail=True))
        if len(listed) > MOST_ENTRIES:
            raise Misuse(f"data: {self.url} has more than {MOST_ENTRIES} objects; join small files into tar files")
        if set(listed) == {self._root}:
            only = listed[self._root]
            self._root, _, name = self._root.rpartition("/")
            return [Entry(name, int(only["size"]), _tag(only))]
        skip = len(self._root) + 1
        return [Entry(path[skip:], int(info["size"]), _tag(info)) for path, info in listed.items()]

    def get(self, entry: Entry, start: int, stop: int) -> bytes:
        path = f"{self._root}/{entry.key}"
        try:
            data: bytes = self._answer(lambda: self._system.cat_file(path, start, stop))
            self._system.invalidate_cache()
            info = self._answer(lambda: self._system.info(path))
        except FileNotFoundError as error:
            raise DataChanged(self.url, entry.key, "was removed") from error
        if _tag(info) != entry.etag or len(data) != stop - start:
            raise DataChanged(self.url, entry.key, "was changed")
        return data

    def close(self) -> None:
        """Do nothing, since the library shares its connections."""

    def _answer(self, call: Callable[[], T]) -> T:
        """Return the store's answer to a call; an error of the library has no value of the secret."""
        if self._keys is None:
            return translated(call, f"data: {self.url}")
        try:
            return translated(call, f"data: {self.url}")
        except StoreUnavailable as error:
            # Without its cause, which a traceback would print.
            raise StoreUnavailable(self._keys.scrub(str(error))) from None


PACKAGES = {"gs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub", "memory": "fsspec"}
"""Packages that fsspec needs, by scheme."""
_TAGS = ("etag", "ETag", "generation", "md5Hash", "content_md5", "blob_id", "sha", "mtime", "last_modified", "created")


def _tag(info: dict[str, Any]) -> str:
    for name in _TAGS:
        if info.get(name) is not None:
            return str(info[name]).strip('"')
    raise Misuse("data: this store has no ETag of its objects, so changes would not be noticed")
