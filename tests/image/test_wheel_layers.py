"""Layers of wheels: the same bytes everywhere, files where an installer has them, and few layers that change."""

import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from fairlead.control.image.layers import Layer
from fairlead.control.image.locks import LockedWheel
from fairlead.control.image.wheel_layers import MOST_LARGE, NUM_SHARED, PREFIX, base_layer, cut, layer_of
from fairlead.errors import ClusterError
from tests.image.environments import PYTHON, locked, packed_wheel

SITE = f"{PREFIX[1:]}/lib/python3.12/site-packages"


def built(wheels: list[Path], directory: Path) -> Layer:
    directory.mkdir(parents=True, exist_ok=True)
    return layer_of([(locked(wheel, ""), wheel) for wheel in wheels], PYTHON, directory)


def entries(layer: Layer) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """The layer as another tar and another gzip than ours read it."""
    plain = gzip.decompress(layer.blob.fetch().read_bytes())
    assert layer.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        return {
            each.name: (each, file.read() if (file := tar.extractfile(each)) is not None else b"")
            for each in tar.getmembers()
            if not each.issym()
        } | {each.name: (each, b"") for each in tar.getmembers() if each.issym()}


def test_the_same_wheels_give_the_same_bytes_without_any_compression_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [packed_wheel(tmp_path / "a", name, "1.0", kib=70) for name in ("fl_one", "fl_two")]

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("its bytes would depend on this zlib")

    monkeypatch.setattr(zlib, "compressobj", refuse)
    monkeypatch.setattr(zlib, "compress", refuse)
    first = built(wheels, tmp_path / "one")
    for wheel in wheels:
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b" / wheel.name).write_bytes(wheel.read_bytes())
    second = built([tmp_path / "b" / wheel.name for wheel in wheels], tmp_path / "two")
    assert (first.blob.digest, first.diff_id) == (second.blob.digest, second.diff_id)
    assert first.blob.size < sum(wheel.stat().st_size for wheel in wheels) + 20_000
    digest = hashlib.sha256(first.blob.fetch().read_bytes()).hexdigest()
    assert first.blob.digest == f"sha256:{digest}"


def test_files_are_where_an_installer_has_them_and_of_no_time_and_user(tmp_path: Path) -> None:
    wheel = packed_wheel(
        tmp_path / "wheels", "fl_one", "1.0",
        data={
            "fl_one-1.0.dist-info/entry_points.txt": "[console_scripts]\nfl-One = fl_one:Main.run [more]\n",
            "fl_one-1.0.data/scripts/tool": "#!python\nprint(1)\n",
            "fl_one-1.0.data/purelib/fl_other.py": "x = 1\n",
            "fl_one-1.0.data/data/share/fl.txt": "text",
            "fl_one/empty.py": "",
        },
    )  # fmt: skip
    content = entries(built([wheel], tmp_path / "built"))
    assert content[f"{SITE}/fl_one.py"][1].startswith(b"VERSION = '1.0'\n")
    assert content[f"{SITE}/fl_other.py"][1] == b"x = 1\n"
    assert content[f"{SITE}/fl_one/empty.py"][1] == b""
    assert content["opt/environment/share/fl.txt"][1] == b"text"
    assert content["opt/environment/bin/tool"][1] == b"#!/opt/environment/bin/python\nprint(1)\n"
    program = content["opt/environment/bin/fl-One"]
    assert b"from fl_one import Main\n" in program[1]
    assert b"sys.exit(Main.run())" in program[1]
    assert program[0].mode == 0o755
    assert {(each.mtime, each.uid, each.gid) for each, _ in content.values()} == {(0, 0, 0)}


def test_the_environment_is_a_virtual_one_on_the_python_of_the_base(tmp_path: Path) -> None:
    layer = base_layer("lock\n", PYTHON, tmp_path)
    content = entries(layer)
    assert content["opt/environment/bin/python"][0].linkname == "/usr/local/bin/python3.12"
    assert b"home = /usr/local/bin\n" in content["opt/environment/pyvenv.cfg"][1]
    assert content["opt/environment/pylock.toml"][1] == b"lock\n"
    assert base_layer("lock\n", PYTHON, tmp_path).blob.digest == layer.blob.digest


@pytest.mark.parametrize("name", ["../outside.py", "/etc/passwd", "fl_one-1.0.data/strange/x"])
def test_a_file_outside_of_its_place_is_refused(tmp_path: Path, name: str) -> None:
    wheel = packed_wheel(tmp_path / "wheels", "fl_one", "1.0", data={name: "x"})
    with pytest.raises(ClusterError, match=r"fl_one-1\.0-py3-none-any\.whl cannot be installed"):
        built([wheel], tmp_path / "built")


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = packed_wheel(tmp_path / "wheels", "fl_one", "1.0", kib=8)
    with zipfile.ZipFile(wheel) as archive:
        place = archive.getinfo("fl_one_data.bin").header_offset + 1_000
    data = bytearray(wheel.read_bytes())
    data[place] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(ClusterError, match=r"fl_one_data\.bin is damaged"):
        built([wheel], tmp_path / "built")


def a_wheel(name: str, version: str = "1", *, mib: float = 0.1) -> LockedWheel:
    return LockedWheel(
        name=name, version=version, url=f"https://e/{name}", sha256=f"{name}{version}", size=int(mib * (1 << 20))
    )


def test_a_change_of_one_wheel_changes_one_layer_and_moves_no_other_wheel() -> None:
    wheels = [a_wheel(f"large-{number}", mib=40) for number in range(30)]
    wheels += [a_wheel(f"small-{number}") for number in range(200)]
    before = set(cut(wheels))
    assert len(before) <= 30 + NUM_SHARED
    for changed in (
        [*wheels[:-1], a_wheel("small-199", "2")],
        [*wheels, a_wheel("small-new")],
        [*wheels[1:], a_wheel("large-0", "2", mib=41)],
        wheels[:-1],
    ):
        assert len(set(cut(changed)) - before) == 1


def test_there_are_never_more_layers_than_an_image_may_have() -> None:
    wheels = [a_wheel(f"w{number}", mib=5 + number) for number in range(300)]
    assert len(cut(wheels)) <= MOST_LARGE + NUM_SHARED
