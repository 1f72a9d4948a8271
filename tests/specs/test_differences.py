"""How two specs differ, key by key, as people read it."""

import pytest

from fairlead.specs.formats.differences import differences
from fairlead.specs.formats.reading import parse
from fairlead.specs.workload import WorkloadSpec


def endpoint(more: str) -> WorkloadSpec:
    (found,) = parse(f"kind: Serving\nname: a\nrun: b\n{more}")
    return found  # type: ignore[return-value]  # a file may have other documents too


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("", "", []),
        ("replicas: 1..3", "replicas: 2..3", ["replicas: 1..3 -> 2..3"]),
        ("replicas: 1..3", "replicas: 1..3\nscale: {concurrency: 9}", ["scale.concurrency: 4 -> 9"]),
        ("", "canary: {}", ["canary: none -> by default"]),
        ("canary: {}", "canary: {within: 2h}", ["canary.within: 1h -> 2h"]),
        ("", "canary: {within: 2h}", ["canary.within: none -> 2h"]),
        ("canary: {within: 2h}", "", ["canary.within: 2h -> none"]),
        ("access: {}", "", ["access: by default -> none"]),
        ("env: {A: b}", "timeout: 5s", ["timeout: 1m -> 5s", "env.A: a value -> none"]),
    ],
)  # fmt: skip
def test_an_endpoint_differs_by_the_keys_of_its_own_table_and_their_defaults(
    old: str, new: str, told: list[str]
) -> None:
    assert sorted(map(str, differences(endpoint(old), endpoint(new)))) == sorted(told)
