"""Starts XGBoost's tracker beside rank 0, which then becomes its program: `PYTHON tracker.py COMMAND...`.

XGBoost's ranks find each other through a tracker that one of them has to run. It needs a Python that has XGBoost, so
the shim starts this file with that of the run's command. The tracker ends with the rank.
"""

from __future__ import annotations

import os
import signal
import sys
import types

if __name__ == "__main__":
    # Started by path: Fairlead's modules are found without running fairlead/__init__.py, and shadow none of XGBoost's.
    del sys.path[0]
    _here = os.path.dirname(os.path.abspath(__file__))
    for _name, _path in (("fairlead", os.path.dirname(_here)), ("fairlead.runtime", _here)):
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [_path]
from fairlead.runtime import processes

FAILED = 70  # EX_SOFTWARE of sysexits.h


def main(command: list[str]) -> None:
    """Fork the tracker and become the command."""
    parent = os.getpid()
    if os.fork() == 0:
        processes.die_with_parent(parent)
        try:
            _serve()
        except BaseException as error:  # noqa: BLE001 (otherwise the ranks would wait for it forever)
            sys.stderr.write(f"fairlead: XGBoost's tracker ended: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os.kill(parent, signal.SIGABRT)
            os._exit(FAILED)
        os._exit(0)
    processes.become(command)


def _serve() -> None:
    """Serve the group of one attempt of the run until all its ranks have left."""
    from xgboost.tracker import RabitTracker

    env = os.environ
    tracker = RabitTracker(
        host_ip=env.get("FAIRLEAD_POD_IP") or env["DMLC_TRACKER_URI"],
        n_workers=int(env["DMLC_NUM_WORKER"]),
        port=int(env["DMLC_TRACKER_PORT"]),
        sortby="task",  # ranks by DMLC_TASK_ID, so that they match those of the run
    )
    tracker.start()
    tracker.wait_for()


if __name__ == "__main__":
    main(sys.argv[1:])
