"""The process of a workspace: starts the server of its `ide`, tells where it is, and reports activity in it.

Run as ``python -m fairlead.runtime.workspace``. It uses the standard library alone; Jupyter, an editor or sshd are the
user's own installation. When to suspend a workspace is decided elsewhere, by ``policy/kinds/workspace_idle.py``.
"""
