"""Ending when told to: signals taken by a thread of their own.

A handler runs in the main thread between any two of its steps, also while that holds the lock of what the handler wants
to set, and then waits for ever.
"""

import signal
import threading
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def hold_signals() -> None:
    """Keep SIGTERM and SIGINT until ``stop_on_signals``; for the main thread before any other is started.

    A thread that was there before would take them, and the process end by what they do by default.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` once, in a thread of its own, at the first of the signals held; the next one ends the process."""

    def wait() -> None:
        signal.sigwait(SIGNALS)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        stop()
        threading.Event().wait()  # the next one is taken by this thread alone, all others block it

    threading.Thread(target=wait, name="signals", daemon=True).start()
