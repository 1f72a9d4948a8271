"""The error for unknown names."""

from collections.abc import Sequence

from fairlead.errors import NotFound


def unknown(name: str, names: Sequence[str], *, where: str = "", options: Sequence[str] = ()) -> NotFound:
    """Return the error for an unknown name, with similar names.

    Args:
        names: Existing names, newest first.
        where: Follows the name, such as " in the namespace 'vision'".
        options: Options of a command that select this cluster.
    """
    import difflib

    near = difflib.get_close_matches(name, names, n=3)
    hint = f"Did you mean {', '.join(near)}?" if near else f"Known: {', '.join(names[:5]) or 'none yet'}."
    command = " ".join(("fairlead status --all", *options))
    return NotFound(f"There is no run named {name!r}{where}. {hint} `{command}` lists all.")
