"""Runs programs of steps in process groups of their own, and forwards their output line by line, in one thread."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_CHUNK = 1 << 16


@dataclass(slots=True)
class StepProgram:
    """A running program of a step.

    Attributes:
        began_at: Start by the monotonic clock.
        kill_at: Time at which its group gets SIGKILL; None before a stop notice.
        pipes: Its output pipes with the incomplete last line of each.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    began_at: float
    kill_at: float | None = None
    timed_out: bool = False
    pipes: dict[int, bytearray] = field(default_factory=dict)


class StepPrograms:
    """The running programs. An instance belongs to the main thread, as signal handlers do."""

    def __init__(self, *, is_alone: bool) -> None:
        self._is_alone = is_alone
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, StepProgram] = {}
        self._owners: dict[int, tuple[StepProgram, int]] = {}
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    @contextmanager
    def listening(self, stop: Callable[[], None]) -> Iterator[None]:
        """Handle signals within the block: wake up when a program ends or a stop notice arrives."""
        before = [
            (number, signal.signal(number, handler))
            for number, handler in (
                (signal.SIGCHLD, lambda *_: None),
                (signal.SIGTERM, lambda *_: stop()),
                (signal.SIGINT, lambda *_: stop()),
            )
        ]
        old = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old)
            for number, handler in before:
                signal.signal(number, handler)
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    @property
    def num_running(self) -> int:
        """Return the number of running programs."""
        return len(self._running)

    def start(self, name: str, command: str, *, workdir: Path, env: Mapping[str, str]) -> None:
        """Start a shell command.

        Raises:
            OSError: It cannot be started.
        """
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=workdir,
            env=dict(env),
            process_group=0,
        )
        program = StepProgram(name, process, time.monotonic())
        self._running[name] = program
        for pipe, target in ((process.stdout, 1), (process.stderr, 2)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            program.pipes[pipe.fileno()] = bytearray()
            self._owners[pipe.fileno()] = (program, target)
            self._selector.register(pipe.fileno(), selectors.EVENT_READ)

    def wait(self, timeout_s: float | None) -> list[tuple[StepProgram, int]]:
        """Wait for output, a signal or the timeout; return the programs that ended and their exit codes."""
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wake_read, _CHUNK):
                        pass
            elif key.fd in self._owners:
                self._read(key.fd)
        ended = []
        for program in list(self._running.values()):
            code = program.process.poll()
            if code is not None:
                # Processes left in its group end with it.
                self._signal(program, signal.SIGKILL)
                self._close(program)
                del self._running[program.name]
                ended.append((program, code))
        return ended

    def stop(self, name: str, grace_s: float) -> None:
        """Send a program its stop notice, once."""
        program = self._running.get(name)
        if program is not None and program.kill_at is None:
            program.kill_at = time.monotonic() + grace_s
            self._signal(program, signal.SIGTERM)

    def enforce(self, timeouts: Mapping[str, float], grace_s: float) -> float | None:
        """Stop programs past their timeout and kill those past their grace; return the seconds to the next deadline."""
        now, left = time.monotonic(), []
        for program in self._running.values():
            limit = timeouts.get(program.name)
            if program.kill_at is not None:
                if now >= program.kill_at:
                    self._signal(program, signal.SIGKILL)
                else:
                    left.append(program.kill_at - now)
            elif limit is not None:
                if now - program.began_at >= limit:
                    program.timed_out = True
                    self.stop(program.name, grace_s)
                    left.append(grace_s)
                else:
                    left.append(program.began_at + limit - now)
        return min(left, default=None)

    def names(self) -> tuple[str, ...]:
        """Return the tasks whose programs run."""
        return tuple(self._running)

    def _signal(self, program: StepProgram, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(program.process.pid, number)

    def _read(self, pipe: int) -> bool:
        """Forward the data of a pipe; return False if it has none now or is closed."""
        program, target = self._owners[pipe]
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(pipe)
            del self._owners[pipe]
            return False
        buffer = program.pipes[pipe]
        buffer += data
        end = buffer.rfind(b"\n") + 1
        if end:
            self._tell(program.name, bytes(buffer[:end]), target)
            del buffer[:end]
        return True

    def _close(self, program: StepProgram) -> None:
        for pipe, buffer in program.pipes.items():
            while pipe in self._owners and self._read(pipe):
                pass
            if buffer:
                self._tell(program.name, bytes(buffer) + b"\n", self._owners[pipe][1] if pipe in self._owners else 1)
            if pipe in self._owners:
                self._selector.unregister(pipe)
                del self._owners[pipe]
        for stream in (program.process.stdout, program.process.stderr):
            if stream is not None:
                stream.close()

    def _tell(self, name: str, lines: bytes, target: int) -> None:
        if not self._is_alone:
            prefix = f"[{name}] ".encode()
            lines = b"".join(prefix + line for line in lines.splitlines(keepends=True))
        stream = (sys.stdout if target == 1 else sys.stderr).buffer
        stream.write(lines)
        stream.flush()
