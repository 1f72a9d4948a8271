"""Outputs of steps are content: what a link leads to, never the link; and files and directories alone."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.control.pipelines.artefacts import Artefacts, SharedArtefacts, content_digest
from fairlead.runtime.extraction import archive_digest
from fairlead.runtime.self_contained import UnfitOutput, make_self_contained
from fairlead.runtime.step_files import pack, send_returned


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "runs"
    place.mkdir()
    (place / "best.ckpt").write_text("weights")
    (place / "more").mkdir()
    (place / "more" / "a.txt").write_text("a")
    (place / "more" / "link").symlink_to("../best.ckpt")
    return place


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "outputs" / "model"


def made(output: Path) -> Path:
    output.mkdir(parents=True)
    return output


def test_an_output_that_is_a_link_is_stored_as_what_it_leads_to(output: Path, outside: Path, tmp_path: Path) -> None:
    output.parent.mkdir()
    output.symlink_to(outside / "best.ckpt")
    store = Artefacts(tmp_path / "store")
    digest = store.keep(output)
    (outside / "best.ckpt").write_text("weights of another experiment")
    assert digest == content_digest(store.path(digest))
    assert not store.path(digest).is_symlink()
    assert store.path(digest).read_text() == "weights"
    assert not output.exists()


def test_a_link_to_a_directory_brings_its_files_and_what_they_lead_to(output: Path, outside: Path) -> None:
    output.parent.mkdir()
    output.symlink_to(outside / "more")
    make_self_contained(output)
    assert sorted(os.listdir(output)) == ["a.txt", "link"]
    assert not (output / "link").is_symlink()
    assert (output / "link").read_text() == "weights"
    assert (outside / "more" / "link").is_symlink()
    assert os.listdir(output.parent) == ["model"]


def test_links_within_an_output_stay_relative_ones(output: Path, tmp_path: Path) -> None:
    made(output)
    (output / "blobs").mkdir()
    (output / "blobs" / "1").write_text("one")
    (output / "snapshots").mkdir()
    (output / "snapshots" / "w").symlink_to("../blobs/1")
    (output / "absolute").symlink_to(output / "blobs" / "1")
    (output / "by way of another").symlink_to("snapshots/../snapshots/w")
    make_self_contained(output)
    links = {path.name: os.readlink(path) for path in output.rglob("*") if path.is_symlink()}
    assert links == {"w": "../blobs/1", "absolute": "blobs/1", "by way of another": "blobs/1"}
    with (tmp_path / "packed").open("w+b") as file:
        pack(output, file)
        file.seek(0)
        assert archive_digest(file, most_bytes=1 << 20) == content_digest(output)


def dangling(output: Path, _: Path) -> None:
    (made(output) / "l").symlink_to("nowhere")


def dangling_itself(output: Path, _: Path) -> None:
    output.parent.mkdir()
    output.symlink_to("nowhere")


def to_itself(output: Path, _: Path) -> None:
    (made(output) / "l").symlink_to("l")


def to_a_directory_above(output: Path, _: Path) -> None:
    (made(output) / "l").symlink_to("../..")


def in_a_circle(output: Path, outside: Path) -> None:
    (outside / "more" / "back").symlink_to("..")
    (made(output) / "l").symlink_to(outside / "more")


def a_fifo(output: Path, _: Path) -> None:
    os.mkfifo(made(output) / "f")


def a_fifo_by_a_link(output: Path, outside: Path) -> None:
    os.mkfifo(outside / "f")
    (made(output) / "l").symlink_to(outside / "f")


def a_socket(output: Path, _: Path) -> None:
    place = os.getcwd()
    os.chdir(made(output))
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind("s")
    finally:
        os.chdir(place)


def a_device(output: Path, _: Path) -> None:
    (made(output) / "l").symlink_to("/dev/zero")


def more_than_the_disk_holds(output: Path, outside: Path) -> None:
    with (outside / "sparse").open("wb") as file:
        file.truncate(1 << 43)
    (made(output) / "l").symlink_to(outside / "sparse")


Make = Callable[[Path, Path], None]
UNFIT: dict[Make, str] = {
    dangling: "model/l is a link to nowhere, where nothing is",
    dangling_itself: "model is a link to nowhere, where nothing is",
    to_itself: "model/l is a link to l, where nothing is",
    to_a_directory_above: "which holds the output itself",
    in_a_circle: "leads back to a directory above it",
    a_fifo: "model/f is a FIFO; outputs are files and directories",
    a_fifo_by_a_link: "model/l is a FIFO",
    a_socket: "model/s is a socket",
    a_device: "model/l is a device",
    more_than_the_disk_holds: "for which there is no room",
}


@pytest.mark.parametrize("make", UNFIT, ids=lambda make: make.__name__)
def test_what_cannot_be_stored_is_refused_with_a_sentence(
    make: Make, output: Path, outside: Path, tmp_path: Path
) -> None:
    make(output, outside)
    with pytest.raises(UnfitOutput) as caught:
        Artefacts(tmp_path / "store").keep(output)
    assert UNFIT[make] in str(caught.value)
    assert not list((tmp_path / "store").rglob("*/*"))
    assert not [path for path in output.parent.rglob("*") if path.name.endswith(".copied")]


def test_on_a_volume_a_link_that_leads_out_is_refused(output: Path, outside: Path, tmp_path: Path) -> None:
    (made(output) / "l").symlink_to(outside / "best.ckpt")
    with pytest.raises(UnfitOutput, match="outside of the output; copy what is there"):
        SharedArtefacts(tmp_path / "store").keep(output)


def test_a_link_that_an_earlier_version_stored_is_not_found(output: Path, outside: Path, tmp_path: Path) -> None:
    store = Artefacts(tmp_path / "store")
    place = store.path("ab" * 32)
    place.parent.mkdir()
    place.symlink_to(outside / "best.ckpt")
    assert not store.has("ab" * 32)


def test_a_pod_returns_what_its_links_lead_to(output: Path, outside: Path, tmp_path: Path) -> None:
    output.parent.mkdir()
    output.symlink_to(outside / "best.ckpt")
    (tmp_path / "store/returned").mkdir(parents=True)
    send_returned(f"local://{tmp_path}/store", tmp_path, "000000-000000")
    assert not output.is_symlink()
    assert (tmp_path / "store/returned/000000-000000.tar").stat().st_size > 0
