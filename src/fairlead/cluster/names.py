"""The error for unknown names."""

from collections.abc import Sequence

from fairlead.errors import NotFound


def unknown(name: str, names: Sequence[str], *, where: str = "") -> NotFound:
    """Return the error for an unknown name, with similar names.

    Args:
        names: Existing names, newest first.
        where: Follows the name, such as " in the namespace 'vision'".
    """
    import difflib

    near = difflib.get_close_matches(name, names, n=3)
    hint = f"Did you mean {', '.join(near)}?" if near else f"Known: {', '.join(names[:5]) or 'none yet'}."
    return NotFound(f"There is no run named {name!r}{where}. {hint} `fairlead status --all` lists all.")
