"""Starts the local supervisor in parallel with a command that is about to submit, since both take as long to start."""

import os
from collections.abc import Mapping, Sequence

from fairlead.errors import ClusterError

ELSEWHERE = ("--cluster", "--context", "--namespace", "-n", "-h", "--help")
VARIABLES = ("FAIRLEAD_CLUSTER", "FAIRLEAD_CONTEXT", "FAIRLEAD_NAMESPACE")


def will_submit_here(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether a command probably submits to this machine; a wrong guess costs a process that soon exits."""
    if arguments[:1] != ["run"] or any(environ.get(name) for name in VARIABLES):
        return False
    own = arguments[1 : arguments.index("--")] if "--" in arguments else arguments[1:]
    if any(word.partition("=")[0] in ELSEWHERE or (word.startswith("-n") and word[2:3] != "") for word in own):
        return False
    return "--" in arguments or any(os.path.isfile(word) for word in own)


def start_ahead(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Start a supervisor if the command line will need one and none runs; leave errors to the command.

    The state directory is not created here: a missing one is created after the command has validated its spec.
    """
    if not will_submit_here(arguments, environ):
        return
    # Here and not above: only `run` needs them.
    from fairlead.cluster.local.home import Home
    from fairlead.cluster.local.supervision import start_supervisor
    from fairlead.runtime.podfiles import is_locked

    try:
        home = Home.at()
        if home.path.is_dir() and not is_locked(Home.open().lock):
            start_supervisor(home, is_ahead=True)
    except (ClusterError, OSError):
        return
