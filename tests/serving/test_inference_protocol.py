"""The Open Inference Protocol v2 over HTTP: health, metadata, tensors of every datatype in JSON and binary, errors."""

import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fairlead.runtime.serving.inference_protocol import HEADER_LENGTH, MOST_JSON_BYTES, read_json
from fairlead.runtime.serving.problems import BadRequest
from fairlead.runtime.serving.tensors import DTYPES, from_bytes, to_bytes
from tests.serving.replica import Answer, Replica, x


@pytest.fixture(scope="module")
def echo() -> Iterator[Replica]:
    with Replica("Echo") as replica:
        yield replica


@pytest.fixture(scope="module")
def doubler() -> Iterator[Replica]:
    with Replica("Doubler", service="digits", revision="r3", max_body_bytes=100_000) as replica:
        yield replica


def binary(replica: Replica, request: dict[str, Any], *tensors: bytes, length: str | None = None) -> Answer:
    head = json.dumps(request).encode()
    headers = {HEADER_LENGTH: str(len(head)) if length is None else length}
    return replica.post("/v2/models/model/infer", head + b"".join(tensors), headers)


def test_metadata_are_those_of_the_predictor(doubler: Replica) -> None:
    assert doubler.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    assert doubler.get("/v2/health/live").status == 200
    expected = {
        "name": "digits",
        "versions": ["r3"],
        "platform": "fairlead",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    }
    assert doubler.get("/v2/models/digits").json() == expected
    assert doubler.get("/v2/models/digits/versions/r3").json() == expected
    assert doubler.get("/v2/models/digits/versions/r3/ready").status == 200
    assert doubler.get("/v2/models/digits/ready", "HEAD").status == 200


def test_a_request_gets_its_result_and_its_id_back(doubler: Replica) -> None:
    for path in ("/v2/models/digits/infer", "/v2/models/digits/versions/r3/infer"):
        answer = doubler.post(path, {"id": "7", "inputs": [x([[1, 2.5]], [1, 2])]})
        assert answer.json() == {
            "model_name": "digits",
            "model_version": "r3",
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 5.0]}],
            "id": "7",
        }


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/v2/models/other", 404, "there is no model 'other'; there is 'digits'"),
        ("/v2/models/digits/versions/1", 404, "there is no version '1'; there is 'r3'"),
        ("/v2/models/digits/infer", 405, "takes POST, not 'GET'"),
        ("/v3", 404, "there is no '/v3'"),
        ("/v1/models/digits", 404, "generates no text"),
    ],
)
def test_what_there_is_not_is_said(doubler: Replica, path: str, status: int, says: str) -> None:
    answer = doubler.get(path)
    error = answer.json()["error"]
    assert (answer.status, says in (error if isinstance(error, str) else error["message"])) == (status, True)


VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False], "UINT8": [0, 255], "UINT16": [0, 65535], "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1], "INT8": [-128, 127], "INT16": [-(2**15), 2**15 - 1], "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1], "FP16": [-1.5, 65504.0], "BF16": [-1.5, 2.0**100], "FP32": [0.5, -3.0],
    "FP64": [1e300, 0.1], "BYTES": ["", "\u00e9\U0001f600"],
}  # fmt: skip


@pytest.mark.parametrize("datatype", DTYPES)
def test_every_datatype_goes_through_as_json(echo: Replica, datatype: str) -> None:
    for data in (VALUES[datatype], [[value] for value in VALUES[datatype]]):
        (output,) = echo.infer(x(data, [2, 1], datatype)).json()["outputs"]
        assert (output["data"], output["shape"]) == (VALUES[datatype], [2, 1])
        # What is undeclared comes back as numpy has it, which lacks bfloat16.
        assert output["datatype"] == ("FP32" if datatype == "BF16" else datatype)


BYTES: dict[str, bytes] = {
    "BOOL": b"\1\0", "UINT8": b"\0\xff", "UINT16": struct.pack("<2H", 1, 65535), "UINT32": struct.pack("<2I", 1, 7),
    "UINT64": struct.pack("<2Q", 1, 2**64 - 1), "INT8": b"\x80\x7f", "INT16": struct.pack("<2h", -1, 7),
    "INT32": struct.pack("<2i", -1, 7), "INT64": struct.pack("<2q", -1, 7), "FP16": struct.pack("<2e", -1.5, math.nan),
    "FP32": struct.pack("<2f", -1.5, math.inf), "FP64": struct.pack("<2d", -1.5, 7),
    "BYTES": struct.pack("<I2sI", 2, b"\xff\0", 0),
}  # fmt: skip


@pytest.mark.parametrize("datatype", BYTES)
def test_every_datatype_goes_through_as_bytes(echo: Replica, datatype: str) -> None:
    size = len(BYTES[datatype])
    tensor = {"shape": [2, 1], "datatype": datatype, "parameters": {"binary_data_size": size}}
    # The second one stands at an odd place.
    request = {
        "inputs": [{"name": "a", **tensor}, {"name": "b", "shape": [2], "datatype": "UINT8", "data": [1, 2]}],
        "parameters": {"binary_data_output": True},
        "outputs": [{"name": "b", "parameters": {"binary_data": False}}, {"name": "a"}],
    }
    answer = binary(echo, request, BYTES[datatype])
    length = int(answer.headers[HEADER_LENGTH])
    assert answer.headers["Content-Type"] == "application/octet-stream"
    b, a = json.loads(answer.body[:length])["outputs"]
    assert b == {"name": "b", "datatype": "UINT8", "shape": [2], "data": [1, 2]}
    assert a == {"name": "a", "datatype": datatype, "shape": [2, 1], "parameters": {"binary_data_size": size}}
    assert answer.body[length:] == BYTES[datatype]


def test_bfloat16_is_rounded_to_the_nearest_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -np.inf, np.nan, 3.3e38, 0.0], dtype=np.float32)
    back = from_bytes("x", "BF16", (7,), memoryview(bytearray(to_bytes("BF16", values))))
    np.testing.assert_array_equal(back, np.array([1.0, 1.0, 1 + 2**-6, -np.inf, np.nan, back[5], 0.0], np.float32))
    assert back[5] == pytest.approx(3.3e38, rel=2**-8)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([x([1, 2, 3], [1, 2])], "has 3 elements where its shape [1, 2] needs 2"),
        ([x([[1], [2]], [1, 2])], "has data of shape [2, 1] where its shape says [1, 2]"),
        ([x([[1, 2], [3]], [2, 2])], "lists are not all of one length"),
        ([x([[1, 2], 3], [2, 2])], "lists are not all of one length"),
        ([x([1, "2"], [1, 2])], "has data with text where its datatype is FP32"),
        ([x([1, None], [1, 2])], "has data with null where"),
        ([x([True, 1.0], [1, 2])], "has data with booleans where"),
        ([x([1e39, 0], [1, 2])], "beyond FP32, which holds up to 3.40282e+38"),
        ([x([10**400, 0], [1, 2])], "beyond FP32"),
        ([x([1, 2], [1, 2], "FP99")], "has the datatype 'FP99'; give one of BOOL, "),
        ([x([1, 2], [1, 2], "FP64")], "has the datatype FP64; give FP32"),
        ([x([1, 2], [2, 1])], "has the shape [2, 1]; give [-1, 2], where -1 is any size"),
        ([x([], [0, 2])], "has the shape [0, 2]; give a list of positive whole numbers"),
        ([x([1, 2], [-1, 2])], "has the shape [-1, 2]; give"),
        ([x([1, 2], [True, 2])], "has the shape [True, 2]; give"),
        ([x([1, 2], [1] * 40)], "has 40 axes; give 1 to 32"),
        ([x([1, 2], [])], "has 0 axes"),
        ([{"name": "x", "shape": [1, 2], "datatype": "FP32"}], "has data of type NoneType; give a list"),
        ([x([1, 2], [1, 2]), x([1, 2], [1, 2])], "input 'x' comes twice"),
        ([x([1, 2], [1, 2], name="z")], "there is no input 'z'; there is x"),
        ([x([1, 2], [1, 2], stuff=1)], "input 'x' has 'stuff', which is not supported"),
        ([x([1, 2], [1, 2], parameters={"shared_memory_region": "a"})], "'shared_memory_region', which is not"),
        ([x([1, 2], [1, 2], parameters={"binary_data_size": 8})], "has both data and binary_data_size"),
        ([], "the request has no inputs"),
        ("x", "the request has no inputs"),
        ([7], "an input is 7; give an object"),
        ([x([1, 2], [1, 2], name=None)], "an input has the name None"),
    ],
)  # fmt: skip
def test_a_malformed_input_is_refused_with_the_reason(doubler: Replica, inputs: Any, says: str) -> None:
    answer = doubler.post("/v2/models/digits/infer", {"inputs": inputs})
    assert answer.status == 400
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is not JSON"),
        (b"[]", "the body is a JSON list; give an object"),
        (b"\xff", "the body is not UTF-8"),
        (b"[" * 90_000, "the body is nested too deeply"),
        (b'{"inputs": ' + b"9" * 5000 + b"}", "the body is not JSON"),
        (b'{"inputs": [], "priority": 1}', "the request has 'priority', which is not supported"),
        (b'{"inputs": [], "model_name": "m"}', "model_name is 'm' where the path has 'digits'"),
        (b'{"inputs": [], "id": 1}', "id is 1; give text"),
        (b'{"inputs": [], "outputs": "y"}', "outputs is 'y'; give a list"),
        (b'{"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": 1}}]}', "'classification'"),
        (b'{"inputs": [], "parameters": {"binary_data_output": 1}}', "give true or false"),
    ],
)
def test_a_malformed_body_is_refused_with_the_reason(doubler: Replica, body: bytes, says: str) -> None:
    answer = doubler.post("/v2/models/digits/infer", body)
    assert answer.status == 400
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    ("datatype", "data", "says"),
    [
        ("INT8", [128], "beyond INT8, which holds -128 to 127"),
        ("UINT64", [-1], "beyond UINT64"),
        ("INT32", [1.0], "has data with fractions where its datatype is INT32"),
        ("BOOL", [1], "has data with whole numbers where its datatype is BOOL"),
        ("BYTES", [1], "has data with whole numbers where its datatype is BYTES"),
        ("BYTES", ["\ud800"], "lone surrogate"),
        ("FP16", [65520.0], "beyond FP16"),
        ("FP32", ["9" * 10_000] + [0.0] * 3, "has 4 elements"),
        ("FP32", [[[[0]]]], "has data of shape [1, 1, 1, 1] where"),
    ],
)
def test_data_that_are_not_of_their_datatype_are_refused(echo: Replica, datatype: str, data: Any, says: str) -> None:
    answer = echo.infer(x(data, [1], datatype))
    assert (answer.status, says in answer.json()["error"]) == (400, True), answer.body


TENSOR = {"name": "a", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}


@pytest.mark.parametrize(
    ("inputs", "tail", "length", "says"),
    [
        ([TENSOR], b"1234567", None, "binary_data_size 8 where 7 bytes are left"),
        ([TENSOR], b"123456789", None, "has 1 bytes after the last tensor"),
        ([{**TENSOR, "shape": [3]}], b"12345678", None, "has 8 bytes where FP32 of shape [3] needs 12"),
        ([{**TENSOR, "shape": [2**62, 2**62]}], b"12345678", None, "has 8 bytes where"),
        ([{**TENSOR, "parameters": {"binary_data_size": -8}}], b"", None, "has the binary_data_size -8"),
        ([{**TENSOR, "parameters": {"binary_data_size": True}}], b"", None, "has the binary_data_size True"),
        ([{**TENSOR, "datatype": "BYTES"}], b"\4\0\0\0", None, "binary_data_size 8 where 4 bytes"),
        ([{**TENSOR, "datatype": "BYTES"}], b"\xff\xff\xff\xff1234", None, "has an element of 4294967295 bytes"),
        ([{**TENSOR, "datatype": "BYTES"}], b"\0\0\0\0\0\0\0\0", None, None),
        ([{**TENSOR, "datatype": "BYTES"}], b"\1\0\0\0a123", None, "ends within the length of element 1"),
        ([{**TENSOR, "datatype": "BYTES"}], b"\4\0\0\0abcd", None, "has 1 elements where its shape needs 2"),
        (
            [{**TENSOR, "datatype": "BYTES", "parameters": {"binary_data_size": 4_000}}],
            bytes(4_000),
            None,
            "has more elements than the 2 that its shape needs",
        ),
        ([{**TENSOR, "datatype": "BYTES", "shape": [2**21]}], bytes(8), None, "at most 1048576 of BYTES are read"),
        ([TENSOR], b"12345678", "-1", "Inference-Header-Content-Length is '-1'"),
        ([TENSOR], b"12345678", "1e3", "Inference-Header-Content-Length is '1e3'"),
        ([TENSOR], b"12345678", "99999999999999999999", "Inference-Header-Content-Length is"),
        ([TENSOR], b"12345678", "3", "the body is not JSON"),
    ],
)
def test_binary_data_that_do_not_fit_are_refused(
    echo: Replica, inputs: Any, tail: bytes, length: str | None, says: str | None
) -> None:
    answer = binary(echo, {"inputs": inputs}, tail, length=length)
    assert answer.status == (200 if says is None else 400)
    assert says is None or says in answer.json()["error"]


def test_json_that_would_keep_all_others_waiting_is_refused() -> None:
    with pytest.raises(BadRequest, match="send tensors as binary data after it, with the header Inference-Header"):
        read_json(b"[" * (MOST_JSON_BYTES + 1))


def test_inputs_with_different_batches_are_refused(echo: Replica) -> None:
    answer = echo.infer(x([1], [1]), x([1, 2], [2], name="z"))
    assert (answer.status, answer.json()["error"]) == (
        400,
        "the inputs have 1 and 2 rows; all need the same first axis",
    )


def test_an_output_that_there_is_not_is_refused(echo: Replica) -> None:
    answer = echo.infer(x([1], [1]), outputs=[{"name": "y"}])
    assert (answer.status, answer.json()["error"]) == (400, "there is no output 'y'; there is x")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("none", "returned NoneType; return a dict"),
        ("array", "returned ndarray; return a dict"),
        ("empty", "returned dict; return a dict"),
        ("short", "has the shape [2] for a batch of 1"),
        ("scalar", "has the shape [] for a batch of 1"),
        ("complex", "is of complex128, for which the protocol has no datatype"),
        ("nan", "has NaN or infinity, which JSON lacks; ask for it with binary_data"),
        ("latin", "is not UTF-8, which JSON needs"),
    ],
)
def test_what_is_no_result_is_told_apart_from_what_is_no_request(kind: str, says: str) -> None:
    with Replica("Odd") as replica:
        answer = replica.infer({"name": "kind", "shape": [1], "datatype": "BYTES", "data": [kind]})
        assert (answer.status, says in answer.json()["error"]) == (500, True), answer.body
        text = replica.infer({"name": "kind", "shape": [1], "datatype": "BYTES", "data": ["text"]})
        assert text.json()["outputs"][0]["data"] == ["\u00e9"]
