"""Environments of runs on this machine: what a run asks for, its lock, and the directory made of it by uv.

Nothing here decides when a run starts; see ``policy/kinds/preparing.py``.
"""
