"""A replica's server in a thread of this process, on a free port, and clients for it."""

import asyncio
import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fairlead.runtime.serving.server import serve
from fairlead.runtime.serving.settings import Settings
from tests.waiting import until

TIMEOUT_S = 60.0


class Answer:
    """What came back."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self) -> Any:
        return json.loads(self.body)


class Replica:
    """A server; leaving the with block ends it."""

    def __init__(self, predictor: str, *, wait: bool = True, **settings: Any) -> None:
        found = predictor if ":" in predictor else f"tests.serving.predictors:{predictor}"
        self.settings = Settings(predictor=found, **{"grace_s": 0.0, **settings})
        self._wait = wait
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.port = 0
        self.code: int | None = None

    def __enter__(self) -> "Replica":
        self._thread.start()
        until(lambda: self._listening.is_set() or self.code is not None, "port", every_s=0.005)
        if self._wait:
            until(lambda: self.get("/v2/health/ready").status == 200, "readiness", every_s=0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        """Tell it to end."""
        if self.code is None:
            self._loop.call_soon_threadsafe(self._stop.set)

    def end(self) -> int:
        """The exit code."""
        self._thread.join(TIMEOUT_S)
        assert self.code is not None
        return self.code

    def get(self, path: str, method: str = "GET") -> Answer:
        return self.ask(method, path, None, {})

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, data, headers or {})

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def infer(self, *inputs: dict[str, Any], **request: Any) -> Answer:
        return self.post("/v2/models/model/infer", {"inputs": list(inputs), **request})

    def numbers(self, *values: float, **request: Any) -> Answer:
        """Infer with one row of FP32 for each value."""
        return self.infer({"name": "x", "shape": [len(values), 1], "datatype": "FP32", "data": list(values)}, **request)

    def together(self, *values: float) -> list[Answer]:
        """Infer with one request a value, all at once."""
        with ThreadPoolExecutor(len(values)) as pool:
            return list(pool.map(self.numbers, values))

    def raw(self, data: bytes) -> bytes:
        """What comes back for these bytes until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S) as connection:
            connection.sendall(data)
            received = b""
            try:
                while chunk := connection.recv(1 << 16):
                    received += chunk
            except ConnectionResetError:
                pass  # as good as an end
            return received

    def metric(self, line: str) -> float:
        """The value of a metric, by its name and labels as it stands before the value."""
        for each in self.get("/metrics").body.decode().splitlines():
            if each.startswith(line + " "):
                return float(each.rpartition(" ")[2])
        return 0.0

    def _run(self) -> None:
        self.code = asyncio.run(self._serve())

    async def _serve(self) -> int:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        return await serve(self.settings, self._stop, on_listening=self._note)

    def _note(self, port: int) -> None:
        self.port = port
        self._listening.set()


def x(data: list[Any], shape: list[int], datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    """An input named x."""
    return {"name": "x", "shape": shape, "datatype": datatype, "data": data, **more}
