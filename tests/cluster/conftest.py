"""The shared suite's assertions are to explain themselves like those of any test file."""

import pytest

pytest.register_assert_rewrite("tests.cluster.contract", "tests.cluster.harness")
