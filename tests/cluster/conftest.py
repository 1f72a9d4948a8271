"""The shared suite's assertions are to explain themselves like those of any test file."""

import pytest

pytest.register_assert_rewrite(*(f"tests.cluster.{name}" for name in ("keeping_contract", "pod_contract", "harness")))
