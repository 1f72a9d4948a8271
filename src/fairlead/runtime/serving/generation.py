"""Generates texts concurrently, one piece of each in turn, in the one predict thread.

A text runs while its iterator is open. Up to ``max_batch_size`` texts run; further ones wait in order. Turns come from
the thread's own queue, so that batches of ``predict`` get turns as well. Generating pieces of several texts in one step
on a GPU is the task of an engine (``run:`` with vLLM or SGLang), not of this module.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from fairlead.runtime.serving.problems import BadRequest, PredictFailed, Problem, TooManyWaiting


class Generator:
    """Generates texts.

    Args:
        thread: The predict thread.
        max_running: Most texts that run at once.
        max_queue: Most texts that wait.
    """

    def __init__(self, thread: ThreadPoolExecutor, *, max_running: int, max_queue: int) -> None:
        self._thread = thread
        self._max_running = max_running
        self._max_queue = max_queue
        self._turns: deque[asyncio.Future[None]] = deque()
        self._last_s = 1.0
        self.running = 0

    @property
    def waiting(self) -> int:
        """Number of waiting texts."""
        return len(self._turns)

    def check_room(self) -> None:
        """Refuse a text if the queue is full.

        Raises:
            TooManyWaiting: The queue is full.
        """
        if self.running >= self._max_running and len(self._turns) >= self._max_queue:
            after = max(1, round(self._last_s * (len(self._turns) + 1) / self._max_running))
            raise TooManyWaiting(f"{len(self._turns)} requests wait, and no more may", retry_after_s=after)

    async def pieces(self, start: Callable[[], Iterator[str]], *, most: int) -> AsyncGenerator[str, None]:
        """Yield at most ``most`` pieces of a text; closing the generator ends the text.

        Raises:
            TooManyWaiting: The queue is full.
            Problem: The predictor failed.
        """
        self.check_room()
        loop = asyncio.get_running_loop()
        await self._take_turn(loop)
        began = loop.time()
        source: Iterator[str] | None = None
        try:
            for _ in range(most):
                if source is None:
                    source, piece = await loop.run_in_executor(self._thread, _first, start)
                else:
                    piece = await loop.run_in_executor(self._thread, _next, source)
                if piece is None:
                    return
                yield piece
        finally:
            if source is not None:
                self._close(source)
            self._last_s += 0.2 * (loop.time() - began - self._last_s)
            self._give_turn()

    async def _take_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.running < self._max_running:
            self.running += 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn was given just before the cancellation
                self._give_turn()
            else:
                self._turns.remove(turn)
            raise

    def _give_turn(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    def _close(self, source: Iterator[str]) -> None:
        """Close a text's iterator in the predict thread, without waiting for it."""
        close = getattr(source, "close", None)
        if close is not None:
            with contextlib.suppress(RuntimeError):  # the thread has ended with the server
                self._thread.submit(close)


def _first(start: Callable[[], Iterator[str]]) -> tuple[Iterator[str], str | None]:
    """Start a text and return its iterator and its first piece."""
    with _problems():
        source = iter(start())
    return source, _next(source)


def _next(source: Iterator[str]) -> str | None:
    """Return the next piece, which may be empty if a character has several tokens; None at the end."""
    with _problems():
        piece = next(source, None)
        if piece is not None and not isinstance(piece, str):
            raise PredictFailed(f"generate() yielded {type(piece).__name__}; yield text")
        return piece


@contextlib.contextmanager
def _problems() -> Iterator[None]:
    try:
        yield
    except Problem:
        raise
    except ValueError as error:
        raise BadRequest(f"generate() refused the request: {error}") from error
    except Exception as error:
        raise PredictFailed(f"generate() raised {type(error).__name__}: {error}") from error
