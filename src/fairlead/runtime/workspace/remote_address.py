"""Prints how the server of a workspace in a pod is reached, for the user's command that runs this in the pod.

It is read by whoever may execute commands in the pod, and passes through nothing but that connection.
"""

from __future__ import annotations

import json
import os

from fairlead.runtime.podfiles import read_json

KEYS = ("user_key", "host_key.pub")
"""Files of an sshd's keys, of which a client on another machine needs the content."""
NOT_READY = 75
"""Exit code while there is no server; of sysexits.h, for a failure that passes."""


def main(pod_dir: str) -> int:
    """Print the record as one line of JSON, with the keys of sshd by their file names; return the exit code."""
    record = read_json(os.path.join(pod_dir, "workspace.json"))
    if record is None:
        return NOT_READY
    if "ssh_config" in record:
        for name in KEYS:
            with open(os.path.join(pod_dir, name), encoding="utf-8") as file:
                record[name] = file.read()
    print(json.dumps(record))
    return 0
