"""The content of a checkpoint, as phases that all ranks execute together.

Between two phases the ranks exchange their outcomes, so a phase may use collectives: either all ranks reach it or none
does. There are two forms: objects of the program (modules, optimizers, anything with ``state_dict``), or files that the
program writes.
"""

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.runtime.checkpoint import randomness
from fairlead.runtime.checkpoint.manifest import Manifest, files_below
from fairlead.runtime.checkpoint.phases import Phase, of_rank, rank_directory
from fairlead.runtime.checkpoint.unpickling import TRUST, check_saved, loads
from fairlead.runtime.errors import CheckpointMismatch, Misuse

if TYPE_CHECKING:
    from fairlead.runtime.channels import Channel
    from fairlead.runtime.checkpoint.tensors import Tensors


SMALL_BYTES = 1 << 20
RANDOM, OLD_RANDOM = "random.json", "random.pickle"
"""Files of a rank's random states; earlier versions wrote the second."""


class Content(Protocol):
    """The state of one rank."""

    num_bytes: int
    """Approximate bytes of the newest snapshot that this rank writes."""

    def describe(self) -> dict[str, Any]:
        """Return the facts that loading needs, as plain JSON, the same on all ranks."""
        ...

    def snapshot(self, directory: Path, *, asynchronous: bool) -> Sequence[Phase]:
        """Return the phases that write the current state.

        With ``asynchronous`` they run in another thread while the program continues to change the state; without it,
        the caller runs them before the state changes. This method may itself write to the workplace.
        """
        ...

    def loading(self, manifest: Manifest) -> Sequence[Phase]:
        """Return the phases that read a verified checkpoint into the state."""
        ...


def write_random_state(rank: int) -> Phase:
    """Return a phase that writes the current state of the random generators."""
    data = randomness.to_json(randomness.capture())

    def write(directory: Path) -> None:
        own = directory / rank_directory(rank)
        own.mkdir(parents=True, exist_ok=True)
        (own / RANDOM).write_bytes(data)

    return write


def read_random_state(rank: int) -> Phase:
    """Return the phase that restores the random generators. A rank that the save did not have keeps its own."""

    def read(directory: Path) -> None:
        path, old = directory / rank_directory(rank) / RANDOM, directory / rank_directory(rank) / OLD_RANDOM
        if path.exists():
            randomness.restore(randomness.from_json(path.read_bytes()))
        elif old.exists():
            randomness.restore(loads(old.read_bytes(), old.name))

    return read


class Files:
    """State that the program itself writes into a directory and reads from it. Each rank has its own directory.

    The number of ranks may change only in an elastic gang, whose spec states that the program runs with any number.
    """

    def __init__(self, rank: int, world_size: int, load: Callable[[Path], object], *, elastic: bool = False) -> None:
        self._rank = rank
        self._elastic = elastic
        self._world_size = world_size
        self._load = load
        self.num_bytes = 0
        self.save: Callable[[Path], object] | None = None
        """Set before each snapshot."""

    def describe(self) -> dict[str, Any]:
        return {"form": "files"}

    def snapshot(self, directory: Path, *, asynchronous: bool) -> Sequence[Phase]:
        own = directory / rank_directory(self._rank) / "files"
        own.mkdir(parents=True)
        assert self.save is not None
        # Called immediately: only the program knows its state, and it changes the state in the next step.
        self.save(own)
        self.num_bytes = sum(path.stat().st_size for path in files_below(own).values())
        return [write_random_state(self._rank)]

    def loading(self, manifest: Manifest) -> Sequence[Phase]:
        expect_form(manifest, "files")
        if manifest.world_size != self._world_size and not self._elastic:
            raise CheckpointMismatch(
                f"it holds the files of {manifest.world_size} ranks and {self._world_size} run now; "
                "start with as many, or give run.resume() objects that PyTorch can reshard"
            )

        def load(directory: Path) -> None:
            self._load(of_rank(directory, self._rank, "files") or directory / rank_directory(self._rank) / "files")

        return [load, read_random_state(self._rank)]


class ProgramObjects:
    """State held by objects of the program.

    Modules, their optimizers and all other holders of sharded tensors are saved once for all ranks and can be loaded
    into any number of ranks. Everything else is saved by each rank separately.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        state: Mapping[str, object],
        channel: "Callable[[], Channel]",
        *,
        trust: bool = False,
    ) -> None:
        """Take the objects.

        Args:
            rank: This rank.
            world_size: The number of ranks.
            state: Objects by name; the names are part of the checkpoint.
            channel: Opens the channel that saving uses; a collective call.
            trust: Load objects of any class from a checkpoint, whose writers are trusted.

        Raises:
            Misuse: An object is not a dictionary and does not have both ``state_dict`` and ``load_state_dict``.
        """
        self._rank = rank
        self._own = {name: value for name, value in state.items() if value is not None}
        for name, value in self._own.items():
            if not (isinstance(value, MutableMapping) or _stateful(value)):
                raise Misuse(
                    f"{name} is {type(value).__name__}, which cannot be saved; "
                    "give a dict, or an object with state_dict() and load_state_dict()"
                )
        self.num_bytes = 0
        self._trust = trust
        self._is_checked = False
        self._tensors: Tensors | None = None
        # A program that does not use torch must not load it.
        if "torch" in sys.modules:
            from fairlead.runtime.checkpoint import tensors

            self._tensors = tensors.Tensors(rank, world_size, self._own, channel, trust=trust)

    def describe(self) -> dict[str, Any]:
        return {"form": "objects", **(self._tensors.describe() if self._tensors is not None else {})}

    def snapshot(self, directory: Path, *, asynchronous: bool) -> Sequence[Phase]:
        together: list[Phase] = []
        apart = dict(self._own)
        if self._tensors is not None:
            names, together = self._tensors.snapshot(asynchronous=asynchronous)
            apart = {name: value for name, value in apart.items() if name not in names}
        data = pickle.dumps({name: self._portable(_state(value)) for name, value in apart.items()})
        # A large state is checked once, as that costs its size in memory.
        if not self._trust and (not self._is_checked or len(data) <= SMALL_BYTES):
            if (name := check_saved(data)) is not None:
                raise Misuse(
                    f"the state given to run.resume() holds {name}, which a checkpoint restores only if everybody who "
                    f"can write it is trusted: give {TRUST}, or keep numbers, texts, lists, dicts, arrays or tensors"
                )
            self._is_checked = True

        self.num_bytes = len(data) + (self._tensors.num_bytes if self._tensors is not None else 0)

        def write(directory: Path) -> None:
            own = directory / rank_directory(self._rank)
            own.mkdir(parents=True, exist_ok=True)
            (own / "objects.pickle").write_bytes(data)

        return [_both(write_random_state(self._rank), write), *together]

    def loading(self, manifest: Manifest) -> Sequence[Phase]:
        expect_form(manifest, "objects")
        apart: dict[str, Any] = {}

        def read(directory: Path) -> None:
            path = of_rank(directory, self._rank, "objects.pickle")
            if path is not None:
                apart.update(loads(path.read_bytes(), path.name, trust=self._trust))
            unknown = sorted(apart.keys() - self._own.keys())
            if unknown:
                raise CheckpointMismatch(f"it holds {', '.join(unknown)}, which run.resume() was not given")
            missing = sorted(self._missing(apart, manifest))
            if missing:
                raise CheckpointMismatch(f"it holds nothing for {', '.join(missing)}")

        def assign(directory: Path) -> None:
            for name, state in apart.items():
                self._assign(self._own[name], state)

        together = self._tensors.loading(manifest) if self._tensors is not None else []
        return [read, *together, assign, read_random_state(self._rank)]

    def _portable(self, state: Any) -> Any:
        if self._tensors is None:
            return state
        from fairlead.runtime.checkpoint.tensors import on_cpu

        return on_cpu(state)

    def _assign(self, value: Any, state: Any) -> None:
        if _stateful(value):
            value.load_state_dict(state)
            return
        if self._tensors is not None:
            from fairlead.runtime.checkpoint.tensors import like

            state = like(state, dict(value))
        value.clear()
        value.update(state)

    def _missing(self, apart: Mapping[str, Any], manifest: Manifest) -> Iterator[str]:
        shared = set(manifest.content.get("shared", ()))
        yield from (name for name in self._own if name not in apart and name not in shared)


def expect_form(manifest: Manifest, form: str) -> None:
    """Refuse a checkpoint of the other form.

    Raises:
        CheckpointMismatch: The checkpoint has another form.
    """
    saved_form = manifest.content.get("form")
    if saved_form != form:
        raise CheckpointMismatch(f"it was saved as {saved_form} and run.resume() was given {form}")


def _both(first: Phase, second: Phase) -> Phase:
    def phase(directory: Path) -> None:
        first(directory)
        second(directory)

    return phase


def _stateful(value: object) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _state(value: Any) -> Any:
    return value.state_dict() if _stateful(value) else dict(value)
