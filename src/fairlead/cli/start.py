"""The entry point of ``fairlead``: starts the supervisor, if needed, before it imports the command line."""

import _signal  # type: ignore[import-not-found]  # the part of `signal` in C, without its enums, which take time
import gc
import os
import sys


def _interrupted(_number: int, _frame: object) -> None:
    """End the process on Ctrl-C while modules are imported, where a traceback would be all that a user sees."""
    os.write(2, b"\nInterrupted; nothing was done.\n")
    os._exit(130)


_is_command = __name__ == "__main__" or sys.argv[0].rpartition("/")[2] == "fairlead"
if _is_command and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _interrupted)

from fairlead.cli.ahead import start_ahead  # noqa: E402 (after the handler, which is for these imports)
from fairlead.runtime import utf8_mode  # noqa: E402

# Threshold of garbage collection. The objects that a command loads persist, and at the default of 700 they are scanned
# hundreds of times, which takes a twelfth of the command's processor time.
NEW_OBJECTS = 50_000


def main() -> None:
    """Start a supervisor if the command will need one, then run the command; never print a traceback."""
    utf8_mode.enter()
    gc.set_threshold(NEW_OBJECTS)
    start_ahead(sys.argv[1:], os.environ)
    from fairlead.cli.main import call  # here and not above: takes a sixth of the time until a command submits

    if _signal.getsignal(_signal.SIGINT) is _interrupted:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    code = call(sys.argv[1:])
    gc.freeze()  # the process ends: skip a last garbage collection, which takes an eighth of the time
    sys.exit(code)


if __name__ == "__main__":
    main()
