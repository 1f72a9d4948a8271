"""Accesses object stores through fsspec: S3 and every other store that it has a file system for.

Credentials and endpoints come from the usual sources of fsspec and the store's own library (for S3
``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` and so on), never through Fairlead.
"""

from __future__ import annotations

import os
import shutil
from typing import TypeVar

from fairlead.runtime.errors import MissingExtra, Misuse, StoreUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

T = TypeVar("T")


def is_url(place: str) -> bool:
    """Return whether a place is an object store rather than a directory."""
    return "://" in place and not place.startswith("file://")


def open_place(place: str, *, what: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Args:
        what: The kind of data stored there, in the plural, for messages.
        options: Arguments of the file system, such as keys; they are in no message.

    Raises:
        MissingExtra: fsspec, or its file system for this scheme, is not installed.
        Misuse: fsspec does not support the scheme.
    """
    scheme = place.split("://", 1)[0]
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtra(f'{what} at {scheme}:// need fsspec; pip install "fairlead[remote]"') from error
    try:
        system, root = url_to_fs(place, **(options or {}))
    except ImportError as error:
        advice = 'pip install "fairlead[remote]"' if scheme in ("s3", "s3a") else str(error)
        raise MissingExtra(f"{what} at {scheme}:// need one more package; {advice}") from error
    except ValueError as error:
        raise Misuse(f"{what} cannot go to {place!r}: {error}") from error
    return system, root.rstrip("/")


def upload(system: Any, path: str | os.PathLike[str], goal: str) -> None:
    """Upload a local file to a path of a file system; errors of the file system are not translated."""
    # Opening a file for writing needs no permission to list or create buckets; put_file may need both.
    with open(path, "rb") as source, system.open(goal, "wb") as sink:
        shutil.copyfileobj(source, sink, 8 << 20)


def translated(call: Callable[[], T], what: str) -> T:
    """Return the result of a store's call, with its errors translated; FileNotFoundError is not translated.

    Raises:
        StoreUnavailable: The store cannot be reached or refuses the request.
    """
    try:
        return call()
    except FileNotFoundError:
        raise
    except Exception as error:  # each library behind fsspec has its own tree of errors
        raise StoreUnavailable(f"{what}: {str(error).strip() or type(error).__name__}") from error
