"""A deployment of Ray Serve that answers a short document, behind Serve's proxy: `ray_serve.py PORT ANSWER`.

Prints a line once it answers, and ends when its input does.
"""

import os
import sys
import tempfile

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_SERVE_LOG_TO_STDERR": "0"}

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

port, answer = int(sys.argv[1]), sys.argv[2].encode()


@serve.deployment(max_ongoing_requests=100)
class Model:
    async def __call__(self, request: Request) -> Response:
        await request.body()
        return Response(answer, media_type="application/json")


# A socket's path has to be short.
with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as temporary:
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, logging_level="ERROR",
        log_to_driver=False, _temp_dir=temporary, _node_ip_address="127.0.0.1",
    )  # fmt: skip
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"enable_access_log": False})
    serve.run(Model.bind(), route_prefix="/m")
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()
