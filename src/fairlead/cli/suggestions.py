"""Completes commands that messages suggest with the options that select their cluster."""

import re

# A command for a run, as messages suggest it, without an option that selects a cluster.
_SUGGESTED = re.compile(
    r"`(?![^`]* --(?:cluster|context|namespace)\b)"
    r"(fairlead (?:attach|delete|events|logs|queue|resume|rollback|show|status|stop|suspend) [^`]*)`"
)


def suggest(text: str, options: str) -> str:
    """Return a message with the options that select its cluster in each command that it suggests for a run there.

    Reasons are stored in the cluster, whose operator does not know under which context a user reads them.
    """
    return _SUGGESTED.sub(lambda match: f"`{match[1]} {options}`", text) if options else text
