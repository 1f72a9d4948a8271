"""The operator's side of engines: watches of their objects, and the one object for each attempt of a run."""
