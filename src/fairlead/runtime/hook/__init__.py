"""First directory on the PYTHONPATH of an interpreter that becomes a launcher, or whose stacks can be requested."""
