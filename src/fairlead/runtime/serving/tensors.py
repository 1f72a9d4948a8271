"""Converts tensors of the Open Inference Protocol v2 to and from numpy arrays: datatypes, JSON and bytes.

Source: the protocol's "Tensor Data" and Triton's extension for binary tensor data: little-endian, row-major, BOOL one
byte, each element of BYTES preceded by its length in four bytes. BF16, which numpy lacks, is float32 in arrays and
rounded to nearest even on output. Elements of BYTES are ``bytes`` in arrays of objects.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np

from fairlead.runtime.serving.problems import BadRequest, PredictFailed

Array = np.ndarray[Any, Any]

DTYPES: dict[str, str] = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "BF16": "<f4",
    "FP32": "<f4",
    "FP64": "<f8",
    "BYTES": "O",
}
"""Datatypes of the protocol and their numpy dtypes."""

MAX_RANK = 32
MOST_TEXTS = 1 << 20  # each is an object of at least 33 bytes
_BY_DTYPE = {np.dtype(code): name for name, code in DTYPES.items() if name != "BF16"}


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Return the shape of an input; its first axis is the batch.

    Raises:
        BadRequest: The shape is not a list of positive whole numbers, or has too many axes.
    """
    if not isinstance(shape, list) or any(type(size) is not int or size < 1 for size in shape):
        raise BadRequest(f"input {name!r} has the shape {_short(shape)}; give a list of positive whole numbers")
    if not 1 <= len(shape) <= MAX_RANK:
        raise BadRequest(f"input {name!r} has {len(shape)} axes; give 1 to {MAX_RANK}, of which the first is the batch")
    return tuple(shape)


def count(shape: tuple[int, ...]) -> int:
    """Return the number of elements."""
    total = 1
    for size in shape:
        total *= size
    return total


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """Return a tensor from JSON data, either flat or nested like its shape.

    Raises:
        BadRequest: The data do not have the datatype and shape.
    """
    if not isinstance(data, list):
        raise BadRequest(f"input {name!r} has data of type {type(data).__name__}; give a list")
    axes, elements = _flatten(name, data)
    if len(axes) > 1 and axes != shape:
        raise BadRequest(f"input {name!r} has data of shape {list(axes)} where its shape says {list(shape)}")
    if len(elements) != count(shape):
        raise BadRequest(
            f"input {name!r} has {len(elements)} elements where its shape {list(shape)} needs {count(shape)}"
        )
    return _typed(name, datatype, elements).reshape(shape)


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """Return a tensor from its bytes, without a copy if alignment allows.

    Raises:
        BadRequest: Their number does not match the datatype and shape.
    """
    if datatype == "BYTES":
        elements = _split_bytes(name, data, count(shape))
        array = np.empty(len(elements), dtype=object)
        array[:] = elements
        return array.reshape(shape)
    size = 2 if datatype == "BF16" else np.dtype(DTYPES[datatype]).itemsize
    if len(data) != size * count(shape):
        raise BadRequest(
            f"input {name!r} has {len(data)} bytes where {datatype} of shape {list(shape)} needs {size * count(shape)}"
        )
    if datatype == "BF16":
        wide = np.frombuffer(data, dtype="<u2").astype("<u4") << np.uint32(16)
        flat: Array = wide.view("<f4")
    elif datatype == "BOOL":
        flat = np.frombuffer(data, dtype="u1") != 0
    else:
        flat = np.require(np.frombuffer(data, dtype=DTYPES[datatype]), requirements=["A", "W"])
    return flat.reshape(shape)


def to_bytes(datatype: str, array: Array) -> bytes:
    """Return the bytes of a tensor, in row-major order."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(element)) + element for element in map(_as_bytes, array.ravel().tolist()))
    if datatype == "BF16":
        bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        # Rounding up the bits of NaN might make it an infinity.
        return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype("<u2").tobytes()
    return np.ascontiguousarray(array, dtype=DTYPES[datatype]).tobytes()


def to_json(name: str, datatype: str, array: Array) -> list[Any]:
    """Return the elements of a tensor for JSON, in row-major order.

    Raises:
        PredictFailed: JSON cannot represent one of them.
    """
    flat = array.ravel()
    if datatype == "BYTES":
        try:
            return [_as_bytes(element).decode() for element in flat.tolist()]
        except UnicodeDecodeError as error:
            raise PredictFailed(
                f"output {name!r} is not UTF-8, which JSON needs; ask for it with binary_data"
            ) from error
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise PredictFailed(f"output {name!r} has NaN or infinity, which JSON lacks; ask for it with binary_data")
    return list(flat.tolist())


def datatype_of(name: str, array: Array) -> str:
    """Return the datatype of an output.

    Raises:
        PredictFailed: The protocol has no datatype for it.
    """
    if array.dtype.kind in "OSU":
        return "BYTES"
    datatype = _BY_DTYPE.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise PredictFailed(f"output {name!r} is of {array.dtype}, for which the protocol has no datatype")
    return datatype


def _flatten(name: str, data: list[Any]) -> tuple[tuple[int, ...], list[Any]]:
    """Return the axes of nested lists, and their elements in order."""
    axes, level = [len(data)], data
    while level and isinstance(level[0], list):
        sizes = set(map(len, level)) if set(map(type, level)) == {list} else {-1, 0}
        if len(sizes) > 1:
            raise BadRequest(f"input {name!r} has data whose lists are not all of one length")
        if len(axes) == MAX_RANK:
            raise BadRequest(f"input {name!r} has data nested deeper than {MAX_RANK} lists")
        axes.append(sizes.pop())
        level = list(itertools.chain.from_iterable(level))
    return tuple(axes), level


def _typed(name: str, datatype: str, elements: list[Any]) -> Array:
    """Return the elements as a flat array; refuse those of another type or beyond the datatype's range."""
    dtype = np.dtype(DTYPES[datatype])
    # Checked before numpy converts them: it would widen all to the longest text, and accept text as numbers.
    wrong = set(map(type, elements)) - _ELEMENTS[dtype.kind]
    if wrong:
        words = " and ".join(sorted(_WORDS.get(kind, kind.__name__) for kind in wrong))
        raise BadRequest(f"input {name!r} has data with {words} where its datatype is {datatype}")
    if dtype.kind == "O":
        texts = np.empty(len(elements), dtype=object)
        texts[:] = [_encode(name, text) for text in elements]
        return texts
    if dtype.kind in "ui":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        if min(elements) < low or max(elements) > high:
            raise BadRequest(f"input {name!r} has data beyond {datatype}, which holds {low} to {high}")
    if dtype.kind != "f":
        return np.array(elements, dtype=dtype)
    try:
        exact = np.array(elements, dtype="f8")
    except OverflowError as error:
        raise BadRequest(f"input {name!r} has data beyond {datatype}") from error
    with np.errstate(over="ignore"):
        converted = exact.astype(dtype)
    if bool((np.isinf(converted) & np.isfinite(exact)).any()):
        raise BadRequest(f"input {name!r} has data beyond {datatype}, which holds up to {np.finfo(dtype).max:.6g}")
    return converted


_ELEMENTS: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}, "O": {str}}
_WORDS: dict[type, str] = {
    bool: "booleans", float: "fractions", int: "whole numbers", str: "text", list: "lists", dict: "objects",
    type(None): "null",
}  # fmt: skip


def _encode(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"input {name!r} has a lone surrogate, which is not text") from error


def _split_bytes(name: str, data: memoryview, wanted: int) -> list[bytes]:
    if wanted > MOST_TEXTS:
        raise BadRequest(f"input {name!r} has {wanted} elements by its shape; at most {MOST_TEXTS} of BYTES are read")
    elements: list[bytes] = []
    offset = 0
    while offset < len(data):
        if len(elements) == wanted:
            raise BadRequest(f"input {name!r} has more elements than the {wanted} that its shape needs")
        if offset + 4 > len(data):
            raise BadRequest(f"input {name!r} ends within the length of element {len(elements)}")
        (length,) = struct.unpack_from("<I", data, offset)
        offset += 4
        if offset + length > len(data):
            raise BadRequest(f"input {name!r} has an element of {length} bytes where {len(data) - offset} are left")
        elements.append(bytes(data[offset : offset + length]))
        offset += length
    if len(elements) != wanted:
        raise BadRequest(f"input {name!r} has {len(elements)} elements where its shape needs {wanted}")
    return elements


def _as_bytes(element: Any) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
