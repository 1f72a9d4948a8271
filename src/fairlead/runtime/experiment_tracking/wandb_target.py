"""Exports a Fairlead run as a Weights & Biases run, with the package ``wandb`` of the run's own Python."""

from __future__ import annotations

from fairlead.runtime.experiment_tracking.target import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fairlead.runtime.experiment_tracking.target import About, MetricPoint

STEP = "step"


class WandbTarget:
    """A Weights & Biases run. Its id is the Fairlead run's uid, so that all attempts share it, or WANDB_RUN_ID."""

    def __init__(self, env: Mapping[str, str], about: About) -> None:
        self._env = env
        self._about = about
        self._run: Any = None

    def hurry(self, timeout_s: float) -> None:
        """Do nothing: the package has its own time-outs, and the shim kills this process if it takes too long."""

    def begin(self) -> str:
        """Join the run and return its address, or its directory if it is offline."""
        try:
            import wandb
        except ImportError as error:
            raise Refused("the run's Python has no package `wandb`; install it there") from error
        about, env = self._about, self._env
        try:
            self._run = wandb.init(
                project=env.get("WANDB_PROJECT") or None,
                id=env.get("WANDB_RUN_ID") or about.uid,
                name=env.get("WANDB_NAME") or about.name,
                resume="allow",
                config=dict(about.parameters),
                settings=wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True),
            )
            # Steps go back when a run resumes from a checkpoint, which W&B's own step counter does not allow.
            self._run.define_metric(STEP, hidden=True)
            self._run.define_metric("*", step_metric=STEP)
        except Exception as error:
            raise Refused(" ".join(str(error).split())[:300] or type(error).__name__) from error
        return str(self._run.url or self._run.dir)

    def send(self, points: Sequence[MetricPoint]) -> None:
        """Pass points to the package, which sends them."""
        for at, step, values in points:
            self._run.log({**values, STEP: step or 0, "_timestamp": at})

    def end(self, status: str | None) -> None:
        """Send the remaining points and set the run's final status."""
        if self._run is not None:
            self._run.finish(exit_code=0 if status in (None, "FINISHED") else 1)
