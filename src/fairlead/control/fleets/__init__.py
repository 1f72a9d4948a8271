"""A queue of runs over several clusters: the journal that keeps it, and the controller that carries it out."""
