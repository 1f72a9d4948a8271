"""The entry point of ``fairlead``: starts the supervisor, if needed, before it imports the command line."""

import gc
import os
import sys

from fairlead.cli.ahead import start_ahead

# Threshold of garbage collection. The objects that a command loads persist, and at the default of 700 they are scanned
# hundreds of times, which takes a twelfth of the command's processor time.
NEW_OBJECTS = 50_000


def main() -> None:
    """Start a supervisor if the command will need one, then run the command; never print a traceback."""
    gc.set_threshold(NEW_OBJECTS)
    start_ahead(sys.argv[1:], os.environ)
    from fairlead.cli.main import call  # here and not above: takes a sixth of the time until a command submits

    code = call(sys.argv[1:])
    gc.freeze()  # the process ends: skip a last garbage collection, which takes an eighth of the time
    sys.exit(code)


if __name__ == "__main__":
    main()
