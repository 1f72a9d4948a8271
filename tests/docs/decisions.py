"""The index of decisions by part of the tree, made from the head of each note.

A note begins with its number and title, which names the subject and the verdict, and a line
`Part: PART. Status: STATUS. Governs: MODULE.`; the module is below `src/fairlead/`, or `-` where there is none.
"""

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
PARTS = (
    "Structure of the tree", "Specs, admission and command line", "One machine", "In the pod", "Kinds of workloads",
    "Health", "Search of parameters", "The queue and placement", "Capacity and GPUs", "Splits of a training step",
    "Endpoints and the gateway", "Kubernetes", "Engines and fleets", "Money", "The page and simulations",
    "Not sorted yet",
)  # fmt: skip
_TITLE = re.compile(r"# (?:0*([0-9]+)[.:] )?(.+)")
_HEAD = re.compile(r"Part: (?P<part>[^.]+)\. Status: (?P<status>[^.]+)\. Governs: (?P<module>\S+)\.")


class Decision(NamedTuple):
    """A note, as its head describes it."""

    path: Path
    number: int
    title: str
    part: str
    status: str
    module: str


def decisions() -> list[Decision]:
    """Return all notes by number. One without a line about itself is not sorted yet, and in force."""
    return [_read(path) for path in sorted(FOLDER.glob("[0-9]*.md"))]


def _read(path: Path) -> Decision:
    lines = path.read_text(encoding="utf-8").splitlines()
    title = _TITLE.fullmatch(lines[0])
    assert title is not None, f"{path.name} does not begin with `# NUMBER. TITLE`"
    head = next(filter(None, map(_HEAD.fullmatch, lines[1:4])), None)
    number = int(path.name.partition("-")[0])
    if head is None:
        return Decision(path, number, title[2], PARTS[-1], "in force", "-")
    return Decision(path, number, title[2], head["part"], head["status"], head["module"])


def index() -> str:
    """Return the table of each part."""
    notes = decisions()
    blocks = []
    for part in PARTS:
        rows = [
            f"| [{note.number}]({note.path.name}) | {note.title} | {note.status} |"
            f" {'' if note.module == '-' else f'`{note.module}`'} |"
            for note in notes
            if note.part == part
        ]
        if rows:
            blocks.append("\n".join([f"## {part}\n", "| | decision | status | module |", "|---|---|---|---|", *rows]))
    return "\n\n".join(blocks)
