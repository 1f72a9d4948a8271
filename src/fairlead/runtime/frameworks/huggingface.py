"""Integrates the Hugging Face Trainer into a run: progress, checkpoints, stop notices."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from fairlead.runtime.errors import Misuse
from fairlead.runtime.frameworks.state import resumed_files
from fairlead.runtime.session import Run

_OF_PROGRESS = ("step", "total", "loss", "epoch", "samples", "tokens")


class FairleadCallback(TrainerCallback):  # type: ignore[misc] # transformers is not installed when types are checked
    """Reports the Trainer's progress to a run, and saves and resumes with it.

    ``with callback.resumed(trainer) as path: trainer.train(resume_from_checkpoint=path)``. Checkpoints are saved as
    often as the run's spec says, regardless of ``save_strategy``, and a stop notice saves one at the current step.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._trainer: Trainer | None = None
        self._logged: dict[str, Any] = {}

    @contextlib.contextmanager
    def resumed(self, trainer: Trainer) -> Iterator[str | None]:
        """Yield the newest usable checkpoint for ``trainer.train(resume_from_checkpoint=...)``; None if there is none.

        Its files exist until the block ends. All ranks must call this, once.

        Raises:
            Misuse: The Trainer's number of processes differs from the run's number of ranks.
            StoreUnavailable: The checkpoint storage cannot be read.
            CheckpointMismatch: No undamaged checkpoint fits the program.
        """
        if trainer.args.world_size != self._run.world_size:
            raise Misuse(
                f"the Trainer has {trainer.args.world_size} processes and the run {self._run.world_size} ranks; "
                "start them with `ranks_per_node` and `nodes`, not with a launcher of its own"
            )
        self._trainer = trainer
        with resumed_files(self._run) as directory:
            checkpoints = sorted(directory.glob("checkpoint-*"))
            yield str(checkpoints[-1]) if checkpoints else None

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Store the values that the Trainer logs, to report them with the next progress."""
        for name, value in (logs or {}).items():
            if isinstance(value, Real) and math.isfinite(value):
                self._logged[name] = value

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report progress and save if a checkpoint is due; ends the program after a stop notice."""
        if self._trainer is None:
            raise Misuse(
                "trainer.train() was called outside `with callback.resumed(trainer) as path:`; "
                "use that, and give trainer.train(resume_from_checkpoint=path)"
            )
        metrics = {name: value for name, value in self._logged.items() if name not in _OF_PROGRESS}
        total = state.max_steps if state.max_steps > 0 else None
        step, loss = state.global_step, self._logged.get("loss")
        self._run.progress(step, total=total, loss=loss, epoch=state.epoch, **metrics)
        # Saves the last state now rather than at exit, by when the Trainer may have loaded its best model again.
        self._run.checkpoint(step, save=self._save, force=total is not None and step >= total)

    def _save(self, directory: Path) -> None:
        """Make the Trainer save into this directory; it names the checkpoint by its step."""
        trainer = self._trainer
        assert trainer is not None
        args, control = trainer.args, trainer.control
        original = args.output_dir, args.push_to_hub, control.should_save
        args.output_dir, args.push_to_hub = str(directory), False
        try:
            # This is how the Trainer itself saves a checkpoint at any time; there is no public method.
            trainer._save_checkpoint(trainer.model, trial=None)
        finally:
            args.output_dir, args.push_to_hub, control.should_save = original
