"""The page without a network: addresses are rendered in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.world import World, world_in


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path / "home") as made:
        yield made
