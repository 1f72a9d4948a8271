"""Object stores through fsspec: S3 and everything else it has a file system for.

Credentials and endpoints come from where fsspec and the store's own library look for them (for S3
``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` and so on), never through Fairlead.
"""

from __future__ import annotations

import os
import shutil
from typing import TypeVar

from fairlead.runtime.errors import MissingExtra, Misuse, StoreUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

T = TypeVar("T")


def is_url(place: str) -> bool:
    """Return whether a place is an object store and no directory."""
    return "://" in place and not place.startswith("file://")


def open_place(place: str, *, what: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Args:
        what: Is to be there, in the plural, for messages.

    Raises:
        MissingExtra: fsspec, or its file system for this scheme, is not installed.
        Misuse: fsspec knows no such scheme.
    """
    scheme = place.split("://", 1)[0]
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtra(f'{what} at {scheme}:// need fsspec; pip install "fairlead[remote]"') from error
    try:
        system, root = url_to_fs(place)
    except ImportError as error:
        advice = 'pip install "fairlead[remote]"' if scheme in ("s3", "s3a") else str(error)
        raise MissingExtra(f"{what} at {scheme}:// need one more package; {advice}") from error
    except ValueError as error:
        raise Misuse(f"{what} cannot go to {place!r}: {error}") from error
    return system, root.rstrip("/")


def upload(system: Any, path: str | os.PathLike[str], goal: str) -> None:
    """Write a file of this machine to a path of a file system; its errors are not translated."""
    # Opening a file for writing needs no bucket listing or creation rights; put_file may want both.
    with open(path, "rb") as source, system.open(goal, "wb") as sink:
        shutil.copyfileobj(source, sink, 8 << 20)


def translated(call: Callable[[], T], what: str) -> T:
    """The answer of a store, whose foreign errors are told in ours; a file that is missing stays FileNotFoundError.

    Raises:
        StoreUnavailable: It cannot be reached, or refuses.
    """
    try:
        return call()
    except FileNotFoundError:
        raise
    except Exception as error:  # each library behind fsspec has its own tree of errors
        raise StoreUnavailable(f"{what}: {str(error).strip() or type(error).__name__}") from error
