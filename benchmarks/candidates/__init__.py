"""Policies that no cluster can choose yet: measured here, not part of the product."""
