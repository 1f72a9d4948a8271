"""Weights that an endpoint names by `data`: one replica copies them, and the tenth reads nothing from the store."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from fairlead.cluster.contract import data_variables
from fairlead.control.data import admit_data
from fairlead.specs.formats.reading import parse
from fairlead.specs.serving import Serving

NUM_REPLICAS = 10
CONTENT = bytes(range(256)) * 4096


class CountingStore(BaseHTTPRequestHandler):
    """A store of two files, which counts its requests for bytes."""

    protocol_version = "HTTP/1.1"
    num_reads: ClassVar[int] = 0
    num_bytes: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()

    def do_HEAD(self) -> None:
        self._answer(200, CONTENT, with_body=False)

    def do_GET(self) -> None:
        start, _, stop = self.headers["Range"].removeprefix("bytes=").partition("-")
        with self.lock:
            CountingStore.num_reads += 1
            CountingStore.num_bytes += int(stop) + 1 - int(start)
        self._answer(206, CONTENT[int(start) : int(stop) + 1])

    def _answer(self, status: int, content: bytes, *, with_body: bool = True) -> None:
        self.send_response(status)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@contextmanager
def counting_store() -> Iterator[str]:
    """The URL of a store whose requests are counted."""
    CountingStore.num_reads = CountingStore.num_bytes = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), CountingStore)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{{config,weights}}.bin"
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.fixture
def store() -> Iterator[str]:
    with counting_store() as url:
        yield url


@pytest.mark.slow
def test_the_tenth_replica_reads_nothing_from_the_store(store: str, tmp_path: Path) -> None:
    (endpoint,) = parse(
        f"kind: Serving\nname: chat\nrun: serve $FAIRLEAD_DATA_WEIGHTS\nreplicas: {NUM_REPLICAS}\n"
        f'data: {{weights: {{from: "{store}", mode: copy}}}}\n'
    )
    assert isinstance(endpoint, Serving)
    replica = endpoint.replica()
    data = admit_data(replica, tmp_path, in_pods=False, directory=tmp_path / "data", secrets=tmp_path).data
    variables = data_variables(data, str(tmp_path / "data"), str(tmp_path))
    assert CountingStore.num_reads == 0

    def start(_: int) -> str:
        """Prepare the data of a replica, as its pod does before the server starts; return what it prints."""
        command = [sys.executable, "-m", "fairlead.runtime.data.copying"]
        env = {**os.environ, **variables}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300).stdout

    with ThreadPoolExecutor(3) as threads:
        printed = list(threads.map(start, range(NUM_REPLICAS - 1)))
    after_nine = CountingStore.num_reads
    printed.append(start(NUM_REPLICAS))
    assert after_nine == CountingStore.num_reads == 2
    assert {line.split(" at ")[1].strip() for line in printed} == {variables["FAIRLEAD_DATA_WEIGHTS"]}
    assert Path(variables["FAIRLEAD_DATA_WEIGHTS"], "weights.bin").read_bytes() == CONTENT
