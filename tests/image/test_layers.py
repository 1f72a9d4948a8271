"""Layers are the same bytes for the same files, and nothing of the machine that made them is in them."""

import gzip
import hashlib
import tarfile
import zipfile
from pathlib import Path

from fairlead.control.image.layers import LayerFile, make_layer
from fairlead.control.image.packages import unpack

FILES = {
    "/opt/fairlead/b.py": LayerFile(content=b"b"),
    "/opt/fairlead/a/__init__.py": LayerFile(content=b""),
    "/usr/local/bin/fairlead": LayerFile(content=b"#!", is_executable=True),
}


def test_the_same_files_make_the_same_bytes_in_whatever_order_they_come(tmp_path: Path) -> None:
    made = []
    for index, files in enumerate((FILES, dict(reversed(FILES.items())))):
        place = tmp_path / str(index)
        place.mkdir()
        made.append(make_layer(files, "/opt/fairlead", place))
    assert made[0].blob.digest == made[1].blob.digest
    data = made[0].blob.fetch().read_bytes()
    assert made[0].blob.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert made[0].blob.size == len(data)
    assert made[0].diff_id == f"sha256:{hashlib.sha256(gzip.decompress(data)).hexdigest()}"
    assert data[4:8] == bytes(4)  # the time in gzip's header


def test_entries_are_sorted_of_root_and_of_no_time(tmp_path: Path) -> None:
    layer = make_layer(FILES, "/opt/fairlead", tmp_path)
    with tarfile.open(layer.blob.fetch()) as tar:
        entries = tar.getmembers()
    assert [(each.name, each.mode) for each in entries] == [
        ("opt/fairlead", 0o755),
        ("opt/fairlead/a", 0o755),
        ("opt/fairlead/a/__init__.py", 0o644),
        ("opt/fairlead/b.py", 0o644),
        ("usr/local/bin/fairlead", 0o755),
    ]
    assert {(each.uid, each.gid, each.uname, each.gname, each.mtime) for each in entries} == {(0, 0, "", "", 0)}


def test_a_wheel_is_unpacked_to_where_python_looks_and_nowhere_else(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (
            "x/__init__.py", "x-1.dist-info/METADATA", "x-1.data/purelib/y.py", "x-1.data/platlib/z.so",
            "x-1.data/scripts/x", "x-1.data/headers/x.h", "../outside.py", "/absolute.py", "x/../../up.py",
        ):  # fmt: skip
            archive.writestr(name, name)
    assert sorted(unpack(wheel)) == ["x-1.dist-info/METADATA", "x/__init__.py", "y.py", "z.so"]
