"""Talks to a replica of tests.serving.predictors:Echo with KServe's client: `with_kserve.py HOST:PORT`."""

# mypy: ignore-errors
# Its library is in an environment of its own.

import asyncio
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput


async def main() -> None:
    client = InferenceRESTClient(config=RESTConfig(protocol="v2", retries=0, timeout=60))
    base = f"http://{sys.argv[1]}"
    assert await client.is_server_live(base)
    assert await client.is_server_ready(base)
    assert await client.is_model_ready(base, "model")
    arrays = {"FP32": np.array([[1.5, -2]], np.float32), "FP16": np.array([[1.5, 3]], np.float16)}
    arrays["BYTES"] = np.array([["\u00e9".encode(), b"a"]], dtype=np.object_)
    for binary in (True, False):
        inputs = []
        for datatype, array in arrays.items():
            if datatype == "FP16" and not binary:
                continue  # the client has no JSON for it
            inputs.append(InferInput(datatype, list(array.shape), datatype))
            inputs[-1].set_data_from_numpy(array, binary_data=binary)
        outputs = [RequestedOutput(name, parameters={"binary_data": binary}) for name in ("FP32", "BYTES")]
        request = InferRequest("model", inputs, request_id="r1", request_outputs=outputs)
        response = await client.infer(base, request, model_name="model")
        assert response.id == "r1"
        np.testing.assert_array_equal(response.outputs[0].as_numpy(), arrays["FP32"])
        found = [each if isinstance(each, bytes) else each.encode() for each in response.outputs[1].as_numpy().ravel()]
        assert found == arrays["BYTES"].ravel().tolist()
    await client.close()
    print("served")


asyncio.run(main())
