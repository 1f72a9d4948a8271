"""The routes of a replica and their handlers. `openapi.py` describes the same routes; a test compares the two."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from fairlead.runtime.serving.batching import Batcher
from fairlead.runtime.serving.completions import Completion, messages_of, read_completion
from fairlead.runtime.serving.connections import Connection, read_body, send, taking
from fairlead.runtime.serving.generation import Generator
from fairlead.runtime.serving.inference_protocol import (
    HEADER_LENGTH,
    read_infer_request,
    read_json,
    write_infer_answer,
)
from fairlead.runtime.serving.metrics import CONTENT_TYPE, ServerMetrics
from fairlead.runtime.serving.openapi import describe
from fairlead.runtime.serving.predictor import Arrays, Predictor
from fairlead.runtime.serving.problems import NotServed, PredictFailed, Problem, Unavailable, WrongMethod
from fairlead.runtime.serving.settings import Settings

VERSION = "2"
EXTENSIONS = ("binary_tensor_data",)
EVENTS = "text/event-stream; charset=utf-8"
CLIENT_GONE = 499  # nginx's status code for it, in metrics only
Answer = Callable[[web.BaseRequest, "dict[str, str]"], Awaitable[web.StreamResponse]]

ROUTES: dict[str, tuple[str, str]] = {
    "/v2": ("GET", "server_metadata"),
    "/v2/health/live": ("GET", "live"),
    "/v2/health/ready": ("GET", "ready"),
    "/v2/models/{model}": ("GET", "model_metadata"),
    "/v2/models/{model}/ready": ("GET", "model_ready"),
    "/v2/models/{model}/infer": ("POST", "infer"),
    "/v2/models/{model}/versions/{version}": ("GET", "model_metadata"),
    "/v2/models/{model}/versions/{version}/ready": ("GET", "model_ready"),
    "/v2/models/{model}/versions/{version}/infer": ("POST", "infer"),
    "/v1/models": ("GET", "list_models"),
    "/v1/models/{model}": ("GET", "show_model"),
    "/v1/completions": ("POST", "completions"),
    "/v1/chat/completions": ("POST", "chat_completions"),
    "/metrics": ("GET", "metrics_text"),
    "/openapi.json": ("GET", "openapi"),
}
"""Method and handler of each path."""
_BY_PARTS = {tuple(path.split("/")[1:]): (path, method, name) for path, (method, name) in ROUTES.items()}


class PredictorService:
    """A predictor that is served over HTTP.

    Args:
        settings: The settings of this replica.
        thread: The predict thread.

    Attributes:
        predictor: None until it is loaded and warm.
        problem: The reason why requests cannot be answered now; None if they can.
        stopping: Whether it is no longer ready; requests are still answered, on connections that are then closed.
        in_flight: Number of requests that are being answered, without probes.
    """

    def __init__(self, settings: Settings, thread: ThreadPoolExecutor) -> None:
        self.settings = settings
        self.predictor: Predictor | None = None
        self.problem: str | None = "the model is being loaded"
        self.stopping = False
        self.in_flight = 0
        self.last_request = 0.0
        self._thread = thread
        self.generator = Generator(thread, max_running=settings.max_batch_size, max_queue=settings.max_queue)
        self.batcher = Batcher(
            self._predict,
            thread,
            max_batch_size=settings.max_batch_size,
            max_latency_s=settings.max_latency_ms / 1000.0,
            max_queue=settings.max_queue,
            when_done=self._batch_done,
        )
        self._metrics = ServerMetrics(
            settings.service,
            running=lambda: self.batcher.running + self.generator.running,
            waiting=lambda: self.batcher.waiting + self.generator.waiting,
        )

    def open(self, predictor: Predictor) -> None:
        """Become ready, with a loaded and warm predictor."""
        self.predictor = predictor
        self.problem = None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin_request()
        loop = asyncio.get_running_loop()
        began, route, status = loop.time(), "none", CLIENT_GONE
        is_work = request.method == "POST"
        self.in_flight += is_work
        try:
            try:
                route, answer, names = self._find(request)
                response = await answer(request, names)
            except Problem as error:
                response = _problem(request, error)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 (one request must not end the others)
                connection.log_exception("answering %s failed", route, exc_info=error)
                response = _problem(request, Problem(f"the server failed: {type(error).__name__}"))
            if self.stopping:
                response.force_close()
            await send(request, response, timeout_s=self.settings.read_timeout_s)
            status = response.status
            return response
        finally:
            self.in_flight -= is_work
            connection.end_request()
            self._metrics.count(route, status)
            if is_work:
                self.last_request = loop.time()
                self._metrics.latency.observe(self.last_request - began)

    def _find(self, request: web.BaseRequest) -> tuple[str, Answer, dict[str, str]]:
        """Return the route, the handler and the path parameters of a request."""
        parts = tuple(request.rel_url.raw_path.split("/")[1:])
        handler = _BY_PARTS.get(parts)
        names: dict[str, str] = {}
        if handler is None:
            for pattern, candidate in _BY_PARTS.items():
                if len(pattern) == len(parts) and all(
                    own == part or own[:1] == "{"
                    for own, part in zip(pattern, parts)  # noqa: B905
                ):
                    handler = candidate
                    names = {own[1:-1]: unquote(part) for own, part in zip(pattern, parts) if own[:1] == "{"}  # noqa: B905
                    break
        if handler is None:
            raise NotServed(f"there is no {_short(request.path)}; /openapi.json lists what there is")
        path, method, name = handler
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            raise WrongMethod(f"{path} takes {method}, not {_short(request.method)}", allow=method)
        return path, getattr(self, "_" + name), names

    # Health and metadata

    async def _live(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        return web.json_response({"live": True})

    async def _ready(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        problem = "the server is about to end" if self.stopping else self.problem
        if problem is not None:
            raise Unavailable(problem, retry_after_s=1)
        return web.json_response({"ready": True})

    async def _server_metadata(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        return web.json_response({"name": "fairlead", "version": VERSION, "extensions": list(EXTENSIONS)})

    async def _model_metadata(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        self._check_model(names)
        predictor = self._loaded()
        return web.json_response(
            {
                "name": self.settings.service,
                "versions": [self.settings.revision],
                "platform": "fairlead",
                "inputs": [spec.describe() for spec in (predictor.inputs or {}).values()],
                "outputs": [spec.describe() for spec in (predictor.outputs or {}).values()],
            }
        )

    async def _model_ready(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        self._check_model(names)
        await self._ready(request, names)
        return web.json_response({"name": self.settings.service, "ready": True})

    async def _metrics_text(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _openapi(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        return web.json_response(describe(ROUTES, self.settings, self.predictor))

    # The Open Inference Protocol

    async def _infer(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        self._check_model(names)
        predictor = self._loaded()
        if not predictor.predicts:
            raise NotServed(f"{self.settings.service} generates text; ask /v1/completions or /v1/chat/completions")
        self.batcher.check_room()  # before the body takes memory
        body = await self._body(request)
        header_length = request.headers.get(HEADER_LENGTH)
        infer_request = read_infer_request(body, header_length, predictor.inputs, self.settings.service)
        results = await self.batcher.predict(infer_request.inputs, infer_request.rows)
        answer, json_bytes = write_infer_answer(
            infer_request,
            results,
            model=self.settings.service,
            version=self.settings.revision,
            declared=predictor.outputs,
        )
        if json_bytes is None:
            return web.Response(body=answer, content_type="application/json")
        headers = {HEADER_LENGTH: str(json_bytes), "Content-Type": "application/octet-stream"}
        return web.Response(body=answer, headers=headers)

    # OpenAI's routes

    async def _list_models(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        models = [self._model_card()] if self._loaded().generates else []
        return web.json_response({"object": "list", "data": models})

    async def _show_model(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        self._check_model(names)
        self._generating()
        return web.json_response(self._model_card())

    async def _completions(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        return await self._complete(request, "text_completion")

    async def _chat_completions(self, request: web.BaseRequest, names: dict[str, str]) -> web.StreamResponse:
        return await self._complete(request, "chat.completion")

    async def _complete(self, request: web.BaseRequest, kind: str) -> web.StreamResponse:
        began = asyncio.get_running_loop().time()
        predictor = self._generating()
        self.generator.check_room()
        fields = read_json(await self._body(request))
        completion = read_completion(fields, kind, predictor, self.settings.service)
        start = functools.partial(
            _start, predictor, completion, messages_of(fields) if kind == "chat.completion" else None
        )
        source = self._timed(self.generator.pieces(start, most=completion.max_tokens), began)
        async with contextlib.aclosing(source) as pieces:
            if completion.stream:
                return await self._stream(request, completion, pieces, predictor)
            async for piece in pieces:
                completion.add(piece)
                if completion.finish is not None:
                    break
        completion.end()
        return web.json_response(await self._in_thread(completion.answer, predictor))

    async def _stream(
        self, request: web.BaseRequest, completion: Completion, pieces: AsyncIterator[str], predictor: Predictor
    ) -> web.StreamResponse:
        """Send server-sent events, the first only with the first piece: an error before it still sets the status."""
        response: web.StreamResponse | None = None

        async def event(data: Any) -> None:
            nonlocal response
            with taking(request, self.settings.read_timeout_s):
                if response is None:
                    response = web.StreamResponse(headers={"Content-Type": EVENTS, "Cache-Control": "no-cache"})
                    await response.prepare(request)
                text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
                await response.write(f"data: {text}\n\n".encode())

        try:
            async for piece in pieces:
                ready = completion.add(piece)
                if ready:
                    await event(completion.chunk(ready, first=response is None))
                if completion.finish is not None:
                    break
            rest = completion.end()
            if rest or response is None:
                await event(completion.chunk(rest, first=response is None))
            await event(completion.chunk("", last=True))
            if completion.include_usage:
                await event(await self._in_thread(completion.usage_chunk, predictor))
            await event("[DONE]")
        except Problem as error:
            if response is None:
                raise
            await event(_openai_error(error))
        assert response is not None
        return response

    async def _timed(self, pieces: AsyncGenerator[str, None], began: float) -> AsyncGenerator[str, None]:
        """Pass on pieces and measure the times between them."""
        loop = asyncio.get_running_loop()
        newest: float | None = None
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                now = loop.time()
                if newest is None:
                    self._metrics.first_token.observe(now - began)
                else:
                    self._metrics.per_token.observe(now - newest)
                newest = now
                self._metrics.generation_tokens.inc()
                yield piece

    # Shared helpers

    def _check_model(self, names: dict[str, str]) -> None:
        own = {"model": self.settings.service, "version": self.settings.revision}
        for what, name in names.items():
            if name != own[what]:
                raise NotServed(f"there is no {what} {_short(name)}; there is {own[what]!r}")

    def _loaded(self) -> Predictor:
        if self.predictor is None or self.problem is not None:
            raise Unavailable(self.problem or "the model is being loaded", retry_after_s=1)
        return self.predictor

    def _generating(self) -> Predictor:
        predictor = self._loaded()
        if not predictor.generates:
            raise NotServed(f"{self.settings.service} generates no text; ask /v2/models/{self.settings.service}/infer")
        return predictor

    async def _body(self, request: web.BaseRequest) -> bytearray:
        limit = self.settings.max_body_bytes
        return await read_body(request, most=limit, timeout_s=self.settings.read_timeout_s)

    def _model_card(self) -> dict[str, Any]:
        return {"id": self.settings.service, "object": "model", "created": 0, "owned_by": "fairlead"}

    async def _in_thread(self, call: Callable[[Predictor], Any], predictor: Predictor) -> Any:
        """Make a call that may count tokens, in the predict thread if the predictor counts them."""
        if not predictor.counts_tokens:
            return call(predictor)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call, predictor)
        except Exception as error:
            raise PredictFailed(f"count_tokens() raised {type(error).__name__}: {error}") from error

    def _predict(self, inputs: Arrays, rows: int) -> Arrays:
        assert self.predictor is not None
        return self.predictor.predict(inputs, rows)

    def _batch_done(self, rows: int, waited: list[float], seconds: float) -> None:
        self._metrics.batch_size.observe(rows)
        self._metrics.inference_time.observe(seconds)
        for waited_s in waited:
            self._metrics.queue_time.observe(waited_s)


def _start(predictor: Predictor, completion: Completion, messages: list[dict[str, str]] | None) -> Iterator[str]:
    """Start a text, in the predict thread."""
    if messages is not None:
        completion.prompt = predictor.chat_prompt(messages)
    return predictor.generate(
        completion.prompt, max_tokens=completion.max_tokens, temperature=completion.temperature, **completion.sampling
    )


def _problem(request: web.BaseRequest, error: Problem) -> web.Response:
    """Return the response to a problem, in the format of the request's protocol."""
    body = _openai_error(error) if request.path.startswith("/v1/") else {"error": str(error)}
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if error.allow is not None:
        headers["Allow"] = error.allow
    return web.json_response(body, status=error.status, headers=headers)


def _openai_error(error: Problem) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": error.code, "param": None, "code": None}}


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
