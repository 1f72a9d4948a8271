"""The control loops: load, decide, apply. The only package that connects adapters to the loops."""
