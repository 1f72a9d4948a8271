"""Integrates the Lightning Trainer into a run: progress, checkpoints, stop notices."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

try:
    import lightning.pytorch as lightning
except ImportError:
    import pytorch_lightning as lightning

from fairlead.runtime.errors import Misuse
from fairlead.runtime.frameworks.state import resumed_files
from fairlead.runtime.session import Run

CHECKPOINT = "checkpoint.ckpt"
_OF_PROGRESS = ("step", "total", "loss", "epoch", "samples", "tokens")


class FairleadCallback(lightning.Callback):  # type: ignore[misc] # lightning is not installed when types are checked
    """Reports the Trainer's progress to a run, and saves and resumes with it.

    ``with callback.resumed(trainer) as path: trainer.fit(model, data, ckpt_path=path)``. Checkpoints are saved as often
    as the run's spec says, in addition to those of any ``ModelCheckpoint``, and a stop notice saves one at the current
    step.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._notice: Any = None
        self._trainer: Any = None
        self._step = 0
        self._total: int | None = None

    @contextlib.contextmanager
    def resumed(self, trainer: lightning.Trainer) -> Iterator[str | None]:
        """Yield the newest usable checkpoint for ``trainer.fit(ckpt_path=...)``; None if there is none.

        Its files exist until the block ends. All ranks must call this, once.

        Raises:
            Misuse: The Trainer's number of processes differs from the run's number of ranks.
            StoreUnavailable: The checkpoint storage cannot be read.
            CheckpointMismatch: No undamaged checkpoint fits the program.
        """
        if trainer.world_size != self._run.world_size:
            raise Misuse(
                f"the Trainer has {trainer.world_size} processes and the run {self._run.world_size} ranks; give "
                f"Trainer(devices=...) as many as `ranks_per_node`, and num_nodes=... as many as `nodes`"
            )
        self._trainer = trainer
        self._notice = signal.getsignal(signal.SIGTERM)
        with resumed_files(self._run) as directory:
            path = directory / CHECKPOINT
            yield str(path) if path.exists() else None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Read the number of steps, and restore the stop-notice handler, as Lightning's own saves nothing."""
        if self._trainer is not trainer:
            raise Misuse(
                "trainer.fit() was called outside `with callback.resumed(trainer) as path:`; "
                "use that, and give trainer.fit(ckpt_path=path)"
            )
        self._step = trainer.global_step
        total = trainer.estimated_stepping_batches
        self._total = int(total) if math.isfinite(total) and total > 0 else None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._notice)

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Report progress and save if a checkpoint is due; ends the program after a stop notice."""
        step = trainer.global_step
        if step == self._step:  # gradients are still being accumulated
            return
        self._step = step
        metrics = {name: value for name, value in trainer.callback_metrics.items() if name not in _OF_PROGRESS}
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        batches = trainer.num_training_batches
        epoch = trainer.current_epoch + ((batch_idx + 1) / batches if math.isfinite(batches) and batches else 0.0)
        self._run.progress(step, total=self._total, loss=loss, epoch=epoch, **metrics)
        self._run.checkpoint(step, save=self._save, force=self._total is not None and step >= self._total)

    def _save(self, directory: Path) -> None:
        self._trainer.save_checkpoint(directory / CHECKPOINT, weights_only=False)
