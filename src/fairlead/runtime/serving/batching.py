"""Batches requests for ``predict``: queues them, runs batches in the one predict thread, and splits the results.

Requests with compatible inputs (the same names, types and shapes except for the batch dimension) are batched together,
the oldest first. If a batch of several requests fails, each is tried alone, so that only the faulty ones fail. A
request with more rows than a batch may have is split, which requires rows to be independent, as batching does anyway.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.runtime.serving.batch_times import Arrivals, BatchTimes, hold_until
from fairlead.runtime.serving.predictor import Arrays
from fairlead.runtime.serving.problems import PredictFailed, Problem, TooManyWaiting

Predict = Callable[[Arrays, int], Arrays]


@dataclass(eq=False)
class Waiting:
    """A request that is waiting or running."""

    inputs: Arrays
    rows: int
    key: Any
    came: float
    result: asyncio.Future[Arrays]
    started: float | None = None


class Batcher:
    """Batches requests.

    Args:
        predict: Called in the thread with at most ``max_batch_size`` rows and their number.
        thread: The executor, with one thread.
        max_batch_size: Most rows of a batch.
        max_latency_s: Limit of holding back plus the batch's own time; 0 holds nothing back.
        max_queue: Most requests that may wait.
        when_done: Called for every batch with its rows, its requests' seconds in the queue, and its own seconds.
    """

    def __init__(
        self,
        predict: Predict,
        thread: ThreadPoolExecutor,
        *,
        max_batch_size: int,
        max_latency_s: float,
        max_queue: int,
        when_done: Callable[[int, list[float], float], None] = lambda rows, waited, seconds: None,
    ) -> None:
        self._predict = predict
        self._thread = thread
        self._max_batch_size = max_batch_size
        self._max_latency_s = max_latency_s
        self._max_queue = max_queue
        self._when_done = when_done
        self._queue: deque[Waiting] = deque()
        self._came = asyncio.Event()
        self._arrivals = Arrivals()
        self._task: asyncio.Task[None] | None = None
        self.times = BatchTimes()
        self.running = 0

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queue)

    def retry_after_s(self) -> int:
        """Return the seconds after which all waiting requests should be done, as a whole number of at least 1."""
        rows = sum(item.rows for item in self._queue)
        batches = math.ceil(rows / self._max_batch_size)
        return max(1, math.ceil(batches * self.times.of(min(rows, self._max_batch_size))))

    def check_room(self) -> None:
        """Refuse a request if the queue is full.

        Raises:
            TooManyWaiting: The queue is full.
        """
        # One request may always wait for an idle predictor, even with a queue of size 0.
        if len(self._queue) >= self._max_queue and (self._queue or self.running):
            raise TooManyWaiting(
                f"{len(self._queue)} requests wait, and no more may", retry_after_s=self.retry_after_s()
            )

    async def predict(self, inputs: Arrays, rows: int) -> Arrays:
        """Return the outputs for a request's rows.

        Raises:
            TooManyWaiting: The queue is full.
            Problem: The predictor failed for this request.
        """
        self.check_room()
        loop = asyncio.get_running_loop()
        key = tuple(sorted((name, array.dtype.str, array.shape[1:]) for name, array in inputs.items()))
        item = Waiting(inputs, rows, key, loop.time(), loop.create_future())
        self._arrivals.add(item.came, rows)
        self._queue.append(item)
        self._came.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        try:
            return await item.result
        finally:
            if item.started is None:  # the client disconnected
                self._queue.remove(item)

    async def _work(self) -> None:
        """Run batches until no request waits."""
        loop = asyncio.get_running_loop()
        while self._queue:
            await self._hold(loop)
            batch = self._take()
            if not batch:
                continue
            rows = sum(item.rows for item in batch)
            began = loop.time()
            self.running = len(batch)
            try:
                seconds, outcomes = await loop.run_in_executor(self._thread, self._run, batch)
            except Exception as error:  # noqa: BLE001 (any error has to reach the requests of this batch)
                seconds, outcomes = 0.0, [PredictFailed(f"the batch failed: {error}")] * len(batch)
            self.running = 0
            if seconds:
                self.times.learn(rows, seconds)
            for item, outcome in zip(batch, outcomes):  # noqa: B905 (strict= needs Python 3.10)
                if item.result.done():
                    continue
                if isinstance(outcome, Exception):
                    item.result.set_exception(outcome)
                else:
                    item.result.set_result(outcome)
            self._when_done(rows, [began - item.came for item in batch], loop.time() - began)
            # Let the callers run: the requests that they send next may join the waiting ones.
            await asyncio.sleep(0)

    async def _hold(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait as long as holding back reduces latency."""
        while self._queue:
            until = hold_until(
                rows=self._like_first(),
                most=self._most(),
                oldest=self._queue[0].came,
                max_latency_s=self._max_latency_s,
                arrivals=self._arrivals,
                times=self.times,
            )
            now = loop.time()
            if until <= now:
                return
            self._came.clear()
            timer = loop.call_at(until, self._came.set)
            try:
                await self._came.wait()
            finally:
                timer.cancel()

    def _most(self) -> int:
        return self.times.rows_within(self._max_latency_s, self._max_batch_size)

    def _like_first(self) -> int:
        key, most, rows = self._queue[0].key, self._most(), 0
        for item in self._queue:
            if item.key == key:
                rows += item.rows
                if rows >= most:
                    break
        return rows

    def _take(self) -> list[Waiting]:
        """Take the oldest request and compatible ones that fit into the same batch."""
        if not self._queue:
            return []
        most, rows = self._most(), 0
        now = asyncio.get_running_loop().time()
        batch: list[Waiting] = []
        left: deque[Waiting] = deque()
        key = self._queue[0].key
        while self._queue:
            item = self._queue.popleft()
            if batch and (item.key != key or rows + item.rows > most):
                left.append(item)
                if rows >= most:
                    break
                continue
            item.started = now
            batch.append(item)
            rows += item.rows
        left.extend(self._queue)
        self._queue = left
        return batch

    def _run(self, batch: list[Waiting]) -> tuple[float, list[Arrays | Exception]]:
        """Run a batch in the thread; return its seconds, 0 if not representative, and the outcome of each request."""
        if len(batch) == 1:
            item = batch[0]
            began = time.perf_counter()
            outcome = self._alone(item)
            took = time.perf_counter() - began
            return (0.0 if isinstance(outcome, Exception) or item.rows > self._max_batch_size else took), [outcome]
        rows = sum(item.rows for item in batch)
        began = time.perf_counter()
        try:
            names = batch[0].inputs
            outputs = self._predict(
                {name: np.concatenate([item.inputs[name] for item in batch]) for name in names}, rows
            )
        except Problem:
            return 0.0, [self._alone(item) for item in batch]
        took = time.perf_counter() - began
        outcomes: list[Arrays | Exception] = []
        begin = 0
        for item in batch:
            end = begin + item.rows
            outcomes.append({name: array[begin:end] for name, array in outputs.items()})
            begin = end
        return took, outcomes

    def _alone(self, item: Waiting) -> Arrays | Exception:
        try:
            if item.rows <= self._max_batch_size:
                return self._predict(item.inputs, item.rows)
            parts = []
            for begin in range(0, item.rows, self._max_batch_size):
                part = {name: array[begin : begin + self._max_batch_size] for name, array in item.inputs.items()}
                parts.append(self._predict(part, min(self._max_batch_size, item.rows - begin)))
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        except Problem as error:
            return error
