"""Measures the network between the nodes of a run, and names what is slow: ``python -m fairlead.runtime.network``."""
