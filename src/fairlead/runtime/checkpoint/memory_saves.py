"""The saves of one rank into the memory of the nodes, beside those onto the disk."""

from collections.abc import Callable

from fairlead.runtime.channels import Channel
from fairlead.runtime.checkpoint.cadence import Periodic
from fairlead.runtime.checkpoint.content import Content, Files
from fairlead.runtime.checkpoint.memory import NodeMemory
from fairlead.runtime.checkpoint.saving import Saved, Saver
from fairlead.runtime.environment import Environment
from fairlead.runtime.errors import AgreementFailed

KEPT = 1
"""Checkpoints that stay in memory; while the next is being made there are two."""


class MemorySaves:
    """Saves into memory when it is time, always in the background. All ranks make the same calls."""

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
        """Take what is saved; its staging is its own, so that a slow disk keeps nothing from the memory.

        Args:
            step: Completed steps of the newest checkpoint, in memory or on the disk.
            report: Called once for each save, on the thread that did it.
        """
        self._memory = memory
        self._content = content
        self._is_first_of_node = environment.local_rank == 0
        self._periodic = Periodic(
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
        """Return whether a save is under way."""
        return self._saver.busy

    @property
    def gone(self) -> AgreementFailed | None:
        """Return why no save can succeed any more, if a rank is gone."""
        return self._saver.gone

    def due(self, step: int) -> bool:
        """Return whether a save should begin after this step; the opinion of rank 0 counts."""
        return self._periodic.due(step)

    def began(self, step: int) -> None:
        """A save of this step begins on the disk, which is as good."""
        self._periodic.begin(step)

    def save(self, step: int, like: Content | None) -> None:
        """Save the state as it is now; no save may be under way.

        Args:
            like: What is saved on the disk, whose way to write files of the program's own is this one's too.
        """
        if isinstance(self._content, Files) and isinstance(like, Files):
            self._content.save = like.save
        self._periodic.begin(step)
        self._saver.save(step, background=True)

    def release(self, timeout_s: float) -> None:
        """Give the memory back, as the disk has a newer checkpoint; the supervisor does so for whoever cannot."""
        if self._saver.wait(timeout_s):
            self._memory.close()
            if self._is_first_of_node:
                self._memory.clear()
