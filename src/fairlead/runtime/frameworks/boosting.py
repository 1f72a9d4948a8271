"""Arguments by which XGBoost and LightGBM connect a run's ranks, as they read no variables. Imports neither."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from fairlead.runtime.errors import Misuse

RESOLVE_S = 120.0  # a pod's DNS name exists some seconds after its address
_RETRY_S = 0.5
CONNECT_TRIES = 10  # XGBoost waits 0, 2, 4 ... seconds between them; rank 0 may import for a while


def communicator_args(environ: Mapping[str, str] | None = None) -> dict[str, str | int]:
    """Return the arguments of ``xgboost.collective.CommunicatorContext`` for this rank.

    Raises:
        Misuse: The run's spec does not have ``framework: xgboost``.
    """
    env = os.environ if environ is None else environ
    if "DMLC_TRACKER_URI" not in env:
        raise Misuse("there is no tracker to meet at; give the run `framework: xgboost`")
    return {
        "dmlc_tracker_uri": env["DMLC_TRACKER_URI"],
        "dmlc_tracker_port": int(env["DMLC_TRACKER_PORT"]),
        "dmlc_task_id": env["DMLC_TASK_ID"],
        "dmlc_retry": CONNECT_TRIES,
    }


def network_params(environ: Mapping[str, str] | None = None) -> dict[str, str | int]:
    """Return the LightGBM parameters of this rank: its own port and the addresses of all ranks.

    LightGBM finds itself among them by this machine's addresses, so names are resolved here. A pod's name may be
    resolvable only some time after it has an address; this waits for up to ``RESOLVE_S`` seconds.

    Raises:
        Misuse: The run's spec does not have ``framework: lightgbm``, or a rank's host has no address in time.
    """
    env = os.environ if environ is None else environ
    if "LIGHTGBM_MACHINES" not in env:
        raise Misuse("no ranks are listed; give the run `framework: lightgbm`")
    until = time.monotonic() + RESOLVE_S
    listed = [machine.rpartition(":") for machine in env["LIGHTGBM_MACHINES"].split(",")]
    return {
        "machines": ",".join(f"{_resolve(host, until)}:{port}" for host, _, port in listed),
        "num_machines": int(env["LIGHTGBM_NUM_MACHINES"]),
        "local_listen_port": int(env["LIGHTGBM_LOCAL_LISTEN_PORT"]),
    }


def _resolve(host: str, until: float) -> str:
    while True:
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            if time.monotonic() >= until:
                raise Misuse(f"{host} has no address after {RESOLVE_S:g} s: {error}") from error
            time.sleep(_RETRY_S)
