"""ImageNet's folders in a bucket, read by the keys of the environment: labels are folders, and no key is written."""

import random
from pathlib import Path

import pytest

from fairlead.control.data import upload_directory
from tests.cli.conftest import Call
from tests.data_situations import IMAGES, PROGRAM, forms, leaks
from tests.s3 import KEY, S3, SECRET, s3, s3_binary

__all__ = ["s3", "s3_binary"]
CHECK = """
    labels = {}
    for sample in samples:
        label = sample["__key__"].partition("/")[0]
        labels[label] = labels.get(label, 0) + 1
        assert label.encode() in sample["JPEG"], sample["__key__"]
    assert labels == {"n01440764": 6, "n01443537": 6, "n02102040": 6}, labels
"""


@pytest.mark.slow
def test_folders_of_images_in_a_bucket_are_read_once_and_no_key_is_written(process: Call, desk: Path, s3: S3) -> None:
    draw = random.Random(1)
    for label in ("n01440764", "n01443537", "n02102040"):
        for number in range(6):
            path = Path("imagenet", label, f"{label}_{number}.JPEG")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(label.encode() + draw.randbytes(3000))
    upload_directory(Path("imagenet"), "s3://models/imagenet")
    Path("train.py").write_text(PROGRAM.replace("    CHECK\n", CHECK))
    Path("train.yaml").write_text(IMAGES)
    said = [process(*words) for words in (
        ("plan", "train.yaml"), ("run", "train.yaml"), ("run", "train.yaml", "--name", "again"),
        ("show", "images"), ("events", "images", "--json"), ("logs", "images"), ("data", "versions"),
        ("render", "--pods", "train.yaml", "--set", "image=python:3.12"),
    )]  # fmt: skip
    assert [answer.err for answer in said[:-1] if answer.code] == []
    assert "18 objects" in said[0].out
    assert [answer.out.count("read 18 samples of version") for answer in said[1:3]] == [1, 1]
    assert [form for answer in said for form in forms((KEY, SECRET)) if form in answer.out + answer.err] == []
    assert leaks(desk, (KEY, SECRET), besides=[s3.directory]) == []
