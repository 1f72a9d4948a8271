"""Saves one checkpoint after another, in the background or synchronously.

All ranks make the same calls at the same steps. Each executes the phases of its content, and after every phase the
ranks exchange their outcomes. A failure on any rank ends the save on all ranks and leaves no complete checkpoint.

See decision 16.
"""

import secrets
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.runtime.channels import Channel
from fairlead.runtime.checkpoint.content import Content
from fairlead.runtime.checkpoint.manifest import INTERVAL, FileFacts, Manifest, files_below, seal
from fairlead.runtime.checkpoint.phases import Phase
from fairlead.runtime.checkpoint.problems import Failed, at_the_root, clause, failure, settle
from fairlead.runtime.checkpoint.retention import outdated
from fairlead.runtime.checkpoint.store import Draft, Sink
from fairlead.runtime.errors import AgreementFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The outcome of a save.

    Attributes:
        step: Completed steps of the saved state.
        problem: The reason why it failed; None if the checkpoint is complete.
        size: Total bytes of all files.
        blocked_s: Seconds for which training waited.
        seconds: Seconds from the call to the end of the save.
        leftover: The reason why older checkpoints could not be removed; None if they were removed.
        is_passing: The problem may be temporary, as a full disk is; the same on all ranks.
    """

    step: int
    problem: str | None = None
    size: int = 0
    blocked_s: float = 0.0
    seconds: float = 0.0
    leftover: str | None = None
    is_passing: bool = False


class Saver:
    """Saves the content of this rank, together with the other ranks.

    ``report`` is called once for each save, on the thread that made it.
    """

    def __init__(
        self,
        *,
        store: Sink,
        content: Content,
        channel: Channel,
        local_rank: int,
        run: str,
        attempt: int,
        keep: int,
        report: Callable[[Saved], None],
        expect: Callable[[int], None] | None = None,
    ) -> None:
        """Take the content and the store.

        Args:
            expect: Called before a save writes, with the bytes that this rank is about to save; raises to refuse the
            save.
        """
        self._store = store
        self._is_chief = channel.rank == 0 or (store.on_each_node and local_rank == 0)
        self._expect = expect
        self._content = content
        self._channel = channel
        self._run = run
        self._attempt = attempt
        self._keep = keep
        self._report = report
        # The same on all ranks and different for each start, so that no rank writes into the draft of a dead process.
        self._nonce = channel.gather(secrets.token_hex(4))[0]
        self._number = 0
        self._thread: threading.Thread | None = None
        self.unusable: set[int] = set()
        """Steps whose checkpoints were found damaged; they are removed once a newer one is complete."""
        self.beside: dict[str, Any] = {}
        """Measurements of `checkpoint.every: auto`, stored with the next checkpoints besides their content."""
        self.newest: int | None = None
        """The newest step that is known to be saved; None if there is none."""
        self.gone: AgreementFailed | None = None
        """The error because of which no save can succeed any more, once a rank is gone."""

    @property
    def busy(self) -> bool:
        """Return whether a save is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the save in progress and return whether it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.busy

    def save(self, step: int, *, background: bool) -> None:
        """Save the current state. The outcome goes to ``report``; no save may be in progress."""
        started = time.perf_counter()
        self._number += 1
        draft = Draft(step=step, tag=f"{self._attempt}-{self._nonce}-{self._number}")
        phases: list[Phase] = []
        problem = failure(lambda: phases.extend(self._prepare(draft, background=background)))
        content = self._content.describe()
        if self.beside:
            content = {**content, INTERVAL: self.beside}
        blocked_s = time.perf_counter() - started

        def work() -> None:
            error = failure(lambda: self._make(draft, phases, problem, content))
            saved = Saved(
                step=step,
                problem=None if error is None else clause(error),
                size=self._size,
                blocked_s=blocked_s if background else time.perf_counter() - started,
                seconds=time.perf_counter() - started,
                leftover=self._leftover,
                is_passing=isinstance(error, Failed) and error.is_passing,
            )
            if error is None:
                self.newest = step
            elif isinstance(error, AgreementFailed):
                self.gone = error
            elif not isinstance(error, Failed | OSError):
                traceback.print_exception(error)
            self._report(saved)

        if background:
            # A daemon thread: a rank that exits with an error must not wait for peers that are gone.
            self._thread = threading.Thread(target=work, name=f"fairlead-save-{step}", daemon=True)
            self._thread.start()
        else:
            work()

    def _prepare(self, draft: Draft, *, background: bool) -> list[Phase]:
        self._size = 0
        self._leftover: str | None = None
        self._workplace: Path | None = None
        self._workplace = self._store.workplace(draft, self._channel.rank)
        phases = list(self._content.snapshot(self._workplace, asynchronous=background))
        if self._expect is not None:
            self._expect(self._content.num_bytes)
        return phases

    def _make(self, draft: Draft, phases: list[Phase], problem: Exception | None, content: dict[str, Any]) -> None:
        chief = self._is_chief
        try:
            settle(self._channel, at_the_root(problem, self._workplace))
            workplace = self._workplace
            assert workplace is not None
            settle(self._channel, failure(lambda: self._store.begin(draft)) if chief else None)
            for phase in phases:
                settle(self._channel, at_the_root(failure(partial(phase, workplace)), workplace))
            files: dict[str, FileFacts] = {}
            problem = failure(lambda: files.update(self._deliver(draft)))
            facts_of = {name: [facts.size, facts.sha256] for name, facts in files.items()}
            # Where values differ between ranks, rank 0's count, so that every rank has the same manifest.
            answers = settle(
                self._channel, problem, [facts_of, [time.time(), content] if self._channel.rank == 0 else None]
            )
            manifest = self._manifest(draft, answers)
            self._size = manifest.size
            settle(self._channel, failure(lambda: self._store.commit(draft, manifest)) if chief else None)
        except Failed:
            if self._workplace is not None:
                self._store.release(self._workplace)
            if chief:
                # Files that cannot be removed now are removed after a later successful save.
                failure(lambda: self._store.discard(draft))
            raise
        if chief:
            self._tidy(draft.step)

    def _deliver(self, draft: Draft) -> dict[str, FileFacts]:
        assert self._workplace is not None
        files = {name: seal(path) for name, path in files_below(self._workplace).items()}
        self._store.put(draft, self._workplace)
        self._store.release(self._workplace)
        return files

    def _manifest(self, draft: Draft, answers: list[Any]) -> Manifest:
        """Return the manifest, which is the same on all ranks."""
        created_at, content = answers[0][1]
        return Manifest(
            step=draft.step,
            world_size=self._channel.world_size,
            run=self._run,
            attempt=self._attempt,
            created_at=created_at,
            content=content,
            files={
                name: FileFacts(size=size, sha256=sha256)
                for files, _ in answers
                for name, (size, sha256) in files.items()
            },
        )

    def _tidy(self, step: int) -> None:
        def tidy() -> None:
            gone = outdated(self._store.steps(), newest=step, keep=self._keep, unusable=self.unusable)
            self._store.tidy(gone)

        problem = failure(tidy)
        self._leftover = None if problem is None else clause(problem)
        if problem is None:
            self.unusable.clear()
