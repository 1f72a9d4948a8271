"""The spec of a data set with a name: its versions, who may use it, and what is refused."""

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.data import DataSource
from fairlead.specs.dataset import Dataset, DatasetVersion, select
from fairlead.specs.formats.reading import parse

BASE = "kind: Dataset\nname: imagenet\nfrom: s3://bucket/imagenet\n"


def test_the_newest_version_is_the_last_in_natural_order() -> None:
    (dataset,) = parse(BASE + "versions: {v9: s3://a/b, v10: {version: 0123456789abcdef}}\n")
    assert isinstance(dataset, Dataset)
    assert dataset.newest == "v10"
    assert dataset.source() == dataset.source("latest") == DataSource(
        origin="s3://bucket/imagenet", version="0123456789abcdef", dataset="imagenet@v10"
    )  # fmt: skip
    assert dataset.source("v9") == DataSource(origin="s3://a/b", dataset="imagenet@v9")
    with pytest.raises(KeyError):
        dataset.source("v11")


def test_a_pushed_version_is_in_a_folder_of_its_name() -> None:
    dataset = Dataset(name="imagenet", origin="s3://bucket/imagenet/").pushed("2026-11", "0123456789abcdef")
    assert dataset.versions == {
        "2026-11": DatasetVersion(origin="s3://bucket/imagenet/2026-11", version="0123456789abcdef")
    }


def test_a_team_gets_its_own_before_one_that_is_shared_with_it() -> None:
    own, shared, other = (
        Dataset(name="a", origin=f"s3://{team}/a", team=team, share=() if team == "vision" else ("vision",))
        for team in ("vision", "speech", "text")
    )
    assert select([other, own, shared], "a", "vision") == own
    assert select([other, own, shared], "speech/a", "vision") == shared
    assert select([shared], "b", "vision") is None
    with pytest.raises(ValueError, match="several teams share a Dataset a; give speech/a or text/a"):
        select([shared, other], "a", "vision")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("versions: {latest: s3://a/b}\n", "`latest` is the newest one by itself"),
        ("versions: {2026/11: s3://a/b}\n", "is not a name of a version"),
        ("versions: {a: {version: abc}}\n", "is not a version"),
        ("versions: {a: ss://b/c}\n", "has an unknown scheme"),
        ("share: [default]\n", "is its own team"),
        ("profile: p\ncredentials: c\n", "either in a secret"),
        ("sahre: [vision]\n", "did you mean `share`"),
    ],
)
def test_what_no_run_could_use_is_refused(more: str, problem: str) -> None:
    with pytest.raises(InvalidSpec, match=problem):
        parse(BASE + more)


def test_a_claim_is_shared_with_nobody_and_a_dataset_is_no_place() -> None:
    with pytest.raises(InvalidSpec, match="a claim is in the namespace of its team"):
        parse("kind: Dataset\nname: a\nfrom: pvc://tokens\nshare: [vision]\n")
    with pytest.raises(InvalidSpec, match="is a Dataset itself"):
        parse("kind: Dataset\nname: a\nfrom: imagenet@2026-11\n")
