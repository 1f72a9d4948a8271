"""What Fairlead puts onto a cluster, as pure functions from specs to objects."""
