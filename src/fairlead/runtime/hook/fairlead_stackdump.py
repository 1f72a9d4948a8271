# Has Python write the stacks of all threads into a file when a signal comes: asked for by fairlead/runtime/stacks.py.
# Imported by the hook in interpreters of any age, so it must parse in any Python, and imports next to nothing.
import os

SIGNAL = 45  # of the real-time signals, which programs rarely use; its default would end the process
VARIABLE = "FAIRLEAD_STACKS"
_LEAST_FD = 200  # out of the way of programs that count on the lowest descriptors


def register():
    """Registers this process if its environment names the file, which is there already, and it is not registered."""
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


def is_registered(pid, path):
    """Tells whether a process catches the signal and has the file open: no other is ever sent the signal."""
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
                continue  # closed meanwhile
    except (IOError, OSError):  # noqa: UP024 (they differ before Python 3.3)
        return False
    return False
