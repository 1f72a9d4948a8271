"""Runs the server of a workspace, and reports activity; settings come from ``FAIRLEAD_WORKSPACE``.

Once the server listens, it writes ``workspace.json`` to the pod's directory, readable by the user alone, with address
and secret of the server; and the time of the last activity as ``updated_at`` of the report of a rank. See decision 230.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from fairlead.runtime.podfiles import write_json
from fairlead.runtime.workspace.activity import Observer
from fairlead.runtime.workspace.servers import NotInstalled, environment, server_of
from fairlead.untrusted_json import parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

MOST_BYTES = 64 * 1024
NOT_INSTALLED = 127
"""Exit code without a server, which a shell has for a command that does not exist; no restart would help."""
# Activity is looked for at intervals of this part of the allowed idle time, within these bounds.
LOOK_PART, LEAST_LOOK_S, MOST_LOOK_S = 0.02, 0.5, 30.0
# From this part of the allowed time on, whoever comes back is to be seen at once, before the workspace is suspended.
SOON_PART, SOON_LOOK_S = 0.7, 1.0
LISTEN_LOOK_S = 0.1


def main() -> None:
    """Run the server until it ends; its exit code is ours, except when the workspace is stopped."""
    settings = parse_object(os.environ["FAIRLEAD_WORKSPACE"], max_bytes=MOST_BYTES)
    pod_dir, home = os.environ["FAIRLEAD_POD_DIR"], settings["home"]
    host, port = settings["host"], settings["port"]
    root = os.getcwd() if settings["root"] is None else opened(os.getcwd(), settings["root"])
    env = environment(home, os.environ)
    try:
        server = server_of(
            settings["ide"], host=host, port=port, directory=pod_dir, root=root, home=home,
            path=env.get("PATH", os.defpath),
        )  # fmt: skip
    except NotInstalled as error:
        print(f"error: {error}.", file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    process = subprocess.Popen(server.argv, env={**env, **server.env}, cwd=root)
    stops: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stops.append(number)
        process.terminate()

    signal.signal(signal.SIGTERM, stop)
    while process.poll() is None and not listens(host, port):
        time.sleep(LISTEN_LOOK_S)
    write_json(os.path.join(pod_dir, "workspace.json"), {"ide": settings["ide"], **server.address}, durably=False)
    jupyter = (server.address["url"], server.address["token"]) if settings["ide"] == "jupyter" else None
    observer = Observer(process.pid, jupyter, root, watches_gpus=settings["watches_gpus"])
    reported = 0.0
    while True:
        newest = observer.newest() if reported else observer.began_at
        if newest > reported:
            write_json(os.path.join(pod_dir, "rank-0.json"), {"updated_at": newest}, durably=False)
            reported = newest
        try:
            code = process.wait(timeout=look_interval_s(settings["after_s"], time.time() - newest))
        except subprocess.TimeoutExpired:
            continue
        sys.exit(0 if stops else code if code >= 0 else 128 - code)


def opened(workdir: str, root: str) -> str:
    """Return the directory that a workspace opens, which is a copy of its working directory if it was not there.

    Edits in it stay as they are: what was copied once is not copied again.
    """
    if not os.path.isdir(root):
        unfinished = f"{root}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(workdir, unfinished, symlinks=True)
        os.rename(unfinished, root)
    os.chdir(root)
    return root


def listens(host: str, port: int) -> bool:
    """Return whether a server accepts connections."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def look_interval_s(after_s: float, idle_s: float) -> float:
    """Return the time until activity is looked for again, by the allowed and the present idle time; all in seconds."""
    most_s = SOON_LOOK_S if idle_s >= SOON_PART * after_s else MOST_LOOK_S
    return max(LEAST_LOOK_S, min(most_s, LOOK_PART * after_s))


if __name__ == "__main__":
    main()
