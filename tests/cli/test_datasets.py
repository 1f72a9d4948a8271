"""Datasets of this machine: stored by `apply`, used by runs, pushed in versions, removed."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.home import Home
from fairlead.control.data import locate
from fairlead.control.datasets import apply_dataset
from fairlead.control.opening import open_local
from fairlead.errors import InvalidSpec
from fairlead.specs.data import DataMode, DataSource
from fairlead.specs.dataset import Dataset, DatasetVersion
from tests.cli.conftest import Call
from tests.s3 import S3, s3, s3_binary

__all__ = ["s3", "s3_binary"]


def files(root: Path, seed: int = 1, count: int = 4) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (root / f"{number}.jpg").write_bytes(random.Random(seed + number).randbytes(1000))
    return root


def test_a_name_stands_for_the_place_the_hash_and_the_keys_of_a_version(tmp_path: Path) -> None:
    dataset = Dataset(
        name="imagenet", origin="s3://b/i", credentials="reader", team="vision", share=("speech",),
        versions={"1": DatasetVersion(origin="s3://b/i/1", version="0123456789abcdef")},
    )  # fmt: skip
    wanted = DataSource(origin="imagenet@1", mode=DataMode.STREAM, credentials="own")
    source = locate("t", wanted, "speech", tmp_path, lambda team: [dataset])
    assert source == DataSource(
        origin="s3://b/i/1", version="0123456789abcdef", mode=DataMode.STREAM, credentials="own", dataset="imagenet@1"
    )
    mistakes: list[tuple[str, dict[str, Any], str]] = [
        ("imagenet@2", {}, "the Dataset imagenet has no version 2; there are 1"),
        ("imagent@1", {}, "there is no Dataset imagent of team vision or shared with it; there are imagenet"),
        ("imagenet@1", {"include": "*.tar"}, "`include` is the Dataset's own, and it has none; leave it out"),
        ("imagenet@1", {"version": "f" * 16}, "`version` is the Dataset's own, 0123456789abcdef; leave it out"),
    ]
    for reference, more, problem in mistakes:
        with pytest.raises(InvalidSpec, match=problem):
            locate("t", DataSource(origin=reference, **more), "vision", tmp_path, lambda team: [dataset])
    files(tmp_path / "imagenet")
    with pytest.raises(InvalidSpec, match=r"a directory here and a Dataset too; give ./imagenet, or imagenet@latest"):
        locate("t", DataSource(origin="imagenet"), "vision", tmp_path, lambda team: [dataset])
    assert locate("t", DataSource(origin="./imagenet"), "vision", tmp_path, lambda team: [dataset]).dataset is None


def test_another_team_sees_only_what_is_shared_with_it(desk: Path) -> None:
    cluster = open_local()
    for name, share in (("open", ("speech",)), ("closed", ())):
        apply_dataset(cluster, Dataset(name=name, origin=str(desk), team="vision", share=share), desk)
    assert [dataset.name for dataset in cluster.datasets("speech")] == ["open"]
    assert [dataset.name for dataset in cluster.datasets("vision")] == ["closed", "open"]
    assert cluster.datasets("text") == ()


def test_applying_again_keeps_the_versions_that_were_pushed(desk: Path) -> None:
    cluster = open_local()
    dataset = Dataset(name="a", origin="s3://b/a", versions={"1": DatasetVersion()})
    assert apply_dataset(cluster, dataset, desk)[0] == "applied"
    assert apply_dataset(cluster, dataset, desk)[0] == "none"
    (stored,) = cluster.datasets()
    cluster.store_dataset(stored.pushed("2", "0123456789abcdef"), stored)
    assert apply_dataset(cluster, dataset, desk)[0] == "none"
    assert [*cluster.datasets()[0].versions] == ["1", "2"]


def test_a_preloaded_dataset_is_in_the_cache_once_it_is_applied(call: Call) -> None:
    files(Path("images"))
    Path("images.yaml").write_text("kind: Dataset\nname: set\nfrom: images\npreload: true\n")
    assert call("apply", "images.yaml").code == 0
    assert json.loads(call("data", "versions", "--json").out)[0]["cached_bytes"] == 4000
    assert call("apply", "images.yaml").err.startswith("Unchanged: Dataset set: ")


def test_versions_are_pushed_listed_used_and_removed(call: Call, s3: S3) -> None:
    Path("set.yaml").write_text("kind: Dataset\nname: set\nfrom: s3://models/set\n")
    assert call("apply", "set.yaml").code == 0
    files(Path("one"))
    pushed = call("data", "push", "one", "set@2026-11")
    assert pushed.out.startswith("4 files uploaded to s3://models/set/2026-11; set@2026-11 is version "), pushed.err
    assert call("data", "push", "one", "set@2026-11").code != 0
    files(Path("one"), seed=50)
    assert call("data", "push", "one", "set@2026-12").code == 0
    listed = json.loads(call("data", "versions", "set", "--json").out)
    assert listed["newest"] == "2026-12"
    hashes = {name: known["version"] for name, known in listed["versions"].items()}
    assert len(set(hashes.values())) == 2
    source = locate("t", DataSource(origin="set"), "default", Path.cwd(), open_local().datasets)
    assert (source.version, source.dataset) == (hashes["2026-12"], "set@2026-12")
    assert json.loads(call("data", "ls", "set@2026-11", "--json").out)["version"] == hashes["2026-11"]
    assert call("data", "pull", "set@2026-11", "back").code == 0
    assert sorted(path.name for path in Path("back").iterdir()) == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert call("data", "rm", "set@2026-12").code == 0
    assert call("data", "rm", "set").code == 0
    assert open_local().datasets() == ()
    assert call("data", "ls", "set").code != 0


def test_a_file_that_is_no_dataset_is_named(call: Call) -> None:
    home = Home.open()
    home.datasets.mkdir()
    (home.datasets / "default.a.json").write_text('{"spec": "{}"}')
    answer = call("data", "ls")
    assert answer.code != 0
    assert "default.a.json is no Dataset: " in answer.err
