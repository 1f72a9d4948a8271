"""Names of images are read as `docker pull` reads them."""

import pytest

from fairlead.control.image.references import read_reference
from fairlead.errors import InvalidArgument

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("acme/fairlead", "docker.io/acme/fairlead:latest"),
        ("ghcr.io/acme/tools/fairlead:1", "ghcr.io/acme/tools/fairlead:1"),
        ("localhost/fairlead", "localhost/fairlead:latest"),
        ("127.0.0.1:5000/fairlead:1", "127.0.0.1:5000/fairlead:1"),
        ("http://registry.test:5000/fairlead", "registry.test:5000/fairlead:latest"),
        (f"ghcr.io/acme/fairlead@{DIGEST}", f"ghcr.io/acme/fairlead@{DIGEST}"),
        (f"ghcr.io/acme/fairlead:1@{DIGEST}", f"ghcr.io/acme/fairlead@{DIGEST}"),
    ],
)
def test_a_name_is_read_with_what_it_leaves_out(text: str, read: str) -> None:
    assert str(read_reference(text)) == read


def test_a_registry_on_loopback_or_given_with_http_is_spoken_to_without_tls() -> None:
    assert read_reference("localhost:5000/a").is_plain
    assert read_reference("127.0.0.1/a").is_plain
    assert read_reference("http://registry.test/a").is_plain
    for text in ("registry.test/a", "https://registry.test/a", "127.0.0.1.example.com/a"):
        assert not read_reference(text).is_plain, text


@pytest.mark.parametrize(
    "text", ["", "ghcr.io/Acme/x", "ghcr.io/a:b:c", "ghcr.io/a@sha256:12", "a b", "ghcr.io/", "-a"]
)
def test_what_is_no_name_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"Give REGISTRY/NAME"):
        read_reference(text)
