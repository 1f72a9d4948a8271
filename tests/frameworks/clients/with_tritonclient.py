"""Talks to a replica of tests.serving.predictors:Echo with Triton's client: `with_tritonclient.py HOST:PORT`."""

# mypy: ignore-errors
# Its library is in an environment of its own.

import sys

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

client = http.InferenceServerClient(sys.argv[1])
assert client.is_server_live()
assert client.is_server_ready()
assert client.is_model_ready("model")
assert client.is_model_ready("model", "1")
assert client.get_model_metadata("model")["versions"] == ["1"]
assert client.get_server_metadata()["name"] == "fairlead"

arrays = {
    "FP32": np.array([[1.5, np.nan]], np.float32),
    "FP16": np.array([[1.5, -2]], np.float16),
    "INT64": np.array([[2**62, -1]], np.int64),
    "UINT8": np.array([[0, 255]], np.uint8),
    "BOOL": np.array([[True, False]]),
    "BYTES": np.array([["\u00e9".encode(), b""]], dtype=np.object_),
}
inputs = []
for datatype, array in arrays.items():
    inputs.append(http.InferInput(datatype, list(array.shape), datatype))
    inputs[-1].set_data_from_numpy(array, binary_data=True)
for packing in (None, "gzip", "deflate"):
    result = client.infer("model", inputs, request_id="r1", request_compression_algorithm=packing)
    assert result.get_response()["id"] == "r1"
    for datatype, array in arrays.items():
        np.testing.assert_array_equal(result.as_numpy(datatype), array)

# As JSON, both ways, and only one output.
plain = http.InferInput("x", [1, 2], "INT32")
plain.set_data_from_numpy(np.array([[1, 2]], np.int32), binary_data=False)
wanted = [http.InferRequestedOutput("x", binary_data=False)]
assert client.infer("model", [plain], outputs=wanted).get_response()["outputs"][0]["data"] == [1, 2]
try:
    client.infer("model", [plain], outputs=[http.InferRequestedOutput("y")])
except InferenceServerException as error:
    assert "there is no output 'y'" in str(error), error  # noqa: PT017 (this is no test function)
else:
    raise AssertionError("an output that there is not")
asked = [client.async_infer("model", [plain]) for _ in range(8)]
assert all(each.get_result().as_numpy("x").tolist() == [[1, 2]] for each in asked)
client.close()
print("served")
