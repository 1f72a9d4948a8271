"""Bodies of the Open Inference Protocol v2: parses a request into arrays, and encodes arrays into a response.

Source: the protocol's REST description, and Triton's binary tensor data extension: the header
``Inference-Header-Content-Length`` is the length of the JSON, which the binary tensors follow in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.runtime.serving.predictor import Arrays, TensorSpec
from fairlead.runtime.serving.problems import BadRequest
from fairlead.runtime.serving.tensors import (
    DTYPES,
    check_shape,
    datatype_of,
    from_bytes,
    from_json,
    to_bytes,
    to_json,
)

HEADER_LENGTH = "Inference-Header-Content-Length"
# The parser keeps the event loop, and Python's lock, for all of it: about a tenth of a second.
MOST_JSON_BYTES = 8 << 20
_REQUEST = ("id", "parameters", "inputs", "outputs", "model_name")  # KServe's own client adds the last
_INPUT = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT = ("name", "parameters")


@dataclass(frozen=True)
class InferRequest:
    """A parsed request.

    Attributes:
        id: The id as given; None if there is none.
        inputs: Arrays by name, all with the same number of rows.
        rows: Number of rows of the batch.
        outputs: For each requested output, in order, whether it is to be binary; None for all outputs.
        binary: Whether outputs are binary unless the request says otherwise.
    """

    id: str | None
    inputs: Arrays
    rows: int
    outputs: dict[str, bool] | None
    binary: bool


def read_json(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Parse a body that is a JSON object.

    Raises:
        BadRequest: The body is not a JSON object, or so long that no other request is answered while it is parsed.
    """
    if len(body) > MOST_JSON_BYTES:
        raise BadRequest(
            f"the body has {len(body)} bytes of JSON; at most {MOST_JSON_BYTES} are parsed: send tensors as binary "
            f"data after it, with the header {HEADER_LENGTH}, or in several requests"
        )
    try:
        document = json.loads(str(body, "utf-8"))
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadRequest(f"the body is a JSON {type(document).__name__}; give an object")
    return document


def read_infer_request(
    body: bytearray, header_length: str | None, declared: Mapping[str, TensorSpec] | None, model: str
) -> InferRequest:
    """Parse the body of an inference request.

    Args:
        header_length: Value of the header ``Inference-Header-Content-Length``; None if there is none.
        declared: The predictor's declared inputs; None if it declares none.
        model: The model's name in the path.

    Raises:
        BadRequest: The body is invalid, or does not match the declared inputs.
    """
    view = memoryview(body)
    json_bytes = len(body) if header_length is None else _header_length(header_length, len(body))
    request = read_json(view[:json_bytes])
    _only(request, _REQUEST, "the request")
    request_id = request.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise BadRequest(f"id is {_short(request_id)}; give text")
    if request.get("model_name", model) != model:
        raise BadRequest(f"model_name is {_short(request['model_name'])} where the path has {model!r}")
    parameters = _parameters(request, ("binary_data_output",), "the request")
    binary = _flag(parameters, "binary_data_output", "the request")
    outputs = _read_outputs(request.get("outputs"), binary)
    tensors = request.get("inputs")
    if not isinstance(tensors, list) or not tensors:
        raise BadRequest('the request has no inputs; give "inputs": [{"name", "shape", "datatype", "data"}, ...]')
    inputs: Arrays = {}
    offset = json_bytes
    for item in tensors:
        offset = _read_input(item, view, offset, inputs, declared)
    if offset != len(body):
        raise BadRequest(f"the body has {len(body) - offset} bytes after the last tensor")
    if declared is not None and len(inputs) < len(declared):
        raise BadRequest(f"the request lacks input {min(declared.keys() - inputs.keys())!r}")
    rows = {array.shape[0] for array in inputs.values()}
    if len(rows) > 1:
        raise BadRequest(f"the inputs have {' and '.join(map(str, sorted(rows)))} rows; all need the same first axis")
    return InferRequest(request_id, inputs, rows.pop(), outputs, binary)


def write_infer_answer(
    request: InferRequest, results: Arrays, *, model: str, version: str, declared: Mapping[str, TensorSpec] | None
) -> tuple[bytes, int | None]:
    """Return the body of a response, and the length of its JSON if binary tensors follow it.

    Raises:
        BadRequest: A requested output is not among the results.
        PredictFailed: JSON cannot represent a result.
    """
    wanted = request.outputs
    if wanted is None:
        wanted = dict.fromkeys(results, request.binary)
    outputs: list[dict[str, Any]] = []
    tails: list[bytes] = []
    for name, is_binary in wanted.items():
        if name not in results:
            raise BadRequest(f"there is no output {name!r}; there is {', '.join(results)}")
        array = results[name]
        spec = (declared or {}).get(name)
        datatype = datatype_of(name, array) if spec is None else spec.datatype
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if is_binary:
            tails.append(to_bytes(datatype, array))
            output["parameters"] = {"binary_data_size": len(tails[-1])}
        else:
            output["data"] = to_json(name, datatype, array)
        outputs.append(output)
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": outputs}
    if request.id is not None:
        answer["id"] = request.id
    head = json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
    return (b"".join((head, *tails)), len(head)) if tails else (head, None)


def _header_length(text: str, most: int) -> int:
    # int() alone would accept "+1", "1_0" and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) < 16) or int(text) > most:
        raise BadRequest(
            f"{HEADER_LENGTH} is {_short(text)}; give the length of the JSON, at most {most} as the body is"
        )
    return int(text)


def _read_input(
    item: Any, body: memoryview, offset: int, inputs: Arrays, declared: Mapping[str, TensorSpec] | None
) -> int:
    """Add one input to the inputs and return the offset of the next binary tensor."""
    if not isinstance(item, dict):
        raise BadRequest(f"an input is {_short(item)}; give an object")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"an input has the name {_short(name)}; give text")
    if name in inputs:
        raise BadRequest(f"input {name!r} comes twice")
    _only(item, _INPUT, f"input {name!r}")
    datatype = item.get("datatype")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise BadRequest(f"input {name!r} has the datatype {_short(datatype)}; give one of {', '.join(DTYPES)}")
    shape = check_shape(name, item.get("shape"))
    if declared is not None:
        _check_declared(name, datatype, shape, declared)
    size = _parameters(item, ("binary_data_size",), f"input {name!r}").get("binary_data_size")
    if size is None:
        inputs[name] = from_json(name, datatype, shape, item.get("data"))
        return offset
    if type(size) is not int or size < 0:
        raise BadRequest(f"input {name!r} has the binary_data_size {_short(size)}; give a number of bytes")
    if "data" in item:
        raise BadRequest(f"input {name!r} has both data and binary_data_size; give one of them")
    if offset + size > len(body):
        raise BadRequest(
            f"input {name!r} has the binary_data_size {size} where {len(body) - offset} bytes are left; "
            f"{HEADER_LENGTH} says where binary data begin"
        )
    inputs[name] = from_bytes(name, datatype, shape, body[offset : offset + size])
    return offset + size


def _check_declared(name: str, datatype: str, shape: tuple[int, ...], declared: Mapping[str, TensorSpec]) -> None:
    spec = declared.get(name)
    if spec is None:
        raise BadRequest(f"there is no input {_short(name)}; there is {', '.join(declared)}")
    if datatype != spec.datatype:
        raise BadRequest(f"input {name!r} has the datatype {datatype}; give {spec.datatype}")
    if not spec.takes(shape):
        raise BadRequest(f"input {name!r} has the shape {list(shape)}; give {list(spec.shape)}, where -1 is any size")


def _read_outputs(requested: Any, binary: bool) -> dict[str, bool] | None:
    if requested is None or requested == []:
        return None
    if not isinstance(requested, list):
        raise BadRequest(f"outputs is {_short(requested)}; give a list")
    wanted: dict[str, bool] = {}
    for item in requested:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            raise BadRequest(f'a wanted output is {_short(item)}; give {{"name": ...}}')
        _only(item, _OUTPUT, f"output {name!r}")
        parameters = _parameters(item, ("binary_data",), f"output {name!r}")
        wanted[name] = _flag(parameters, "binary_data", f"output {name!r}", default=binary)
    return wanted


def _only(fields: dict[str, Any], allowed: tuple[str, ...], what: str) -> None:
    for key in fields:
        if key not in allowed:
            raise BadRequest(f"{what} has {_short(key)}, which is not supported; it may have {', '.join(allowed)}")


def _parameters(fields: dict[str, Any], allowed: tuple[str, ...], what: str) -> dict[str, Any]:
    parameters = fields.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise BadRequest(f"{what} has parameters that are {_short(parameters)}; give an object")
    _only(parameters, allowed, f"parameters of {what}")
    return parameters


def _flag(parameters: dict[str, Any], name: str, what: str, *, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadRequest(f"{name} of {what} is {_short(value)}; give true or false")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
