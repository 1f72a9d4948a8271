"""Icons of states, which differ by outline and word, not by colour alone."""

from collections.abc import Mapping
from typing import NamedTuple


class Icon(NamedTuple):
    """An SVG path within 12 x 12 and its colour class."""

    path: str
    tone: str


_CIRCLE = "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9z"
_UNKNOWN = Icon("M2 6h8", "quiet")
_SHAPES: Mapping[str, Icon] = {
    "Pending": Icon(f"{_CIRCLE}M6 3.5v2.5l2 1.5", "wait"),
    "Created": Icon(_CIRCLE, "wait"),
    "Queued": Icon(f"{_CIRCLE}M6 3.5v2.5l2 1.5", "wait"),
    "Placing": Icon("M6 1.5a4.5 4.5 0 1 1-4.5 4.5M6 3.5v5M3.5 6h5", "go"),
    "Leaving": Icon("M10 6a4 4 0 1 1-1.3-3M9.2 .8v2.6h-2.6", "wait"),
    "Starting": Icon("M6 1.5a4.5 4.5 0 1 1-4.5 4.5M6 3.5v5M3.5 6h5", "go"),
    "Running": Icon("M3 1.8l7 4.2l-7 4.2z", "go fill"),
    "Restarting": Icon("M10 6a4 4 0 1 1-1.3-3M9.2 .8v2.6h-2.6", "wait"),
    "Stopping": Icon("M2 2h8v8h-8zM4.5 4.5h3v3h-3z", "quiet"),
    "Suspended": Icon("M4 2v8M8 2v8", "quiet"),
    "Succeeded": Icon("M1.5 6.5l3 3l6-7", "good"),
    "Failed": Icon("M2.2 2.2l7.6 7.6M9.8 2.2l-7.6 7.6", "bad"),
    "Lost": Icon("M2.2 2.2l7.6 7.6M9.8 2.2l-7.6 7.6", "bad"),
    "Refused": Icon(f"{_CIRCLE}M3 9l6-6", "bad"),
    "Waiting": Icon(_CIRCLE, "wait"),
    "Active": Icon("M3 1.8l7 4.2l-7 4.2z", "go fill"),
    "Cached": Icon("M2 3.5h8M2 6h8M2 8.5h8", "good"),
    "Skipped": Icon("M2 2.5l4 3.5l-4 3.5M6 2.5l4 3.5l-4 3.5", "quiet"),
    "Pruned": Icon("M3 10v-4h6v-4", "quiet"),
    "Paused": Icon("M4 2v8M8 2v8", "quiet"),
    "Stopped": Icon("M2 2h8v8h-8z", "quiet"),
}


def shape_of(state: str) -> Icon:
    """Return the icon for a state of a workload, pod, trial, step or run of a fleet; a dash for an unknown state."""
    return _SHAPES.get(state[:1].upper() + state[1:], _UNKNOWN)
