"""Renders all that Fairlead puts onto a cluster: pure functions from specs to objects."""
