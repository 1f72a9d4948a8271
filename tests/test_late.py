"""Each worker looks for all tests, so that none of them may import there what costs seconds."""

import pytest

from tests.late import IMPORTED, Late

COST_SECONDS = {"torch", "pandas", "ortools", "scipy", "river", "botocore", "psycopg"}


def test_looking_for_tests_imports_nothing_that_costs_seconds(pytestconfig: pytest.Config) -> None:
    assert not pytestconfig.stash[IMPORTED] & COST_SECONDS, "bring it in by tests.late, or within the test"


def test_a_late_module_is_imported_at_its_first_use() -> None:
    late = Late("fractions")
    with pytest.raises(AttributeError):
        _ = late._mock_name
    assert late.Fraction(1, 2) == 0.5
