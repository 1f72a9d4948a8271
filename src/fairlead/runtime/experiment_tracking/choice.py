"""Chooses the trackers that receive a run's metrics: those whose usual variables are set in its environment."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MLFLOW, WANDB, TENSORBOARD = "mlflow", "wandb", "tensorboard"
NAMES = (MLFLOW, WANDB, TENSORBOARD)
NONE = "none"
TITLES = {MLFLOW: "MLflow", WANDB: "Weights & Biases", TENSORBOARD: "TensorBoard"}
# Limits the trackers that are set up to those it names; if it is not set, all of them are used.
CHOICE = "FAIRLEAD_TRACKERS"
TENSORBOARD_VARIABLE = "TENSORBOARD_LOGGING_DIR"
_WANDB_OFF = ("disabled", "dryrun")
_TRUE = ("true", "1", "yes")


def chosen(env: Mapping[str, str]) -> list[str]:
    """Return the names of the trackers that receive metrics. An empty variable counts as not set."""
    is_there = {
        MLFLOW: bool(env.get("MLFLOW_TRACKING_URI")),
        WANDB: _has_wandb(env),
        TENSORBOARD: bool(env.get(TENSORBOARD_VARIABLE)),
    }
    wanted = words(env[CHOICE]) if env.get(CHOICE) else NAMES
    return [name for name in NAMES if is_there[name] and name in wanted]


def words(text: str) -> list[str]:
    """Return the names in a choice, such as ``mlflow,wandb`` or ``none``."""
    return [word.strip() for word in text.split(",")]


def problem(text: str) -> str | None:
    """Return the problem with a choice; None if it is valid."""
    trackers = words(text)
    strange = [word for word in trackers if word not in NAMES and trackers != [NONE]]
    if not strange:
        return None
    return (
        f"`{strange[0][:50]}` is not a tracker; give {', '.join(NAMES)}, several with a comma between them, or {NONE}"
    )


def _has_wandb(env: Mapping[str, str]) -> bool:
    mode = env.get("WANDB_MODE", "")
    if mode in _WANDB_OFF or env.get("WANDB_DISABLED", "").lower() in _TRUE:
        return False
    return bool(mode or env.get("WANDB_API_KEY") or env.get("WANDB_PROJECT"))
