"""Makes Python write the stacks of all threads into a file on a signal, which fairlead/runtime/stacks.py sends.

The hook imports this in interpreters of any age, so it must parse in any Python and import almost nothing.
"""

import os

try:
    from fairlead_collectives import prepare
except ImportError:  # not by the hook
    from fairlead.runtime.hook.fairlead_collectives import prepare

SIGNAL = 45  # a real-time signal, which programs rarely use; its default action would end the process
VARIABLE = "FAIRLEAD_STACKS"
_LEAST_FD = 200  # high enough for programs that rely on the lowest descriptors


def register():
    """Register this process, if its environment names an existing file and it is not registered yet."""
    path = os.environ.get(VARIABLE)
    if not path or not os.path.isdir("/proc/self/fd") or is_registered("self", path):
        return
    import faulthandler
    import fcntl

    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LEAST_FD)
    except OSError:  # a low limit of open files
        high = fd
    else:
        os.close(fd)
    faulthandler.register(SIGNAL, file=high, all_threads=True)
    prepare(path)


def is_registered(pid, path):
    """Return whether a process catches the signal and has the file open; no other process is sent the signal."""
    try:
        with open("/proc/%s/status" % pid) as file:  # noqa: UP031 (older than format)
            caught = [int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")]
        if not caught or not caught[0] >> (SIGNAL - 1) & 1:
            return False
        folder = "/proc/%s/fd" % pid  # noqa: UP031
        for name in os.listdir(folder):
            try:
                if os.readlink(os.path.join(folder, name)) == path:
                    return True
            except OSError:
                continue  # closed in the meantime
    except (IOError, OSError):  # noqa: UP024 (they differ before Python 3.3)
        return False
    return False
