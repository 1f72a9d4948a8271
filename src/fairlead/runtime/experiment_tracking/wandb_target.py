"""A run of ours as a run of Weights & Biases, by the package ``wandb`` of the run's own Python."""

from __future__ import annotations

from fairlead.runtime.experiment_tracking.target import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fairlead.runtime.experiment_tracking.target import About, Point

STEP = "step"


class WandbTarget:
    """Weights & Biases. The run has our uid, so that a restart goes on with it; WANDB_RUN_ID names another."""

    def __init__(self, env: Mapping[str, str], about: About) -> None:
        self._env = env
        self._about = about
        self._run: Any = None

    def hurry(self, timeout_s: float) -> None:
        """Its package has limits of its own; whoever waits for this process ends it."""

    def begin(self) -> str:
        """Joins the run; its address, or its directory where it is kept offline."""
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
            # Steps go back when a run resumes from a checkpoint, which its own counter may not.
            self._run.define_metric(STEP, hidden=True)
            self._run.define_metric("*", step_metric=STEP)
        except Exception as error:
            raise Refused(" ".join(str(error).split())[:300] or type(error).__name__) from error
        return str(self._run.url or self._run.dir)

    def send(self, points: Sequence[Point]) -> None:
        """Hands points to the package, which sends them."""
        for at, step, values in points:
            self._run.log({**values, STEP: step or 0, "_timestamp": at})

    def end(self, status: str | None) -> None:
        """Sends what is left and says how the run ended."""
        if self._run is not None:
            self._run.finish(exit_code=0 if status in (None, "FINISHED") else 1)
