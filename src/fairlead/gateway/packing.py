"""Compresses routes and demand for ConfigMaps, which hold a mebibyte: numbers shrink to a fifth."""

import base64
import json
import zlib
from typing import Any

from fairlead.untrusted_json import parse_object

Object = dict[str, Any]

ROUTES_KEY, DEMAND_KEY = "routes.json.z", "demand.json.z"
"""Keys of `binaryData`."""


def packed(document: Object) -> str:
    """Encode a document for the `binaryData` of a ConfigMap."""
    return base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()


def unpacked(text: str, *, most_bytes: int = 64 * 1024 * 1024) -> Object:
    """Decode a document of `packed`.

    Raises:
        ValueError: The text is invalid, or its content exceeds `most_bytes`.
    """
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(text, validate=True), most_bytes)
        if unpacker.unconsumed_tail:
            raise ValueError(f"it has more than {most_bytes} bytes")
    except zlib.error as error:
        raise ValueError(f"it is not compressed: {error}") from error
    return parse_object(content, max_bytes=most_bytes)
