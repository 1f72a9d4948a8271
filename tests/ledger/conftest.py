"""Where ledgers are kept in tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledger.databases import emptied, postgres, postgres_programs


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty ledger's place, of either kind."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return emptied(request.getfixturevalue("postgres_url"))
