"""Ending when told to: signals taken by a thread of their own.

A handler runs in the main thread between any two of its steps, also while that holds the lock of what the handler wants
to set, and then waits for ever.
"""

import signal
import threading
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` once, in a thread of its own, at the first SIGTERM or SIGINT; the next one ends the process.

    Call it in the main thread before others are started: those begun before it take signals as they did.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def wait() -> None:
        signal.sigwait(SIGNALS)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        stop()
        threading.Event().wait()  # the next one is taken by this thread alone, all others block it

    threading.Thread(target=wait, name="signals", daemon=True).start()
