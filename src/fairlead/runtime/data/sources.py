"""Reads which data sets a run has from ``FAIRLEAD_DATA``, or from the arguments of a program under plain Python."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.runtime.data.peers import PeerNodes
from fairlead.runtime.data.reader import Data, DataSet
from fairlead.runtime.errors import Misuse

LIMIT = "FAIRLEAD_DATA_CACHE"
_SIZE = re.compile(r"(\d{1,15})(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS = {None: 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}  # fmt: skip
_MODES = ("mount", "copy", "cache", "stream")


def names_in(environ: Mapping[str, str], *, mode: str | None = None) -> list[str]:
    """Return the names of the data sets that the spec of the run has, of one mode or of all."""
    return [name for name, fields in _described(environ).items() if mode in (None, fields["mode"])]


def data_of(
    environ: Mapping[str, str],
    name: str,
    url: str | None = None,
    *,
    mode: str | None = None,
    include: str | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Data:
    """Return a data set by its name in the spec, which takes precedence over the arguments.

    Raises:
        Misuse: The spec has no such data and no URL is given, or an argument is none of those allowed.
    """
    described = _described(environ)
    fields = described.get(name)
    if fields is None and url is None:
        known = f"the spec has {', '.join(described)}" if described else "the spec has no `data`"
        raise Misuse(
            f"run.data({name!r}): {known}; add `data: {{{name}: URL}}` to it, or give run.data({name!r}, URL) for "
            "plain python"
        )
    if fields is None:
        assert url is not None
        is_file = "://" not in url or url.startswith("file://")
        if mode is not None and mode not in _MODES:
            raise Misuse(f"run.data(mode={mode!r}): give one of {', '.join(_MODES)}")
        if mode == "mount" and not is_file:
            raise Misuse(f"run.data(mode='mount'): {url} is in a store, which is not mounted; give another mode")
        fields = {"from": url, "mode": mode or ("mount" if is_file else "cache"), "include": include}
    source = DataSet(
        url=fields["from"],
        mode=fields["mode"],
        version=fields.get("version"),
        include=fields.get("include"),
        credentials=fields.get("credentials"),
        profile=fields.get("profile"),
        dataset=fields.get("dataset"),
        directory=directory(environ),
        limit=cache_limit(environ),
        nodes=PeerNodes.of(environ),
    )
    return Data(source, rank=rank, world_size=world_size)


def directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of manifests and bundles of this machine, which is in the state directory."""
    own = environ.get("FAIRLEAD_DATA_DIR")
    if own:
        return Path(own)
    home = environ.get("FAIRLEAD_HOME")
    if home:
        return Path(home, "data")
    root = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(root, "fairlead", "data")


def cache_limit(environ: Mapping[str, str]) -> int | None:
    """Return the most bytes of bundles in the cache of this machine; None for half of the free disk.

    Raises:
        Misuse: The variable holds no size.
    """
    text = environ.get(LIMIT)
    if not text:
        return None
    size = _SIZE.fullmatch(text)
    if size is None:
        raise Misuse(f"{LIMIT} is {text!r}; give a size, such as 200Gi")
    return int(size[1]) * _UNITS[size[2]]


def _described(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        described: dict[str, Any] = json.loads(environ.get("FAIRLEAD_DATA") or "{}")
    except ValueError as error:
        raise Misuse("FAIRLEAD_DATA is not JSON; it is set by Fairlead alone") from error
    return described
