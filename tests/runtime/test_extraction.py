import gzip
import io
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.control.pipelines.artefacts import content_digest
from fairlead.runtime import extraction
from fairlead.runtime.extraction import InvalidArchive, archive_digest, extract, read_files

MOST = 1 << 20
OUTSIDE = "must stay as it is"


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def directory(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=0o755)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=kind, linkname=target)


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return io.BytesIO(buffer.getvalue())


def unpacked(archive: io.BytesIO) -> None:
    """Extract below a directory, and check that nothing beside it was touched."""
    with TemporaryDirectory() as place:
        beside = Path(place, "beside")
        beside.write_text(OUTSIDE)
        try:
            extract(archive, Path(place, "goal"), links=True)
        finally:
            assert sorted(os.listdir(place)) == ["beside", "goal"]
            assert beside.read_text() == OUTSIDE
            for path in Path(place, "goal").rglob("*"):
                assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(Path(place, "goal")))


WAYS: tuple[Callable[[io.BytesIO], object], ...] = (
    unpacked,
    lambda archive: read_files(archive, most_bytes=MOST),
    lambda archive: archive_digest(archive, most_bytes=MOST),
)
HOSTILE = {
    "absolute": [member("/tmp/fairlead-x", b"x")],
    "parent": [member("../beside", b"x")],
    "parent within": [member("a/../../beside", b"x")],
    "nul": [member("a\0b", b"x", pax_headers={"path": "a\0b"})],
    "long": [member("x" * 300, b"x")],
    "deep": [member("a/" * 2500 + "x", b"x")],
    "device": [member("a", type=tarfile.CHRTYPE)],
    "block device": [member("a", type=tarfile.BLKTYPE)],
    "fifo": [member("a", type=tarfile.FIFOTYPE)],
    "hard link": [member("content/a", b"x"), link("content/b", "content/a", tarfile.LNKTYPE)],
    "hard link outside": [link("content/b", "../beside", tarfile.LNKTYPE)],
    "link outside": [link("content/a", "../../beside")],
    "link to its neighbour": [link("content/a", "../other")],
    "absolute link": [link("content/a", "/etc/passwd")],
    "link by way of a link": [link("content/d/l", "../e"), link("content/o", "d/l/../../.."), directory("content/e")],
    "lone link": [link("content", "beside")],
    "empty link": [link("content/a", "")],
    "unknown type": [member("a", type=b"Z")],
    "sparse": [member("a", b"x", pax_headers={"GNU.sparse.size": "9", "GNU.sparse.map": "0,1"})],
    "negative": [member("a", pax_headers={"size": "-512"})],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.parametrize("way", WAYS, ids=["extract", "read", "digest"])
def test_a_member_that_leads_elsewhere_or_is_special_is_refused(name: str, way: Callable[[io.BytesIO], object]) -> None:
    with pytest.raises(InvalidArchive) as caught:
        way(packed(*HOSTILE[name]))
    assert len(str(caught.value)) < 250


def test_nothing_is_written_through_a_link() -> None:
    with pytest.raises(InvalidArchive):
        unpacked(
            packed(directory("content"), link("content/l", "d"), member("content/l/x", b"x"), directory("content/d"))
        )
    with pytest.raises(InvalidArchive):
        unpacked(packed(link("content/l", "d"), directory("content/l")))


def test_a_link_on_the_disk_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "goal").mkdir()
    (tmp_path / "goal" / "l").symlink_to(tmp_path / "beside")
    with pytest.raises(InvalidArchive):
        extract(packed(member("l/x", b"x")), tmp_path / "goal")
    (tmp_path / "goal" / "f").symlink_to(tmp_path / "beside" / "f")
    extract(packed(member("f", b"x")), tmp_path / "goal")
    assert os.listdir(tmp_path / "beside") == []
    assert not (tmp_path / "goal" / "f").is_symlink()


def test_links_are_refused_unless_they_are_allowed(tmp_path: Path) -> None:
    archive = packed(member("content/a", b"x"), link("content/b", "a"))
    with pytest.raises(InvalidArchive, match="is a link"):
        extract(archive, tmp_path / "goal")
    archive.seek(0)
    extract(archive, tmp_path / "other", links=True)
    assert (tmp_path / "other/content/b").read_bytes() == b"x"


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = io.BytesIO(gzip.compress(packed(member("a", bytes(MOST + 1))).getvalue()))
    assert len(bomb.getvalue()) < 10_000
    for way in WAYS[1:]:
        bomb.seek(0)
        with pytest.raises(InvalidArchive, match="no room"):
            way(bomb)
    monkeypatch.setattr(extraction, "MOST_MEMBERS", 10)
    for way in WAYS:
        with pytest.raises(InvalidArchive, match="more than 10 members"):
            way(packed(*(member(f"content/{number}") for number in range(11))))


def test_an_archive_for_which_the_disk_has_no_room_is_refused_before_it_is_written(tmp_path: Path) -> None:
    archive = io.BytesIO(packed(member("a", b"")).getvalue())
    header = tarfile.TarInfo("a")
    header.size = 1 << 60
    archive = io.BytesIO(header.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(InvalidArchive, match="no room"):
        extract(archive, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("record", [b"1" * 100_000, b"9" * 15_000, b"5000000 path=x\n"])
def test_headers_that_take_memory_or_time_are_refused(record: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    content = header.tobuf(tarfile.USTAR_FORMAT) + record + bytes(-len(record) % 512)
    chain = io.BytesIO(content * 3 + packed(member("a")).getvalue())
    with pytest.raises(InvalidArchive):
        read_files(chain, most_bytes=MOST)


def test_an_archive_is_unpacked_as_it_was_packed(tmp_path: Path) -> None:
    source = tmp_path / "content"
    (source / "empty").mkdir(parents=True)
    (source / "sub/é").mkdir(parents=True)
    (source / "sub/é/weights.bin").write_bytes(os.urandom(3 << 20))
    (source / "run.sh").write_text("true")
    (source / "run.sh").chmod(0o755)
    (source / "latest").symlink_to("sub/é/weights.bin")
    (source / "sub/up").symlink_to("../run.sh")
    with (tmp_path / "packed").open("w+b") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(source, "content")
        file.seek(0)
        digest = archive_digest(file, most_bytes=1 << 30)
        file.seek(0)
        extract(file, tmp_path / "goal", links=True)
    assert digest == content_digest(source) == content_digest(tmp_path / "goal/content")


TEXT = st.sampled_from(["a", "b", "..", ".", "", "content", "é", "\udcff", "C:", "..\\", "x" * 256, "/"])
NAMES = st.lists(TEXT, max_size=4).map("/".join) | st.text(max_size=8)
TYPES = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE,
                         tarfile.FIFOTYPE, tarfile.CONTTYPE, b"Q"])  # fmt: skip


@st.composite
def archives(draw: st.DrawFn) -> io.BytesIO:
    found = []
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(TYPES)
        content = draw(st.binary(max_size=20)) if kind in (tarfile.REGTYPE, tarfile.CONTTYPE) else b""
        found.append(member(draw(NAMES), content, type=kind, linkname=draw(NAMES), mode=draw(st.integers(0, 0o7777))))
    with suppress(UnicodeError):
        return packed(*found)
    return packed()


@settings(max_examples=150, deadline=None)
@given(archives(), st.sampled_from(WAYS))
def test_any_archive_is_unpacked_below_its_directory_or_refused(
    archive: io.BytesIO, way: Callable[[io.BytesIO], object]
) -> None:
    with suppress(InvalidArchive):
        way(archive)


def _mutants() -> Iterator[bytes]:
    good = packed(directory("content"), member("content/a", b"x" * 700), link("content/l", "a")).getvalue()
    choose = random.Random(1)
    for _ in range(400):
        data = bytearray(good)
        for _ in range(choose.randint(1, 6)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        data = data[: choose.randrange(len(data))] if choose.random() < 0.3 else data
        yield gzip.compress(data)[: choose.randrange(20, 400)] if choose.random() < 0.2 else bytes(data)


def test_damaged_archives_are_refused_by_one_error() -> None:
    refused = 0
    for data in _mutants():
        for way in WAYS:
            try:
                way(io.BytesIO(data))
            except InvalidArchive:
                refused += 1
    assert refused > 300
