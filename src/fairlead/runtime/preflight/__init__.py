"""Tests GPUs and network of the nodes of a gang before its program starts: ``python -m fairlead.runtime.preflight``."""
