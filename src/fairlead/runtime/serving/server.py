"""The life cycle of a replica: listen, load, warm up, become ready; on TERM drain and exit.

It is live from the start and ready only once warm, so that a probe can tell a slow load from a dead process. On TERM it
reports not ready and continues to answer, on connections that are closed after their response, until no request has
arrived for a while, because routers need a moment to notice. Requests that still run when the grace period ends are
lost, and the exit code shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fairlead.runtime.serving.connections import ConnectionServer
from fairlead.runtime.serving.model_files import fetched_model
from fairlead.runtime.serving.predictor import Predictor, Unusable, find_class
from fairlead.runtime.serving.problems import Problem
from fairlead.runtime.serving.routes import PredictorService
from fairlead.runtime.serving.settings import Settings

QUIET_S = 0.5
"""Seconds without a new request after which a stopping replica closes its port."""
RESERVE_S = 0.5
"""Seconds of the grace period that are left for closing connections and for the exit."""
BACKLOG = 1024
EXIT_FAILED = 1


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    *,
    began: float | None = None,
    on_listening: Callable[[int], None] = lambda port: None,
) -> int:
    """Serve until stopped; return the exit code: 0 if every request was answered, 1 otherwise or if loading failed.

    Args:
        began: ``time.monotonic()`` at the start of the process, for the times reported on standard error.
        on_listening: Called with the port, before anything is loaded.
    """
    began = time.monotonic() if began is None else began
    loop = asyncio.get_running_loop()
    # Not a with block: a call that hangs in the thread must not delay the exit.
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="predict")
    service = PredictorService(settings, executor)
    connections = ConnectionServer(
        service.handle, read_timeout_s=settings.read_timeout_s, max_connections=settings.max_connections
    )
    try:
        listener = await loop.create_server(connections, settings.host, settings.port, backlog=BACKLOG)
    except OSError as error:
        _report({"failed": f"cannot listen on {settings.host}:{settings.port}: {error.strerror}"})
        return EXIT_FAILED
    port = int(listener.sockets[0].getsockname()[1])
    on_listening(port)
    times = {"import_s": round(time.monotonic() - began, 3)}
    loading = loop.run_in_executor(executor, _load, settings, service, times)
    stopped = loop.create_task(stop.wait())
    try:
        first_of: set[asyncio.Future[Any]] = {loading, stopped}
        await asyncio.wait(first_of, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            return 0  # stopped before it served anything
        try:
            service.open(loading.result())
        except Exception as error:  # noqa: BLE001 (any error of the user's code is reported, and the replica fails)
            _report_failure(error)
            return EXIT_FAILED
        times["ready_s"] = round(time.monotonic() - began, 3)
        _report({"ready": f"http://{settings.host}:{port}", "model": settings.service, **times})
        await stopped
        return await _drain(service, listener, connections)
    finally:
        stopped.cancel()
        listener.close()
        with contextlib.suppress(Exception):  # the process exits, which closes the connections
            await connections.shutdown(0.1)
        executor.shutdown(wait=False, cancel_futures=True)


async def serve_until_signalled(settings: Settings, *, began: float) -> int:
    """Serve until TERM or INT."""
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    return await serve(settings, stop, began=began)


async def _drain(service: PredictorService, listener: asyncio.Server, connections: ConnectionServer) -> int:
    """Answer current and arriving requests until none has arrived for a while or the grace period ends."""
    loop = asyncio.get_running_loop()
    service.stopping = True
    now = loop.time()
    grace_s = service.settings.grace_s
    end = now + max(0.0, grace_s - RESERVE_S)
    quiet_s = min(QUIET_S, grace_s / 4)
    drain_start, service.last_request = now, max(service.last_request, now)
    while loop.time() < end and (service.in_flight or loop.time() - service.last_request < quiet_s):
        await asyncio.sleep(min(0.02, quiet_s))
    listener.close()
    connections.pre_shutdown()
    while loop.time() < end and service.in_flight:
        await asyncio.sleep(0.02)
    num_lost = service.in_flight
    _report(
        {
            "stopped": f"{num_lost} requests lost" if num_lost else "every request answered",
            "drain_s": round(loop.time() - drain_start, 3),
        }
    )
    return EXIT_FAILED if num_lost else 0


def _load(settings: Settings, service: PredictorService, times: dict[str, float]) -> Predictor:
    """Import, load and warm up the predictor, in the predict thread; record the seconds of each in ``times``."""
    lap_start = time.monotonic()

    def lap(name: str) -> None:
        nonlocal lap_start
        now = time.monotonic()
        times[name], lap_start = round(now - lap_start, 3), now

    instance = find_class(settings.predictor, os.getcwd())()
    predictor = Predictor(instance)
    lap("import_predictor_s")
    model = fetched_model(settings.model, os.environ.get("FAIRLEAD_RUN_DIR"), os.environ)
    if model != settings.model:
        lap("fetch_model_s")
    predictor.load(model)
    lap("load_s")
    for number, warm_up_call in enumerate(predictor.warm_up(settings.max_batch_size)):
        started = time.perf_counter()
        try:
            rows, _ = warm_up_call()
        except Problem as error:
            _report({"warning": f"batches of zeros cannot warm it up: {error}; give {predictor.name} a warm_up()"})
            break
        if rows and number % 3:  # each size runs three times, of which the first includes one-time costs
            service.batcher.times.learn(rows, time.perf_counter() - started)
    lap("warm_up_s")
    return predictor


def _report_failure(error: Exception) -> None:
    """Report on standard error why the predictor cannot be served, with the traceback if the user's code failed."""
    if not isinstance(error, Unusable):
        traceback.print_exception(type(error), error, error.__traceback__)
    _report({"failed": f"{type(error).__name__}: {error}" if not isinstance(error, Unusable) else str(error)})


def _report(fields: dict[str, Any]) -> None:
    print(json.dumps({"fairlead": "serving", **fields}), file=sys.stderr, flush=True)
