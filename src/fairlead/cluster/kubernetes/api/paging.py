"""Lists objects in pages of bounded size: few large objects in one, or many small ones.

A tenant stores objects of 1.5 MB, of which a page of 500 would fill the operator's memory. So a response is read up to
a number of bytes; a longer one is broken off, and asked for again with fewer objects. Of an object that is too long by
itself only its metadata is asked for: it is set apart, and the others are listed all the same.

See decision 246.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from fairlead.cluster.kubernetes.api.shallow import marked
from fairlead.errors import ClusterError

Object = dict[str, Any]

PAGE = 500  # the page size of kubectl and client-go
MOST_PAGE_BYTES = 4 << 20
"""Bytes of a page. Python takes up to twenty times as much for JSON of many empty lists."""
MOST_OBJECT_BYTES = MOST_PAGE_BYTES
"""Bytes of an object. An API server stores 1.5 MiB, which escapes and names of fields make longer."""
JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
MOST_METADATA_BYTES = 16 << 20
_AIM = 0.75  # of the bytes of a page, as objects differ
_SHRINK = 4
_EVENT = re.compile(rb'\s*\{\s*"type":\s*"([A-Z]+)",\s*"object":\s*\{')
_WORDS = re.compile(rb'"(apiVersion|kind)":\s*"([^"\\]{1,300})"')


class TooLong(ClusterError):
    """A response is longer than is read."""


class PageSource(Protocol):
    """Sends the requests of pages."""

    def page(self, path: str, query: Mapping[str, str], *, most_bytes: int, accept: str) -> tuple[Object, int]:
        """Return a page and its length in bytes.

        Raises:
            TooLong: It is longer than ``most_bytes``.
        """
        ...


def read_pages(source: PageSource, path: str, query: Mapping[str, str], size: int = PAGE) -> Iterator[Object]:
    """Yield the pages of a list, each with its ``items`` and ``metadata``.

    Of an object that is too long its metadata is in the page, marked as of an object that cannot be read.

    Args:
        size: Most objects of a page.

    Raises:
        ApiError: For example 410 if the list took so long that its resource version has expired.
    """
    limit, onward = size, dict(query)
    while True:
        try:
            page_query = {"limit": str(limit), **onward}
            page, num_bytes = source.page(path, page_query, most_bytes=MOST_PAGE_BYTES, accept=JSON)
        except TooLong:
            if limit > 1:
                limit = max(1, limit // _SHRINK)
                continue
            page, _ = source.page(path, page_query, most_bytes=MOST_METADATA_BYTES, accept=METADATA)
            page["items"] = [marked(content, too_long()) for content in page.get("items") or ()]
        else:
            num_bytes_each = max(1, num_bytes) / max(1, len(page.get("items") or ()))
            limit = max(1, min(size, int(_AIM * MOST_PAGE_BYTES / num_bytes_each)))
        token = (page.get("metadata") or {}).get("continue")
        yield page
        del page
        if not token:
            return
        onward = {**query, "continue": token}


def too_long() -> str:
    """Return the problem of an object that is too long, as a clause."""
    return f"it has more than {MOST_OBJECT_BYTES >> 20} MiB; make it smaller"


def cut_event(line: bytes) -> Object:
    """Return the event of a watch of which the end was cut, with the metadata of its object alone, marked.

    Raises:
        ClusterError: Its metadata was cut too.
    """
    event, at = _EVENT.match(line), line.find(b'"metadata":')
    if event is None or at < 0:
        raise ClusterError("the watch sent a long event that is not understood")
    try:
        metadata, _ = json.JSONDecoder().raw_decode(line[at + len(b'"metadata":') :].decode(errors="replace").lstrip())
    except (ValueError, RecursionError) as error:
        raise ClusterError("the watch sent an event of which the metadata is too long") from error
    identity = {name.decode(): word.decode(errors="replace") for name, word in _WORDS.findall(line[event.end() : at])}
    return {"type": event[1].decode(), "object": marked({**identity, "metadata": metadata}, too_long())}
