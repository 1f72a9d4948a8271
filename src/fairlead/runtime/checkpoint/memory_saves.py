"""Saves of one rank into the memory of the nodes, in addition to those to disk."""

from collections.abc import Callable

from fairlead.runtime.channels import Channel
from fairlead.runtime.checkpoint.cadence import MemorySaveSchedule
from fairlead.runtime.checkpoint.content import Content, Files
from fairlead.runtime.checkpoint.memory import NodeMemory
from fairlead.runtime.checkpoint.saving import Saved, Saver
from fairlead.runtime.environment import Environment
from fairlead.runtime.errors import AgreementFailed

KEPT = 1
"""Number of checkpoints that stay in memory; there are two while the next one is being saved."""


class MemorySaves:
    """Saves into memory on a schedule, always in the background. All ranks make the same calls."""

    def __init__(
        self,
        *,
        memory: NodeMemory,
        content: Content,
        channel: Channel,
        environment: Environment,
        step: int,
        report: Callable[[Saved], None],
    ) -> None:
        """Take the content to save; separate staging buffers keep a slow disk from delaying saves into memory.

        Args:
            step: Completed steps of the newest checkpoint, in memory or on disk.
            report: Called once for each save, on the thread that made it.
        """
        self._memory = memory
        self._content = content
        self._is_first_of_node = environment.local_rank == 0
        self._periodic = MemorySaveSchedule(
            every_s=environment.memory_every_s, every_steps=environment.memory_every_steps, step=step
        )
        self._saver = Saver(
            store=memory,
            content=content,
            channel=channel,
            local_rank=environment.local_rank,
            run=environment.run_uid,
            attempt=environment.attempt,
            keep=KEPT,
            report=report,
            expect=memory.expect,
        )

    @property
    def busy(self) -> bool:
        """Return whether a save is in progress."""
        return self._saver.busy

    @property
    def gone(self) -> AgreementFailed | None:
        """Return the error because of which no save can succeed any more, if a rank is gone."""
        return self._saver.gone

    def due(self, step: int) -> bool:
        """Return whether a save should begin after this step; only rank 0's answer counts."""
        return self._periodic.due(step)

    def began(self, step: int) -> None:
        """Record that a save of this step begins on disk, which makes one into memory unnecessary."""
        self._periodic.begin(step)

    def save(self, step: int, like: Content | None) -> None:
        """Save the current state; no save may be in progress.

        Args:
            like: The content of the save to disk; if the program writes its own files, this save uses the same
            function.
        """
        if isinstance(self._content, Files) and isinstance(like, Files):
            self._content.save = like.save
        self._periodic.begin(step)
        self._saver.save(step, background=True)

    def release(self, timeout_s: float) -> None:
        """Free the memory, as the disk has a newer checkpoint; if a save takes too long, the supervisor frees it."""
        if self._saver.wait(timeout_s):
            self._memory.close()
            if self._is_first_of_node:
                self._memory.clear()
