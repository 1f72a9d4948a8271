"""Defers the import of a module to the first use of its names, for those that are slow to import and seldom needed.

The importing module names it at its top, where readers look for what it depends on, and type checkers see the module
itself:

    if TYPE_CHECKING:
        from fairlead.control import updates
    else:
        updates = deferred("fairlead.control.updates")

See decision 286.
"""

from importlib import import_module


class DeferredModule:
    """Stands for a module that may not be imported yet.

    Unlike modules of ``importlib.util.LazyLoader`` it is not in ``sys.modules``, so that nothing which walks through
    those imports it; and several threads may read its first name at the same time.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        return getattr(import_module(self._name), attribute)

    def __repr__(self) -> str:
        return f"deferred({self._name!r})"


def deferred(name: str) -> DeferredModule:
    """Return what stands for the module of this full name.

    Reading an attribute raises what importing it would: ``ImportError``, or ``AttributeError`` for an unknown name.
    """
    return DeferredModule(name)
