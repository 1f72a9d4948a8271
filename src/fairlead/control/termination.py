"""Handles termination signals in a thread of their own.

A signal handler runs in the main thread between any two bytecodes. If the main thread then holds the lock of the event
that the handler sets, the handler deadlocks.
"""

import signal
import threading
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def hold_signals() -> None:
    """Block SIGTERM and SIGINT until ``stop_on_signals``; call it in the main thread before starting any other.

    A thread that existed before would receive them, and their default action would end the process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` once, in a thread of its own, at the first of the signals held; the next one ends the process."""

    def wait() -> None:
        signal.sigwait(SIGNALS)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        stop()
        threading.Event().wait()  # only this thread receives the next one, all others block it

    threading.Thread(target=wait, name="signals", daemon=True).start()
