import contextlib
import io
import json
import os
import random
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trustme

from fairlead.runtime.data import cache as caching
from fairlead.runtime.data import copying, http_client, reader
from fairlead.runtime.data.cache import BundleCache
from fairlead.runtime.data.http_client import HttpConnection
from fairlead.runtime.data.http_pool import HttpPool, Transfer
from fairlead.runtime.data.manifest import DataManifest, Entry, make
from fairlead.runtime.data.reader import Data, DataSet
from fairlead.runtime.data.sources import data_of
from fairlead.runtime.data.stores import FolderStore, HttpStore, expand, open_data
from fairlead.runtime.errors import CheckpointMismatch, DataChanged, Misuse, StoreUnavailable
from tests.s3 import S3, s3, s3_binary
from tests.waiting import until

__all__ = ["s3", "s3_binary"]

NUM_FILES = 60


def folder(root: Path) -> Path:
    """Files of 1 to 300 kB in three directories."""
    rng = random.Random(1)
    for number in range(NUM_FILES):
        path = root / f"class-{number % 3}" / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * rng.randint(1_000, 300_000))
    return root


def shards(root: Path) -> Path:
    """Two tar files whose samples have two members, some with names beyond the 100 characters of a plain header."""
    root.mkdir()
    for shard in range(2):
        with tarfile.open(root / f"{shard}.tar", "w") as archive:
            for number in range(NUM_FILES // 2):
                for end, content in (("jpg", bytes([number]) * 200_000), ("cls", str(number).encode())):
                    name = f"{shard}/{number:03}{'x' * 120 if number % 7 == 0 else ''}.{end}"
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return root


def a_source(url: Path | str, tmp_path: Path, mode: str = "cache", **fields: Any) -> DataSet:
    return DataSet(url=str(url), mode=mode, directory=tmp_path / "data", **fields)


def keys(batches: Iterator[list[dict[str, Any]]], most: int = 1_000) -> list[list[str]]:
    """The names of the samples of the first batches."""
    named = []
    for batch in batches:
        named.append([sample["__key__"] for sample in batch])
        if len(named) == most:
            break
    return named


@pytest.mark.parametrize(
    ("made", "mode"), [(folder, "cache"), (folder, "mount"), (folder, "stream"), (shards, "cache")]
)
def test_ranks_go_on_at_the_very_next_sample_with_any_number_of_them(made: Any, mode: str, tmp_path: Path) -> None:
    source = a_source(made(tmp_path / "files"), tmp_path, mode)
    whole = keys(Data(source).batches(8, epochs=2))
    names = [name for batch in whole for name in batch]
    assert len(names) == 2 * NUM_FILES
    assert set(names[:NUM_FILES]) == set(names[NUM_FILES:])
    assert len(set(names)) == NUM_FILES
    assert names[:NUM_FILES] != names[NUM_FILES:]
    yielded: list[list[str]] = []
    state: dict[str, Any] | None = None
    for num_ranks, steps in ((1, 3), (3, 4), (2, 2), (4, 1_000)):
        parts = []
        for rank in range(num_ranks):
            data = Data(source, rank=rank, world_size=num_ranks)
            if state is not None:
                data.load_state_dict(json.loads(json.dumps(state)))
            parts.append(keys(data.batches(8, epochs=2), steps))
            after = data.state_dict()
            data.close()
        state = after
        yielded += [list(chain.from_iterable(part)) for part in zip(*parts, strict=True)]
    assert yielded == whole


def test_samples_have_their_bytes_in_every_mode(tmp_path: Path) -> None:
    for made, ends in ((folder, {"jpg"}), (shards, {"jpg", "cls"})):
        root = made(tmp_path / made.__name__)
        for mode in ("mount", "cache", "stream"):
            for sample in (sample for batch in Data(a_source(root, tmp_path, mode)).batches(7) for sample in batch):
                number = int(sample["__key__"].rpartition("/")[2][:3])
                assert set(sample) == {"__key__", *ends}
                assert set(sample["jpg"]) == {number}


def overwrite(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"x" * path.stat().st_size)


def lengthen(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b"x")


def replace_by_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize("alter", [overwrite, lengthen, replace_by_a_link, Path.unlink])
def test_a_copy_that_a_program_changed_is_mended_before_the_next_run_reads_it(
    alter: Callable[[Path], None], tmp_path: Path
) -> None:
    source = a_source(folder(tmp_path / "files"), tmp_path, "copy")
    first = Data(source)
    changed = first.path / first.files()[3]
    content = changed.read_bytes()
    assert changed.stat().st_mode & 0o222 == 0
    alter(changed)
    second = Data(source)
    assert (second.path / first.files()[3]).read_bytes() == content
    others = [name for name in first.files() if not (second.path / name).is_file()]
    assert (others, changed.is_symlink()) == ([], False)


def test_a_directory_in_place_of_a_copied_file_is_named_with_the_command_that_mends_it(tmp_path: Path) -> None:
    source = a_source(folder(tmp_path / "files"), tmp_path, "copy")
    data = Data(source)
    changed = data.path / data.files()[0]
    changed.unlink()
    (changed / "inside").mkdir(parents=True)
    with pytest.raises(Misuse, match=f"is where a file of the copy belongs.*fairlead data rm {data.version}"):
        _ = Data(source).path


def test_files_that_a_program_puts_beside_a_copy_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    described = {"t": {"from": str(folder(tmp_path / "files")), "mode": "copy"}}
    monkeypatch.setenv("FAIRLEAD_DATA", json.dumps(described))
    monkeypatch.setenv("FAIRLEAD_DATA_DIR", str(tmp_path / "data"))
    assert copying.main() == 0
    assert "beside its files" not in capsys.readouterr().out
    path = data_of(os.environ, "t").path
    (path / "processed.cache").write_text("of a program")
    assert copying.main() == 0
    assert "processed.cache beside its files is not of this version" in capsys.readouterr().out


def test_a_copy_in_a_directory_replaces_files_of_another_version(tmp_path: Path) -> None:
    for text, version in (("one!", "a"), ("two!", "b")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "x.txt").write_text(text)
        Data(a_source(tmp_path / version, tmp_path)).copy_to(tmp_path / "pulled")
    assert (tmp_path / "pulled" / "x.txt").read_text() == "two!"


def test_parquet_rows_are_samples_by_column(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    (tmp_path / "files").mkdir()
    for number in range(2):
        table = arrow.table({"id": list(range(number * 50, number * 50 + 50)), "text": ["word " * 9] * 50})
        parquet.write_table(table, tmp_path / "files" / f"{number}.parquet", row_group_size=20)
    rows = [row for batch in Data(a_source(tmp_path / "files", tmp_path)).batches(16) for row in batch]
    assert sorted(row["id"] for row in rows) == list(range(100))
    assert rows[0]["text"] == "word " * 9


class CountingStore(FolderStore):
    """Files that count how often their bytes were read."""

    num_bytes = 0

    def get(self, entry: Entry, start: int, stop: int) -> bytes:
        type(self).num_bytes += stop - start
        return super().get(entry, start, stop)


def test_all_ranks_and_later_runs_read_the_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "open_data", lambda url, credentials, profile: CountingStore(url))
    CountingStore.num_bytes = 0
    source = a_source(folder(tmp_path / "files"), tmp_path)
    ranks = [Data(source, rank=rank, world_size=4).batches(8, epochs=2) for rank in range(4)]
    for _ in zip(*ranks, strict=True):
        pass
    assert CountingStore.num_bytes == sum(entry.size for entry in FolderStore(source.url).entries())


def test_a_bundle_that_is_here_is_stored_although_its_reader_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = caching.FetchClaim.write

    def slow_write(claim: caching.FetchClaim, *arguments: Any) -> Any:
        time.sleep(0.2)
        return write(claim, *arguments)

    monkeypatch.setattr(caching.FetchClaim, "write", slow_write)
    monkeypatch.setattr(reader, "open_data", lambda url, credentials, profile: CountingStore(url))
    source = a_source(folder(tmp_path / "files"), tmp_path)
    for _ in range(2):
        CountingStore.num_bytes = 0
        data = Data(source)
        for _ in data.batches(8):
            pass
        data.close()
    assert CountingStore.num_bytes == 0


def test_a_cache_without_room_reads_past_itself(tmp_path: Path) -> None:
    source = a_source(folder(tmp_path / "files"), tmp_path, limit=5_000_000)
    assert len(keys(Data(source).batches(8, epochs=2))) == 2 * NUM_FILES // 8
    stored = [
        path for path in (tmp_path / "data" / "bundles").rglob("*") if path.is_file() and path.stat().st_size > 4096
    ]
    assert sum(path.stat().st_size for path in stored) < 5_100_000


def test_a_damaged_page_is_fetched_again(tmp_path: Path) -> None:
    source = a_source(folder(tmp_path / "files"), tmp_path)
    before = list(Data(source).batches(8))
    for path in (tmp_path / "data" / "bundles").rglob("*"):
        if path.is_file() and path.suffix == "":
            content = bytearray(path.read_bytes())
            content[100] ^= 1
            path.write_bytes(content)
    assert list(Data(source).batches(8)) == before


def test_the_right_to_fetch_ends_with_its_process(tmp_path: Path) -> None:
    cache = BundleCache(tmp_path / "bundles", "0" * 16, 1_000_000)
    holder = (
        "import os, sys\nfrom pathlib import Path\nfrom fairlead.runtime.data.cache import BundleCache\n"
        f"claim = BundleCache(Path({str(tmp_path / 'bundles')!r}), '0' * 16, 1000000).claim('a' * 32)\n"
        "assert claim is not None\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cache.claim("a" * 32) is None
        process.kill()
    claim = cache.claim("a" * 32)
    assert claim is not None
    assert claim.write(b"bytes")
    opened = cache.open("a" * 32)
    assert opened is not None
    assert opened.read(0, 5) == b"bytes"
    assert [path.name for path in (tmp_path / "bundles" / ("0" * 16)).iterdir()] == ["a" * 32]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def time(self) -> float:
        return self.now

    monotonic = time


def store_in(cache: BundleCache, name: str) -> bool:
    """Fetch 400 bytes of nothing into a cache; return whether they were stored."""
    claim = cache.claim(name * 32)
    assert claim is not None
    return claim.write(bytes(400)) is not None


def test_versions_that_are_read_more_push_out_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(caching, "time", clock)
    old, new = (BundleCache(tmp_path, digit * 16, 1_000) for digit in "12")
    assert store_in(old, "a")
    assert store_in(old, "b")
    clock.now += 10
    old.note(1_000)
    assert not store_in(new, "c"), "what came first stays"
    clock.now += 100
    new.note(1_000_000)
    assert store_in(new, "c"), "it is read more"
    assert sum(old.open(name * 32) is not None for name in "ab") == 1
    clock.now += 1_000
    assert store_in(old, "a" if old.open("a" * 32) is None else "b"), "the other has no reader any more"
    assert new.open("c" * 32) is None


def test_a_changed_object_is_named_and_never_served(tmp_path: Path) -> None:
    root = folder(tmp_path / "files")
    data = Data(a_source(root, tmp_path))
    assert data.version
    (root / "class-0" / "003.jpg").write_bytes(b"other")
    with pytest.raises(DataChanged, match=r"class-0/003\.jpg of .* was changed since its version was recorded"):
        list(data.batches(NUM_FILES))


def test_a_position_of_another_version_is_refused(tmp_path: Path) -> None:
    root = folder(tmp_path / "files")
    data = Data(a_source(root, tmp_path))
    next(data.batches(8))
    state = data.state_dict()
    (root / "class-0" / "003.jpg").write_bytes(b"other")
    with pytest.raises(CheckpointMismatch, match="trained on version"):
        Data(a_source(root, tmp_path)).load_state_dict(state)


def test_a_version_is_the_hash_of_names_sizes_and_etags() -> None:
    entries = [Entry("b", 2, "x"), Entry("a", 1, "y"), Entry("folder/", 0, "z")]
    manifest = make(entries, None, "s3://bucket")
    assert [entry.key for entry in manifest.entries] == ["a", "b"]
    assert manifest.version == make(reversed(entries), None, "s3://bucket").version
    assert manifest.version != DataManifest([Entry("a", 1, "y"), Entry("b", 2, "w")]).version
    with pytest.raises(Misuse, match="none of the 2 objects"):
        make(entries, "*.tar", "s3://bucket")
    with pytest.raises(Misuse, match="leads out of its directory"):
        make([Entry("../../etc/passwd", 1, "x")], None, "s3://bucket")


def test_what_is_no_plain_tar_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.tar").write_bytes(os.urandom(2_000))
    with pytest.raises(Misuse, match=r"a\.tar is not a tar file at byte 0"):
        list(Data(a_source(tmp_path / "files", tmp_path)).batches(1))
    (tmp_path / "files" / "README").write_text("x")
    with pytest.raises(Misuse, match=r'give `include: "\*\.tar"`'):
        list(Data(a_source(tmp_path / "files", tmp_path)).batches(1))


class Files(BaseHTTPRequestHandler):
    """A server of one file, with or without ETags and ranges."""

    content = bytes(range(256)) * 40
    etag: str | None = '"one"'

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        content, span = self.content, self.headers.get("Range")
        if self.etag is not None and self.headers.get("If-Match", self.etag) != self.etag:
            self.send_response(412)
            content = b""
        elif span and body and self.etag is not None:
            first, _, last = span.removeprefix("bytes=").partition("-")
            content = content[int(first) : int(last) + 1]
            self.send_response(206)
        else:
            self.send_response(200)
        if self.etag is not None:
            self.send_header("ETag", self.etag)
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 10:00:00 GMT")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("etag", ['"one"', None])
def test_files_of_an_http_server_are_read_by_ranges_if_it_has_them(etag: str | None) -> None:
    handler = type("Handler", (Files,), {"etag": etag})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    store = open_data(f"http://127.0.0.1:{server.server_port}/{{a,b}}.bin")
    try:
        entries = store.entries()
        assert [(entry.key, entry.size) for entry in entries] == [("a.bin", 10_240), ("b.bin", 10_240)]
        assert store.get(entries[0], 5, 9) == bytes([5, 6, 7, 8])
        if etag is not None:
            handler.etag = '"two"'  # type: ignore[attr-defined]
            with pytest.raises(DataChanged, match=r"a\.bin"):
                store.get(entries[0], 5, 9)
    finally:
        store.close()
        server.shutdown()
        thread.join()
        server.server_close()


class Troubled(Files):
    """A server that is busy, ends a connection within an answer, or closes it after one, now and then."""

    protocol_version = "HTTP/1.1"
    num_requests = 0

    def do_GET(self) -> None:
        cls = type(self)
        cls.num_requests += 1
        if cls.num_requests % 7 == 3:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif cls.num_requests % 7 == 5:
            self.send_response(206)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b"begin")
            self.close_connection = True
        else:
            self.close_connection = cls.num_requests % 7 == 6
            with contextlib.suppress(ConnectionError):  # a reader that has ended
                self._answer(body=True)


def test_samples_arrive_whole_from_a_troubled_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Troubled)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    names = ",".join(f"{number:02}" for number in range(40))
    data = Data(a_source(f"http://127.0.0.1:{server.server_port}/{{{names}}}.bin", tmp_path))
    try:
        samples = [sample for batch in data.batches(8, epochs=2) for sample in batch]
    finally:
        data.close()
        server.shutdown()
        thread.join()
        server.server_close()
    assert sorted({sample["__key__"] for sample in samples}) == names.split(",")
    assert len(samples) == 80
    assert {sample["bin"] for sample in samples} == {Files.content}
    assert 40 <= Troubled.num_requests < 80, "each leaves the server once, but for those that failed"


def test_samples_are_read_over_tls_from_a_server_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    large = type("Handler", (Files,), {"protocol_version": "HTTP/1.1", "content": os.urandom(200_000)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), large)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"https://127.0.0.1:{server.server_port}/{{0..9}}.bin"
    try:
        monkeypatch.setattr(time, "sleep", lambda _: None)
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            open_data(url).entries()
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "authority.pem"))
        http_client._context.cache_clear()
        data = Data(a_source(url, tmp_path))
        samples = [sample["bin"] for batch in data.batches(4) for sample in batch]
        data.close()
    finally:
        http_client._context.cache_clear()
        server.shutdown()
        thread.join()
        server.server_close()
    assert samples == [large.content] * 10  # type: ignore[attr-defined]


def test_a_changed_object_of_a_server_ends_the_batch_with_its_name(tmp_path: Path) -> None:
    handler = type("Handler", (Files,), {"protocol_version": "HTTP/1.1"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    data = Data(a_source(f"http://127.0.0.1:{server.server_port}/{{a,b}}.bin", tmp_path))
    try:
        assert data.version
        handler.etag = '"two"'  # type: ignore[attr-defined]
        with pytest.raises(DataChanged, match=r"[ab]\.bin"):
            list(data.batches(2))
    finally:
        data.close()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_connection_that_opens_while_its_pool_closes_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    store = open_data(f"http://127.0.0.1:{server.server_port}/a.bin")
    assert isinstance(store, HttpStore)
    pool, connections = HttpPool(store), []
    dispatch, open_connection = pool._dispatch, HttpConnection.open

    def opening(connection: HttpConnection) -> Any:
        connections.append(connection)
        return open_connection(connection)

    monkeypatch.setattr(HttpConnection, "open", opening)
    monkeypatch.setattr(pool, "_dispatch", lambda selector: None if pool._opened else dispatch(selector))
    try:
        (entry,) = store.entries()
        pool.submit([(0.0, Transfer(entry, 0, 10, memoryview(bytearray(10)), lambda _: None))])
        until(lambda: pool._opened, "a connection that nothing was sent on")
        pool.close()
        assert [connection._socket for connection in connections] == [None] * len(connections)
    finally:
        store.close()
        server.shutdown()
        thread.join()
        server.server_close()


def test_braces_name_several_files() -> None:
    assert expand("https://h/{08..10}.tar") == ["https://h/08.tar", "https://h/09.tar", "https://h/10.tar"]
    with pytest.raises(Misuse, match="more than 100000"):
        open_data("https://h/{0..999999}.tar")


def test_an_unreachable_server_is_named() -> None:
    with pytest.raises(StoreUnavailable, match=r"http://127\.0\.0\.1:1 cannot be reached: .*refused"):
        open_data("http://127.0.0.1:1/a.tar").entries()


def test_a_real_s3_server_takes_the_signatures_and_conditions(s3: S3, tmp_path: Path) -> None:
    import s3fs

    system = s3fs.S3FileSystem()
    for name in ("a/1 +é.txt", "a/2.txt", "3.txt"):
        system.pipe(f"models/set/{name}", name.encode() * 100)
    data = Data(a_source("s3://models/set", tmp_path))
    assert data.files() == ["3.txt", "a/1 +é.txt", "a/2.txt"]
    assert [len(sample["txt"]) for batch in data.batches(1, shuffle=False) for sample in batch] != []
    assert (data.path / "a" / "1 +é.txt").read_bytes() == "a/1 +é.txt".encode() * 100
    system.pipe("models/set/a/2.txt", b"other" * 140)
    with pytest.raises(DataChanged, match=r"a/2\.txt of s3://models/set was changed"):
        data.read("a/2.txt")
    data.close()
    one = Data(a_source("s3://models/set/3.txt", tmp_path))
    assert one.read("3.txt") == b"3.txt" * 100
    one.close()
    for url, message in (
        ("s3://absent/set", "there is no bucket absent at http://127"),
        ("s3://models/none", "has no objects"),
    ):
        with pytest.raises(Misuse, match=message):
            assert Data(a_source(url, tmp_path)).version


def test_a_wrong_key_is_named_by_its_error_alone(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    store = open_data("s3://models/set")
    with pytest.raises(StoreUnavailable, match="does not know these credentials") as caught:
        store.entries()
    store.close()  # type: ignore[attr-defined, unused-ignore]
    assert "not-the-secret" not in str(caught.value)


def test_the_spec_decides_before_the_arguments(tmp_path: Path) -> None:
    environ = {
        "FAIRLEAD_DATA": json.dumps({"train": {"from": str(tmp_path), "mode": "mount"}}),
        "FAIRLEAD_DATA_DIR": str(tmp_path / "data"),
    }
    assert data_of(environ, "train", "s3://elsewhere").path == tmp_path
    with pytest.raises(Misuse, match="the spec has train; add"):
        data_of(environ, "val")
    with pytest.raises(Misuse, match="FAIRLEAD_DATA_CACHE is 'lots'; give a size"):
        data_of({**environ, "FAIRLEAD_DATA_CACHE": "lots"}, "train")


@pytest.mark.torch
@pytest.mark.parametrize("made", [folder, shards])
def test_a_loader_of_torch_goes_on_after_the_batches_that_it_yielded(made: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[torch]'")
    source = a_source(made(tmp_path / "files"), tmp_path)
    whole = keys(Data(source).batches(8, epochs=2))
    first = Data(source)
    yielded = keys(first.loader(8, epochs=2, workers=2), most=5)
    rest = Data(source)
    rest.load_state_dict(first.state_dict())
    assert yielded + keys(rest.loader(8, epochs=2)) == whole
