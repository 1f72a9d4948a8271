"""What holds for all tests."""

import signal

from hypothesis import settings

pytest_plugins = ["tests.s3", "tests.whole_run"]

# How long an example takes says how busy the machine is.
settings.register_profile("fairlead", deadline=None)
settings.load_profile("fairlead")

# A shell that starts the tests in the background has them ignore these, and every process below would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
