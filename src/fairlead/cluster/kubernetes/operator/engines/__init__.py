"""The operator's side of engines: their objects as watches tell them, and the one that each start of a run gets."""
