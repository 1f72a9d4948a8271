"""Ending on a signal: whoever is told may need a lock that the main thread holds at that instant."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, threading, time
from fairlead.control.termination import hold_signals, stop_on_signals

hold_signals()
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
lock, over = threading.Lock(), threading.Event()

def stop():
    with lock:
        over.set()
    if "again" in sys.argv:
        over.clear()

stop_on_signals(stop)
with lock:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
if "again" in sys.argv:
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
sys.exit(0 if over.wait(60) else 1)
"""


def ending(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], timeout=100, check=False).returncode


@pytest.mark.slow
def test_a_signal_amid_a_held_lock_stops_it_when_the_lock_is_free() -> None:
    assert ending() == 0


@pytest.mark.slow
def test_the_second_signal_ends_what_does_not_stop() -> None:
    assert ending("again") == -15
