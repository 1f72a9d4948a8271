"""Fetches wheels of a lock, each of which has to have the hash that the lock says.

Logins are those of uv's variables for indexes, and of ~/.netrc; each goes to its own host alone.
"""

import hashlib
import netrc
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import urllib3

from fairlead.cluster.kubernetes.api.transport import proxy_of_environment
from fairlead.control.image.locks import LockedWheel
from fairlead.control.image.registry import CHUNK, CONNECT_S, READ_S, RETRIES
from fairlead.errors import ClusterError, NotAllowed, NotFound
from fairlead.runtime.paths import below

INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
TIMEOUT = urllib3.Timeout(connect=CONNECT_S, read=READ_S)
NO_LOGIN = "Give one in UV_INDEX_<NAME>_USERNAME and _PASSWORD or in ~/.netrc; then submit it again."


def fetch_wheel(wheel: LockedWheel, directory: Path, environ: Mapping[str, str]) -> Path:
    """Download a wheel into a directory, and verify its hash.

    Raises:
        NotAllowed: The index wants a login.
        NotFound: It is not there any more.
        ClusterError: It cannot be downloaded, or has another hash.
    """
    target = below(directory, wheel.filename)
    place = urlsplit(wheel.url)
    if place.scheme == "file":
        source = Path(unquote(place.path))
        try:
            shutil.copyfile(source, target)
        except FileNotFoundError:
            raise NotFound(f"The wheel {source} of the lock is not there; make it again, or lock again.") from None
    else:
        _download(wheel, target, environ)
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        target.unlink()
        raise ClusterError(
            f"A file of {wheel.name} has another hash than its lock, sha256:{digest}: the index or a proxy now serves "
            "another file than it did. Learn the reason, then lock again."
        )
    return target


def size_of(wheel: LockedWheel, environ: Mapping[str, str]) -> int:
    """Return the bytes of a wheel, also where its lock does not say; 0 if its index does not answer."""
    place = urlsplit(wheel.url)
    if wheel.size:
        return wheel.size
    if place.scheme == "file":
        path = Path(unquote(place.path))
        return path.stat().st_size if path.is_file() else 0
    try:
        with _pool(wheel.url) as pool:
            answer = pool.request(
                "HEAD", wheel.url, headers=_headers(wheel.url, environ), retries=RETRIES, timeout=TIMEOUT
            )
            return int(answer.headers.get("Content-Length") or 0) if answer.status == 200 else 0
    except (urllib3.exceptions.HTTPError, ValueError):
        return 0


def login_of(url: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return user and password for a URL, from the variables of uv or ~/.netrc; None without any."""
    host = _host(url)
    for name, index in _indexes(environ):
        own = urlsplit(index)
        if _host(index) != host:
            continue
        if own.username:
            return unquote(own.username), unquote(own.password or "")
        variable = re.sub(r"[^A-Z0-9]", "_", name.upper())
        user = environ.get(f"UV_INDEX_{variable}_USERNAME") if name else None
        if user is not None:
            return user, environ.get(f"UV_INDEX_{variable}_PASSWORD", "")
    path = environ.get("NETRC") or str(Path(environ.get("HOME", "~")).expanduser() / ".netrc")
    try:
        entry = netrc.netrc(path).authenticators(urlsplit(url).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return None if entry is None else (entry[0], entry[2] or "")


def _host(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _indexes(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield name and URL of each index of the variables of uv; the name is empty where there is none."""
    for variable in INDEXES:
        for word in re.split(r"[\s,]+", environ.get(variable, "")):
            match = re.match(r"([\w-]+)=(.*)", word)
            if word:
                yield (match[1], match[2]) if match is not None else ("", word)


def _headers(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    login = login_of(url, environ)
    return {} if login is None else urllib3.make_headers(basic_auth=":".join(login))


def _pool(url: str) -> urllib3.PoolManager:
    proxy = proxy_of_environment(url)
    return urllib3.PoolManager() if proxy is None else urllib3.ProxyManager(proxy)


def _download(wheel: LockedWheel, target: Path, environ: Mapping[str, str]) -> None:
    host, headers = urlsplit(wheel.url).netloc, _headers(wheel.url, environ)
    try:
        with _pool(wheel.url) as pool, target.open("wb") as file:
            answer = pool.request(
                "GET", wheel.url, headers=headers, retries=RETRIES, timeout=TIMEOUT, preload_content=False
            )
            if answer.status in (401, 403):
                raise NotAllowed(f"The index {host} refuses to answer without a valid login. {NO_LOGIN}")
            if answer.status == 404:
                raise NotFound(f"The file {wheel.url} of the lock is not there. Lock again, for the files of today.")
            if answer.status != 200:
                raise ClusterError(f"The index {host} answered {answer.status} for {wheel.filename}.")
            for chunk in answer.stream(CHUNK, decode_content=False):
                file.write(chunk)
    except urllib3.exceptions.HTTPError as error:
        reason = getattr(error, "reason", None) or error
        raise ClusterError(f"{wheel.filename} cannot be fetched from {host}: {reason}") from error
