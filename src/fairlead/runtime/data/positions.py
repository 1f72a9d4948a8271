"""Positions of training in the data sets, as part of the checkpoints of the run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.runtime.errors import CheckpointMismatch

if TYPE_CHECKING:
    from fairlead.runtime.data.reader import Data

DATA = "fairlead-data"
"""Name of the positions among the objects of a checkpoint; no keyword of ``resume`` can be the same."""
FILE = "fairlead-data.json"


class DataPositions:
    """The opened data sets of a rank, and the positions of those that it opens after it was restored.

    Attributes:
        opened: Data sets by name.
        is_saved: Whether checkpoints have the positions.
    """

    def __init__(self) -> None:
        self.opened: dict[str, Data] = {}
        self.is_saved = False
        self._restored: dict[str, Any] = {}

    def open(self, name: str, data: "Data") -> None:
        """Add a data set, at the position of the checkpoint that was restored."""
        self.opened[name] = data
        if name in self._restored:
            data.load_state_dict(self._restored.pop(name))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of each data set."""
        return {**self._restored, **{name: data.state_dict() for name, data in self.opened.items() if data.has_begun}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the positions; those of data sets that are not open yet are set when they are."""
        self._restored = dict(state)
        for name in list(self._restored):
            if name in self.opened:
                self.opened[name].load_state_dict(self._restored.pop(name))

    def saving(self, save: Callable[[Path], object]) -> Callable[[Path], object]:
        """Return a program's own ``save`` that also writes the positions."""

        def with_positions(directory: Path) -> None:
            save(directory)
            (directory / FILE).write_text(json.dumps(self.state_dict()))

        return with_positions

    def loading(self, load: Callable[[Path], object]) -> Callable[[Path], object]:
        """Return a program's own ``load`` that also reads the positions."""

        def with_positions(directory: Path) -> None:
            try:
                state = json.loads((directory / FILE).read_bytes())
            except FileNotFoundError:
                state = {}
            except (ValueError, RecursionError) as error:
                raise CheckpointMismatch(f"its {FILE} is not JSON") from error
            self.load_state_dict(state)
            load(directory)

        return with_positions

    def close(self) -> None:
        """Give up what is being read ahead."""
        for data in self.opened.values():
            data.close()
