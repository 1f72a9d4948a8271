"""A queue of runs over several clusters: its journal and its controller."""
