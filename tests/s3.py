"""A real S3 server, for whatever keeps something on an object store."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port

SERVER = "github.com/versity/versitygw/cmd/versitygw"
SERVER_VERSION = "v1.8.0"
KEY, SECRET = "fairlead-test", "fairlead-test-secret"


@dataclass(kw_only=True)
class S3:
    """A server on loopback that can be stopped and started again; what it holds stays."""

    binary: Path
    directory: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def environ(self) -> dict[str, str]:
        """What makes S3 libraries find it, and give up soon when it is away."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = subprocess.Popen(
            [str(self.binary), "--port", f"127.0.0.1:{self.port}", "posix", str(self.directory)],
            env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop it; connections are refused until it starts again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None


@pytest.fixture(scope="session")
def s3_binary() -> Path:
    """The server, built once from its published module and kept in a cache of the user."""
    cache = Path(os.environ.get("FAIRLEAD_TEST_CACHE") or Path.home() / ".cache" / "fairlead") / "bin"
    binary = cache / f"versitygw-{SERVER_VERSION}"
    if binary.exists():
        return binary
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed; it builds the S3 server that this test talks to")
    cache.mkdir(parents=True, exist_ok=True)
    building = cache / f"building-{os.getpid()}"
    result = subprocess.run(
        [go, "install", "-trimpath", "-ldflags=-s -w", f"{SERVER}@{SERVER_VERSION}"],
        env={**os.environ, "GOBIN": str(building), "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if result.returncode != 0:
        shutil.rmtree(building, ignore_errors=True)
        pytest.skip(f"the S3 server cannot be built: {result.stderr.strip().splitlines()[-1:]}")
    (building / "versitygw").replace(binary)
    shutil.rmtree(building)
    return binary


@pytest.fixture
def s3(s3_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """A running server with the bucket ``models``; this process's environment points to it."""
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed; pip install 'fairlead[remote]'")
    s3fs.S3FileSystem.clear_instance_cache()  # those of the test before know its server's address
    directory = tmp_path / "objects"
    (directory / "models").mkdir(parents=True)
    server = S3(binary=s3_binary, directory=directory, port=free_port())
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    server.start()
    yield server
    server.stop()
