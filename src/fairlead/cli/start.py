"""The entry point of ``fairlead``: starts what takes as long as a command itself before it loads the command line."""

import os
import sys

from fairlead.cli.ahead import start_ahead


def main() -> None:
    """Start a supervisor where the command will need one, then carry the command out; never shows a traceback."""
    start_ahead(sys.argv[1:], os.environ)
    from fairlead.cli.main import call  # here and not above: a sixth of what a command takes until it submits

    sys.exit(call(sys.argv[1:]))


if __name__ == "__main__":
    main()
