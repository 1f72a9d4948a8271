"""Exports a Fairlead run as an MLflow run, which a tag identifies across attempts."""

from __future__ import annotations

import re
import time

from fairlead.runtime.experiment_tracking.mlflow_rest import Mlflow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from fairlead.runtime.experiment_tracking.target import About, MetricPoint

TAG = "fairlead.run_uid"
# Limits of one request.
MOST_METRICS = 1_000
MOST_PARAMETERS = 100
MOST_VALUE = 6_000
_STRANGE = re.compile(r"[^\w\-. :/]")


class MlflowTarget:
    """An MLflow server. A run that ``MLFLOW_RUN_ID`` names is used as it is, and its creator has to end it."""

    def __init__(self, env: Mapping[str, str], about: About) -> None:
        self._server = Mlflow(env["MLFLOW_TRACKING_URI"], env)
        self._env = env
        self._about = about
        self._existing_id = env.get("MLFLOW_RUN_ID") or None
        self._run: str | None = None

    def hurry(self, timeout_s: float) -> None:
        """Set the time-out for answers from now on."""
        self._server.timeout_s = timeout_s

    def begin(self) -> str:
        """Join the MLflow run and return its link in MLflow's UI."""
        run = self._existing_run() if self._existing_id is not None else self._own_run()
        self._run = run["run_id"]
        parameters = [
            {"key": _name(name), "value": str(value)[:MOST_VALUE]} for name, value in self._about.parameters.items()
        ]
        if parameters:
            self._server.post("runs/log-batch", {"run_id": self._run, "params": parameters[:MOST_PARAMETERS]})
        return f"{self._server.address}/#/experiments/{run['experiment_id']}/runs/{self._run}"

    def send(self, points: Sequence[MetricPoint]) -> None:
        """Send points; the server stores each combination of metric, time, step and value once."""
        metrics = [
            {"key": _name(name), "value": value, "timestamp": int(at * 1000), "step": step or 0}
            for at, step, values in points
            for name, value in values.items()
        ]
        for begin in range(0, len(metrics), MOST_METRICS):
            self._server.post("runs/log-batch", {"run_id": self._run, "metrics": metrics[begin : begin + MOST_METRICS]})

    def end(self, status: str | None) -> None:
        """Set the run's final status."""
        if status is not None and self._existing_id is None:
            self._update(status, end_time=int(time.time() * 1000))

    def _existing_run(self) -> dict[str, Any]:
        return dict(self._server.get("runs/get", run_id=self._existing_id or "")["run"]["info"])

    def _own_run(self) -> dict[str, Any]:
        about = self._about
        experiment = self._server.experiment(self._env)
        run = self._server.find_run(experiment, TAG, about.uid)
        if run is not None:
            self._run = run["info"]["run_id"]
            self._update("RUNNING")
            return dict(run["info"])
        tags = {
            TAG: about.uid,
            "fairlead.team": about.team,
            "mlflow.runName": about.name,
            "mlflow.source.name": about.command[:MOST_VALUE],
            "mlflow.source.type": "JOB",
            "mlflow.user": self._env.get("USER") or self._env.get("LOGNAME") or "",
        }
        made = self._server.post(
            "runs/create",
            {
                "experiment_id": experiment,
                "run_name": about.name,
                "start_time": int(time.time() * 1000),
                "tags": [{"key": key, "value": value} for key, value in tags.items() if value],
            },
        )
        return dict(made["run"]["info"])

    def _update(self, status: str, **more: object) -> None:
        self._server.post("runs/update", {"run_id": self._run, "status": status, **more})


def _name(name: str) -> str:
    """Return the name with characters that MLflow does not allow replaced."""
    return _STRANGE.sub("_", name)[:250]
