"""A published model arrives whole and signed or not at all; what is here already is not transferred again."""

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest

from fairlead.control.model_publishing import PublishedVersion, publish
from fairlead.errors import Conflict, InvalidSpec, NotFound
from fairlead.runtime.errors import Misuse, StoreUnavailable
from fairlead.runtime.serving import published_model
from fairlead.runtime.serving.model_files import fetched_model
from fairlead.runtime.serving.predictor import Unusable
from fairlead.runtime.serving.published_model import architecture, fetched

CHUNK = 1 << 16


class Server(ThreadingHTTPServer):
    """A web server with ranges that ends a response after some bytes, as often as it is asked to."""

    daemon_threads = True
    cut_after: int = 1 << 40
    cuts: int = 0
    sent: int = 0
    requests: list[tuple[str, str | None]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        path = Path(self.translate_path(self.path))
        wanted = self.headers.get("Range")
        server.requests.append((self.path, wanted))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        first = 0 if wanted is None else int(wanted.removeprefix("bytes=").partition("-")[0])
        data = data[first:]
        self.send_response(200 if wanted is None else 206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if server.cuts and len(data) > server.cut_after:
            server.cuts -= 1
            data, self.close_connection = data[: server.cut_after], True
        server.sent += len(data)
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "published").mkdir()
    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path / "published")))
    server.requests = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


def make_key(path: Path, kind: str = "ed25519") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)], check=True)
    return path


def weights(seed: int, size: int = 10 * CHUNK + 123) -> bytes:
    return Random(seed).randbytes(size)


def publish_files(tmp_path: Path, key: Path, label: str, files: dict[str, bytes], **more: object) -> PublishedVersion:
    content = tmp_path / label
    for name, data in files.items():
        (content / name).parent.mkdir(parents=True, exist_ok=True)
        (content / name).write_bytes(data)
    return publish(content, label, tmp_path / "published", key, chunk_bytes=CHUNK, **more)  # type: ignore[arg-type]


def test_a_version_arrives_whole_and_the_next_one_by_its_changed_chunks_alone(
    server: Server, tmp_path: Path, key: Path
) -> None:
    first = weights(1)
    published = publish_files(tmp_path, key, "net-1", {"net.bin": first, "deep/labels.txt": b"a b", "empty": b""})
    assert (published.size, published.written) == (len(first) + 3, len(first) + 3)
    place = fetched(f"{server.url}/net-1.json", published.signer, tmp_path / "cache")
    assert (place / "net.bin").read_bytes() == first
    assert (place / "deep" / "labels.txt").read_bytes() == b"a b"
    assert (place / "empty").read_bytes() == b""
    changed = first[:CHUNK] + weights(2, CHUNK) + first[2 * CHUNK :]
    again = publish_files(tmp_path, key, "net-2", {"net.bin": changed, "deep/labels.txt": b"a b", "empty": b""})
    assert again.written == CHUNK
    before = server.sent
    other = fetched(f"{server.url}/net-2.json", published.signer, tmp_path / "cache")
    assert (other / "net.bin").read_bytes() == changed
    index_bytes = sum((tmp_path / "published" / f"net-2.{end}").stat().st_size for end in ("json", "sig"))
    assert server.sent - before == CHUNK + index_bytes


def test_a_broken_transfer_continues_at_its_byte(server: Server, tmp_path: Path, key: Path) -> None:
    content = weights(1)
    published = publish_files(tmp_path, key, "net-1", {"net.bin": content})
    server.cut_after, server.cuts = 10_000, 7
    place = fetched(f"{server.url}/net-1.json", published.signer, tmp_path / "cache")
    assert (place / "net.bin").read_bytes() == content
    assert "bytes=10000-65535" in [wanted for _, wanted in server.requests]
    sent = server.sent - sum(path.stat().st_size for path in (tmp_path / "published").glob("net-1.*"))
    assert sent == len(content), "no byte was sent twice"


def test_a_replica_that_is_killed_in_a_transfer_goes_on_at_its_next_start(
    server: Server, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_model, "WAITS_S", ())
    content = weights(1)
    published = publish_files(tmp_path, key, "net-1", {"net.bin": content})
    starts = 0
    while True:
        starts += 1
        server.cut_after, server.cuts = 30_000, 1
        try:
            place = fetched(f"{server.url}/net-1.json", published.signer, tmp_path / "cache")
            break
        except StoreUnavailable as error:
            assert "of a chunk have arrived, and stay" in str(error)  # noqa: PT017
            assert not list((tmp_path / "cache").glob("*/index.json")), "half a model is no version"
    assert starts > 5
    assert (place / "net.bin").read_bytes() == content
    sent = server.sent - starts * sum(path.stat().st_size for path in (tmp_path / "published").glob("net-1.*"))
    assert sent == len(content)


def test_nothing_that_is_unsigned_or_was_changed_is_used(server: Server, tmp_path: Path, key: Path) -> None:
    published = publish_files(tmp_path, key, "net-1", {"net.bin": weights(1)})
    url, goal, cache = f"{server.url}/net-1.json", tmp_path / "published", tmp_path / "cache"
    other = publish_files(tmp_path, make_key(tmp_path / "other"), "own-1", {"net.bin": weights(1)})
    with pytest.raises(Misuse, match="not that of the key"):
        fetched(url, other.signer, cache)
    index = (goal / "net-1.json").read_bytes()
    (goal / "net-1.json").write_bytes(index.replace(b'"net.bin"', b'"net.bad"'))
    with pytest.raises(Misuse, match="not that of the key"):
        fetched(url, published.signer, cache)
    (goal / "net-1.json").write_bytes(index)
    (goal / "net-3.json").write_bytes(index)
    (goal / "net-3.sig").write_bytes((goal / "net-1.sig").read_bytes())
    with pytest.raises(StoreUnavailable, match="it is the signed index of net-1"):
        fetched(f"{server.url}/net-3.json", published.signer, cache)
    signature = (goal / "net-1.sig").read_bytes()
    (goal / "net-1.sig").unlink()
    with pytest.raises(StoreUnavailable, match="404"):
        fetched(url, published.signer, cache)
    (goal / "net-1.sig").write_bytes(signature)
    assert not list(cache.glob("*/index.json"))


def test_a_chunk_with_another_content_is_never_part_of_a_model(
    server: Server, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_model, "WAITS_S", (0.0,))
    published = publish_files(tmp_path, key, "net-1", {"net.bin": weights(1)})
    chunk = next(iter((tmp_path / "published" / "chunks").glob("*/*")))
    chunk.write_bytes(bytes(chunk.stat().st_size))
    with pytest.raises(StoreUnavailable, match="has another content than was signed"):
        fetched(f"{server.url}/net-1.json", published.signer, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/index.json"))


def test_without_a_link_a_replica_starts_with_the_version_that_is_here(
    server: Server, tmp_path: Path, key: Path
) -> None:
    published = publish_files(tmp_path, key, "net-1", {"net.bin": weights(1)})
    url = f"{server.url}/net-1.json"
    place = fetched(url, published.signer, tmp_path / "cache")
    (tmp_path / "published").rename(tmp_path / "gone")
    assert fetched(url, published.signer, tmp_path / "cache") == place
    with pytest.raises(StoreUnavailable):
        fetched(f"{server.url}/net-2.json", published.signer, tmp_path / "cache")
    (place / "net.bin").write_bytes(b"half")
    with pytest.raises(StoreUnavailable):
        fetched(url, published.signer, tmp_path / "cache")


def test_a_model_for_another_cpu_is_refused(tmp_path: Path, key: Path) -> None:
    other = "arm64" if architecture() == "amd64" else "amd64"
    published = publish_files(tmp_path, key, "net-1", {"net.bin": b"x"}, architectures=(other,))
    with pytest.raises(StoreUnavailable, match=f"it is for {other}, and this CPU is {architecture()}"):
        fetched(str(published.index), published.signer, tmp_path / "cache")


def test_only_the_newest_versions_stay(tmp_path: Path, key: Path) -> None:
    for number in range(5):
        published = publish_files(tmp_path, key, f"net-{number}", {"net.bin": b"%d" % number})
        fetched(str(published.index), published.signer, tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("*/index.json"))) == 3


def test_a_predictor_and_a_command_get_the_checked_directory(tmp_path: Path, key: Path) -> None:
    published = publish_files(tmp_path, key, "net-1", {"net.bin": b"w"})
    env = {
        "FAIRLEAD_MODEL": str(published.index), "FAIRLEAD_MODEL_SIGNER": published.signer,
        "FAIRLEAD_MODEL_CACHE": str(tmp_path / "cache"),
    }  # fmt: skip
    assert (Path(fetched_model("ignored", None, env)) / "net.bin").read_bytes() == b"w"
    command = [sys.executable, "-m", "fairlead.runtime.serving.published_model"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip(), "net.bin").read_bytes() == b"w"
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    with pytest.raises(Unusable, match="signed_by"):
        fetched_model("ignored", None, {**env, "FAIRLEAD_MODEL_SIGNER": other})
    done = subprocess.run(command, env={**env, "FAIRLEAD_MODEL_SIGNER": other}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("fairlead: its signature is not that of the key `signed_by`, so nothing of it is loaded\n")


def test_publishing_refuses_other_keys_and_another_content_under_a_label(tmp_path: Path, key: Path) -> None:
    files = {"net.bin": b"x"}
    with pytest.raises(NotFound, match="ssh-keygen"):
        publish_files(tmp_path, tmp_path / "absent", "net-1", files)
    with pytest.raises(InvalidSpec, match=r"without `\.pub`"):
        publish_files(tmp_path, key.with_suffix(".pub"), "net-1", files)
    with pytest.raises(InvalidSpec, match="no Ed25519 key"):
        publish_files(tmp_path, make_key(tmp_path / "rsa", "rsa"), "net-1", files)
    publish_files(tmp_path, key, "net-1", files)
    assert publish_files(tmp_path, key, "net-1", files).written == 0
    with pytest.raises(Conflict, match="another model already"):
        publish_files(tmp_path, key, "net-1", {"net.bin": b"y"})
