"""Tests that take minutes each, on two cores: run before a release, and when what they show is changed."""

import os

import pytest

LONG = pytest.mark.skipif(
    "FAIRLEAD_LONG" not in os.environ, reason="takes minutes; FAIRLEAD_LONG=1 runs it (tests/kubernetes/README.md)"
)
