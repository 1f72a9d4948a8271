"""Collects the mistakes of a spec file, to report all at once."""

from dataclasses import dataclass, field

from fairlead.errors import InvalidSpec

MOST_PROBLEMS = 100


@dataclass(slots=True, kw_only=True)
class Problems:
    """Problems of one source; after the first hundred they are only counted."""

    source: str
    by_line: list[tuple[int, str]] = field(default_factory=list)
    num_more: int = 0

    def add(self, line: int, path: str, sentence: str) -> None:
        """Add a problem at a line, under a dotted key (empty if there is none)."""
        if len(self.by_line) >= MOST_PROBLEMS:
            self.num_more += 1
            return
        where = f"{path}: " if path else ""
        self.by_line.append((line, f"{self.source}:{line}: {where}{sentence}"))

    @property
    def num(self) -> int:
        """Return the number of problems."""
        return len(self.by_line) + self.num_more

    @property
    def is_full(self) -> bool:
        """Return whether further problems are only counted."""
        return len(self.by_line) >= MOST_PROBLEMS

    def raise_any(self) -> None:
        """Raise InvalidSpec with the problems in order of lines, if there are any."""
        if not self.by_line:
            return
        lines = [text for _, text in sorted(self.by_line, key=lambda problem: problem[0])]
        if self.num_more:
            lines.append(f"{self.source}:{self.by_line[-1][0]}: and {self.num_more} more problems")
        raise InvalidSpec(tuple(dict.fromkeys(lines)))
