"""``run.data("train")``: the samples of a data set in batches, its files, and where training is in it.

The order of samples follows from version, seed and epoch alone. A batch is that of all ranks, of which each rank takes
its slice; so the state, one number beside them, is the same on all ranks and fits any number of them. See decision 210.
"""

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from fairlead.runtime.arguments import whole
from fairlead.runtime.data.cache import BundleCache
from fairlead.runtime.data.fetching import AHEAD, Bundles, Workers
from fairlead.runtime.data.layout import OPEN_SHARDS, FileLayout, Layout, Ref, open_layout
from fairlead.runtime.data.manifest import DataManifest, Entry, load, make, save
from fairlead.runtime.data.order import WINDOW, epoch_order, places_of
from fairlead.runtime.data.peers import PeerNodes, PeerResult, Peers
from fairlead.runtime.data.stores import DataStore, FolderStore, open_data
from fairlead.runtime.data.trees import copy_files, copy_tree
from fairlead.runtime.errors import CheckpointMismatch, DataChanged, Misuse
from fairlead.runtime.paths import below

if TYPE_CHECKING:
    import torch.utils.data

DIRECT_THREADS = 16
DIRECT_AHEAD = 64
"""Samples that are read ahead without a cache."""
Sample = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set of a run.

    Attributes:
        url: Path or URL.
        mode: ``mount`` reads files in place, ``copy`` copies them first, ``cache`` keeps bundles, ``stream`` none.
        version: The version that it has to be; None for that of today.
        include: Shell pattern for names of objects; None for all.
        credentials: Directory of a secret with the keys of the store; None for a profile or the environment.
        profile: Profile of the AWS tools; None for the defaults of the environment.
        dataset: NAME or NAME@VERSION of the Dataset that it is; None for one without a name.
        directory: Directory of manifests and bundles of this machine.
        limit: Most bytes of bundles in it; None for half of the free disk.
        nodes: Nodes of the run, which read from each other; None if each reads for itself.
    """

    url: str
    mode: str
    version: str | None = None
    include: str | None = None
    credentials: str | None = None
    profile: str | None = None
    dataset: str | None = None
    directory: Path
    limit: int | None = None
    nodes: PeerNodes | None = None


class Data:
    """A data set as one rank of a run reads it; made by ``run.data``."""

    def __init__(self, source: DataSet, *, rank: int = 0, world_size: int = 1) -> None:
        self._source = source
        self._rank = rank
        self._world_size = world_size
        self._manifest: DataManifest | None = None
        self._store: DataStore | None = None
        self._layout: Layout | None = None
        self._bundles: Bundles | None = None
        self._workers: Workers | None = None
        self._tree: Path | None = None
        # Only what is kept can be read by others.
        is_kept = source.mode in ("cache", "copy")
        self._peers = None if source.nodes is None or not is_kept else Peers(source.nodes)
        self._seed = 0
        self._epoch = 0
        self._index = 0
        self.is_in_place = False
        """True if a step may be undone while this process goes on, which positions do not follow."""

    @property
    def version(self) -> str:
        """The version of the data: sixteen hexadecimal digits.

        Raises:
            DataChanged: The store does not have the version of the run any more.
        """
        return self._open().version

    @property
    def name(self) -> str | None:
        """NAME or NAME@VERSION of the Dataset that the spec names; None for a path or a URL."""
        return self._source.dataset

    @property
    def path(self) -> Path:
        """A directory with the files: the source itself if it is mounted, otherwise a copy, made at the first use."""
        if self._source.mode == "mount":
            root = FolderStore(self._source.url).root
            if not root.exists():
                raise Misuse(f"data: there is no directory {root}; correct the path, or mount it first")
            return root
        if self._source.mode == "stream":
            raise Misuse("data: `mode: stream` keeps no files; use batches() or read(), or give `mode: copy`")
        if self._tree is None:
            manifest = self._open()
            assert self._store is not None
            self._tree = copy_tree(manifest, self._store, below(self._source.directory, "trees"), self._peers)
        return self._tree

    def files(self) -> list[str]:
        """Return the names of all objects, sorted, relative to ``path``."""
        return [entry.key for entry in self._open().entries]

    def entries(self) -> Sequence[Entry]:
        """Return the objects of the version, sorted by name."""
        return self._open().entries

    def warm(self) -> int:
        """Fetch what the cache admits and does not have yet; return the bytes that it has then."""
        self._prepare()
        assert self._layout is not None
        if self._bundles is None:
            return 0
        return self._bundles.warm()

    def copy_to(self, directory: Path) -> int:
        """Copy the files into a directory, in place of others of their names; return their number.

        Raises:
            Misuse: The disk has no room.
        """
        manifest = self._open()
        assert self._store is not None
        copy_files(manifest, self._store, directory)
        return len(manifest.entries)

    def read(self, name: str) -> bytes:
        """Return the bytes of one object, which are those of the version.

        Raises:
            Misuse: There is no such object.
            DataChanged: It is not the object of the version any more.
        """
        manifest = self._open()
        assert self._store is not None
        entry: Entry | None = next((entry for entry in manifest.entries if entry.key == name), None)
        if entry is None:
            raise Misuse(f"data: there is no {name!r} in {self._source.url}; files() returns the names")
        return self._store.get(entry, 0, entry.size)

    def batches(self, samples: int, *, epochs: int = 1, shuffle: bool = True, seed: int = 0) -> Iterator[list[Sample]]:
        """Yield this rank's part of each batch, from where training is, until ``epochs`` passes over the data are done.

        A batch goes on in the next epoch, so that all have the same size but the very last.

        Args:
            samples: Samples of a batch over all ranks, at least one for each rank.
            epochs: Passes in all, with those before a restart; at least 1.
            shuffle: Another order in each epoch; else that of the names.
            seed: Seed of that order; the one of the checkpoint is used after a restart.

        Raises:
            DataChanged: An object was changed underneath.
            Misuse: There are fewer samples than ranks.
        """
        samples = self._checked(samples, "data.batches(samples)")
        epochs = whole(epochs, "data.batches(epochs=...)", least=1)
        if self._epoch == 0 and self._index == 0:
            self._seed = seed
        yield from self._batches(samples, epochs, shuffle, 0, 1)

    def loader(
        self,
        samples: int,
        *,
        decode: Callable[[list[Sample]], Any] | None = None,
        workers: int = 0,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> Iterator[Any]:
        """Yield what ``decode`` makes of this rank's part of each batch, by processes of torch's ``DataLoader``.

        Batches come in the order of ``batches``, and the state counts those that were yielded, not those read ahead.

        Args:
            samples: Samples of a batch over all ranks.
            decode: Makes tensors of a list of samples, in the processes; None to yield the samples.
            workers: Processes of this rank, at least 0.
            epochs, shuffle, seed: As for ``batches``.
        """
        from torch.utils.data import DataLoader

        samples = self._checked(samples, "data.loader(samples)")
        if self._epoch == 0 and self._index == 0:
            self._seed = seed
        self._open()
        loader: DataLoader[Any] = DataLoader(
            _dataset(self, samples, epochs, shuffle, decode, with_positions=True),
            batch_size=None,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        for batch, epoch, index in loader:
            self._epoch, self._index = epoch, index
            yield batch

    def dataset(
        self,
        samples: int,
        *,
        decode: Callable[[list[Sample]], Any] | None = None,
        epochs: int = 1,
        shuffle: bool = True,
    ) -> "torch.utils.data.IterableDataset[Any]":
        """Return a torch ``IterableDataset`` of whole batches, for a ``DataLoader(..., batch_size=None)`` of yours.

        Its position is not part of checkpoints; ``loader`` counts what was yielded.
        """
        return _dataset(self, samples, epochs, shuffle, decode)

    @property
    def has_begun(self) -> bool:
        """True once a batch was yielded."""
        return self._epoch > 0 or self._index > 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the same on all ranks: version, seed, epoch, and samples of it that were yielded."""
        return {"version": self.version, "seed": self._seed, "epoch": self._epoch, "index": self._index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position.

        Raises:
            CheckpointMismatch: It is one of another version of the data.
        """
        if state["version"] != self.version:
            raise CheckpointMismatch(
                f"it was trained on version {state['version']} of the data, and {self._source.url} is at "
                f"{self.version} now; give `version: {state['version']}` where the store still has it"
            )
        self._seed, self._epoch, self._index = int(state["seed"]), int(state["epoch"]), int(state["index"])

    def close(self) -> None:
        """Give up what is being read ahead."""
        if self._bundles is not None:
            self._bundles.close()
            self._bundles = None
        self._workers = None
        if self._peers is not None:
            self._peers.close()
        if self._store is not None:
            self._store.close()

    def resize(self, rank: int, world_size: int) -> None:
        """Go on as another rank, or among another number of them."""
        self._rank, self._world_size = rank, world_size

    def _checked(self, samples: int, what: str) -> int:
        """Return the samples of a batch.

        Raises:
            Misuse: There are fewer than ranks, or positions cannot follow steps that are undone.
        """
        samples = whole(samples, what, least=1)
        if self.is_in_place:
            raise Misuse(
                f"{what} with `elastic: in_place`: a step that is undone would lose its batch; use path or read(), and "
                "step.samples, or `elastic: restart`"
            )
        if samples < self._world_size:
            raise Misuse(
                f"{what} is {samples} for {self._world_size} ranks; give the samples of all ranks, at least one for "
                "each rank"
            )
        return samples

    def _batches(
        self, samples: int, epochs: int, shuffle: bool, worker: int, num_workers: int
    ) -> Iterator[list[Sample]]:
        """Yield this rank's parts of every ``num_workers``-th batch."""
        self._prepare()
        epoch, index, number = self._epoch, self._index, 0
        refs = self._refs(epoch, index, epochs, shuffle)
        # Parts that are read ahead where nothing else does so.
        waiting: deque[tuple[list[Callable[[], Sample]], int, int]] = deque()
        num_ahead = 0
        while True:
            batch = list(islice(refs, samples))
            if batch:
                _, epoch, index = batch[-1]
                if number % num_workers == worker:
                    start, stop = (self._rank * len(batch)) // self._world_size, (
                        (self._rank + 1) * len(batch)
                    ) // self._world_size  # fmt: skip
                    if self._bundles is not None and isinstance(self._layout, FileLayout):
                        self._bundles.wait_for([self._layout.member(ref) for ref, _, _ in batch[start:stop]])
                    own = [self._reading(ref) for ref, _, _ in batch[start:stop]]
                    waiting.append((own, epoch, index))
                    num_ahead += len(own)
                number += 1
            while waiting and (not batch or num_ahead > self._read_ahead or len(waiting) > self._read_ahead):
                own, self._epoch, self._index = waiting.popleft()
                num_ahead -= len(own)
                yield [read() for read in own]
            if not batch:
                if self._bundles is not None:
                    self._bundles.finish()
                return

    @property
    def _read_ahead(self) -> int:
        return 0 if self._bundles is not None else DIRECT_AHEAD

    def _reading(self, ref: Ref) -> Callable[[], Sample]:
        """Return a function that returns a sample, which may be on its way."""
        layout, bundles = self._layout, self._bundles
        assert layout is not None
        if bundles is not None:
            return lambda: layout.read(ref, bundles.ranges)
        if not isinstance(layout, FileLayout):
            return lambda: layout.read(ref, self._direct)
        assert self._workers is not None
        done, made = Event(), list[Any]()

        def task() -> None:
            try:
                made.append(layout.read(ref, self._direct))
            except BaseException as error:  # noqa: BLE001  # raised again where the sample is needed
                made.append(error)
            done.set()

        def result() -> Sample:
            done.wait()
            if isinstance(made[0], BaseException):
                raise made[0]
            sample: Sample = made[0]
            return sample

        self._workers.submit(0, task)
        return result

    def _direct(self, entry: int, start: int, stop: int) -> bytes:
        assert self._store is not None
        assert self._manifest is not None
        return self._store.get(self._manifest.entries[entry], start, stop)

    def _refs(self, epoch: int, index: int, epochs: int, shuffle: bool) -> Iterator[tuple[Ref, int, int]]:
        """Yield samples from a position on, each with the position after it."""
        layout, manifest = self._layout, self._manifest
        assert layout is not None
        assert manifest is not None
        ranges = self._direct if self._bundles is None else self._bundles.ranges
        is_skipping = True

        def entering(places: Sequence[int], place: int) -> None:
            if self._bundles is None or is_skipping:
                return
            upcoming: dict[int, int] = {}
            for number, bundle in enumerate(places[place : place + AHEAD], place):
                for needed in layout.needs(bundle):
                    upcoming.setdefault(needed, number)
            begin = epoch * len(layout.bundles)

            def need(bundle: int) -> Sequence[float]:
                at = upcoming[bundle]
                if not shuffle or not isinstance(layout, FileLayout):
                    return (begin + at,)
                key = f"{manifest.version}-{self._seed}-{epoch}"
                return [begin + own for own in places_of(at, bundle, len(layout.bundles[bundle]), key)]

            self._bundles.ahead(list(upcoming), need)

        while epoch < epochs:
            order = epoch_order(
                layout, lambda bundle: layout.count(bundle, ranges), version=manifest.version, seed=self._seed,
                epoch=epoch, shuffle=shuffle, entering=entering,
            )  # fmt: skip
            if index and sum(1 for _ in islice(order, index)) < index:
                raise CheckpointMismatch(f"it was at sample {index} of an epoch that has fewer")
            is_skipping = False
            for ref in order:
                index += 1
                yield ref, epoch, index
            if index == 0:
                raise Misuse(f"data: {self._source.url} has no samples")
            epoch, index = epoch + 1, 0

    def _open(self) -> DataManifest:
        if self._manifest is not None:
            return self._manifest
        source = self._source
        self._store = open_data(source.url, credentials=source.credentials, profile=source.profile)
        manifests, wanted = below(source.directory, "manifests"), source.version
        manifest = None if wanted is None else load(below(manifests, f"{wanted}.json"))
        shared = PeerResult()
        if manifest is None and wanted is not None and self._peers is not None:
            shared = self._peers.obtain(wanted, wanted)
            manifest = _shared_manifest(shared, wanted, manifests)
        if manifest is None or _is_of_one_object(manifest, source.url):
            try:
                manifest = self._listed(manifests)
            except BaseException:
                if shared.record is not None:
                    shared.record.close()
                raise
        if shared.record is not None:
            _record_manifest(shared, below(manifests, f"{manifest.version}.json"))
        self._manifest = manifest
        return manifest

    def _listed(self, manifests: Path) -> DataManifest:
        """Return the manifest of today, which is stored.

        Raises:
            DataChanged: It is not of the version of the run.
        """
        assert self._store is not None
        source = self._source
        manifest = make(self._store.entries(), source.include, source.url)
        if source.version is not None and manifest.version != source.version:
            raise DataChanged(
                source.url, f"{len(manifest.entries)} objects, now version {manifest.version},", "changed"
            )
        # Listed again the next time, on a full disk or where none can be written.
        with contextlib.suppress(OSError):
            save(manifest, below(manifests, f"{manifest.version}.json"))
        return manifest

    def _prepare(self) -> None:
        """Open what samples are read from, in the process that reads them."""
        manifest, source = self._open(), self._source
        assert self._store is not None
        if self._layout is None:
            index = None if source.mode == "stream" else below(source.directory, "index")
            self._layout = open_layout(manifest, self._store, index)
        if self._workers is not None:
            return
        is_file = isinstance(self._layout, FileLayout)
        if source.mode == "mount" or (source.mode == "stream" and is_file):
            self._workers = Workers(DIRECT_THREADS if isinstance(self._store, FolderStore) else 96)
            return
        self._workers = Workers()
        cache = None
        if source.mode != "stream":
            cache = BundleCache(below(source.directory, "bundles"), manifest.version, source.limit)
        held = AHEAD + WINDOW + 2 * OPEN_SHARDS
        self._bundles = Bundles(manifest, self._layout, self._store, cache, self._workers, held, self._peers)

    def forked(self) -> "Data":
        """Return the same data and position for a process that was just forked, without this one's threads."""
        copy = Data(self._source, rank=self._rank, world_size=self._world_size)
        copy._manifest = self._manifest
        own = self._source
        copy._store = open_data(own.url, credentials=own.credentials, profile=own.profile)
        if isinstance(copy._store, FolderStore) and isinstance(self._store, FolderStore):
            copy._store.root = self._store.root
        copy._seed, copy._epoch, copy._index = self._seed, self._epoch, self._index
        return copy


def _shared_manifest(shared: PeerResult, version: str, manifests: Path) -> DataManifest | None:
    """Store the manifest that another node listed; return it, if it is the one of the version."""
    if shared.data is None:
        return None
    path = below(manifests, f"{version}.json")
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        manifests.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(shared.data)
        partial.replace(path)
    except OSError:  # which the node then lists for itself
        return None
    return load(path)


def _record_manifest(shared: PeerResult, path: Path) -> None:
    """Let other nodes read a manifest from this one."""
    assert shared.record is not None
    try:
        content = path.read_bytes()
    except OSError:
        shared.record.release(is_kept=False)
        return
    shared.record.fetched(hashlib.sha256(content).hexdigest(), len(content))


def _is_of_one_object(manifest: DataManifest, url: str) -> bool:
    """Return whether the URL may be that of the object itself, which listing it again decides."""
    return len(manifest.entries) == 1 and url.rpartition("/")[2] == manifest.entries[0].key


def _dataset(
    data: Data,
    samples: int,
    epochs: int,
    shuffle: bool,
    decode: Callable[[list[Sample]], Any] | None,
    *,
    with_positions: bool = False,
) -> "torch.utils.data.IterableDataset[Any]":
    from torch.utils.data import IterableDataset, get_worker_info

    class Batches(IterableDataset[Any]):
        """Batches of this rank, divided among the workers of its loader in turn."""

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            place, number = (0, 1) if info is None else (info.id, info.num_workers)
            own = data.forked()
            try:
                for batch in own._batches(samples, epochs, shuffle, place, number):
                    result = batch if decode is None else decode(batch)
                    yield (result, own._epoch, own._index) if with_positions else result
            finally:
                own.close()

    return Batches()
