"""The entry point of ``fairlead``: starts what takes as long as a command itself before it loads the command line."""

import gc
import os
import sys

from fairlead.cli.ahead import start_ahead

# New objects between looks for garbage. What a command loads stays, and by the default of 700 it is looked through
# hundreds of times, which takes a twelfth of the command's processor time.
NEW_OBJECTS = 50_000


def main() -> None:
    """Start a supervisor where the command will need one, then carry the command out; never shows a traceback."""
    gc.set_threshold(NEW_OBJECTS)
    start_ahead(sys.argv[1:], os.environ)
    from fairlead.cli.main import call  # here and not above: a sixth of what a command takes until it submits

    code = call(sys.argv[1:])
    gc.freeze()  # the process ends: nothing is to be looked through once more, which takes an eighth
    sys.exit(code)


if __name__ == "__main__":
    main()
