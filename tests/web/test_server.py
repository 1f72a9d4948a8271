"""The page over HTTP: who is answered, with which headers, and how a change comes to an open page."""

import asyncio
import base64
import hashlib
import json
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.runtime import peer_users
from fairlead.state.snapshot import Phase
from fairlead.web import server
from fairlead.web.server import Page
from tests.web.world import World

PATIENCE_S = 30.0
Client = TestClient[Any, Any]


def serving(home: Path, ask: Callable[[Client], Awaitable[None]]) -> None:
    """Serve the page of a state directory while somebody asks."""

    async def serve() -> None:
        page = Page(lambda: LocalCluster.open(home))
        async with TestClient(TestServer(page.application())) as client:
            await asyncio.wait_for(ask(client), PATIENCE_S)

    asyncio.run(serve())


def test_every_answer_has_the_headers_that_keep_it_apart(world: World) -> None:
    async def ask(client: Client) -> None:
        for path in ("/", "/nothing", "/?state=x", "/icon.svg", "/live"):
            async with client.get(path) as answer:
                assert answer.headers["X-Content-Type-Options"] == "nosniff", path
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert "Access-Control-Allow-Origin" not in answer.headers
                assert answer.headers["Referrer-Policy"] == "same-origin"

    serving(world.cluster.home.path, ask)


def test_a_page_carries_its_style_and_script_which_the_policy_lets_in_by_their_hashes(world: World) -> None:
    async def ask(client: Client) -> None:
        async with client.get("/") as answer:
            policy, text = answer.headers["Content-Security-Policy"], await answer.text()
        for element, word in (("style", "prefers-color-scheme"), ("script", "EventSource")):
            content = text.partition(f"<{element}>")[2].partition(f"</{element}>")[0]
            assert word in content
            told = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"{element}-src 'sha256-{told}';" in policy
        # Nothing but the icon is loaded, which no browser waits for.
        assert re.findall(r'<(?:link|script|img)[^>]*(?:href|src)="([^"]*)"', text) == ["/icon.svg"]

    serving(world.cluster.home.path, ask)


def test_a_window_that_another_site_opened_is_cut_off_from_it(world: World) -> None:
    link = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    async def ask(client: Client) -> None:
        for site, policy in {
            "cross-site": "same-origin", "same-site": "same-origin", None: "same-origin", "none": None,
            "same-origin": None,
        }.items():  # fmt: skip
            for path in ("/", "/nothing"):
                headers = link if site is None else {**link, "Sec-Fetch-Site": site}
                async with client.get(path, headers=headers) as answer:
                    assert answer.headers.get("Cross-Origin-Opener-Policy") == policy, (site, path)

    serving(world.cluster.home.path, ask)


def test_a_name_that_is_not_this_machines_is_refused(world: World) -> None:
    async def ask(client: Client) -> None:
        for host, status in {
            "localhost": 200, "LOCALHOST:7700": 200, "127.0.0.1:1": 200, "[::1]:7700": 200, "evil.example": 421,
            "localhost.evil.example": 421, "127.0.0.1.evil.example:80": 421, "": 421, "evil.example:localhost": 421,
        }.items():  # fmt: skip
            for path in ("/", "/icon.svg", "/live"):
                async with client.get(path, headers={"Host": host}) as answer:
                    assert answer.status == status, (host, path)

    serving(world.cluster.home.path, ask)


def test_nothing_can_be_changed_and_nothing_is_read_by_another_site(world: World) -> None:
    async def ask(client: Client) -> None:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            async with client.request(method, "/") as answer:
                assert answer.status == 405, method
        other = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
        async with client.get("/", headers=other) as answer:
            assert answer.status == 403
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        async with client.get("/", headers=link) as answer:
            assert answer.status == 200
        async with client.get("/", headers={**link, "Sec-Fetch-Dest": "iframe"}) as answer:
            assert answer.status == 403

    serving(world.cluster.home.path, ask)


def test_files_beside_the_icon_are_not_served(world: World) -> None:
    async def ask(client: Client) -> None:
        for path in (
            "/static/app.js",
            "/static/../server.py",
            "/static/%2e%2e/server.py",
            "/icon.svg/../server.py",
            "/templates/page.html",
        ):
            async with client.get(path) as answer:
                assert answer.status == 404, path

    serving(world.cluster.home.path, ask)


def test_another_user_of_the_machine_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(client: Client) -> None:
        async with client.get("/") as answer:
            assert answer.status == 200
        monkeypatch.setattr(peer_users, "_users", lambda: (54321,))
        async with client.get("/") as answer:
            assert answer.status == 403

    serving(world.cluster.home.path, ask)


def test_a_change_is_sent_to_an_open_page_and_nothing_else_is(world: World) -> None:
    first = world.run("first", Phase.RUNNING)

    async def ask(client: Client) -> None:
        async with client.get("/live", params={"view": f"/runs/{first.uid}"}) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            told = await _next(answer)
            assert told["title"] == "first"
            assert "the test made first Running" in told["main"]
        digest = told["digest"]
        async with client.get("/live", params={"view": "/", "digest": digest}) as answer:
            before = await _next(answer)  # another view has another digest
            assert "second" not in before["main"]
            world.run("second", Phase.PENDING)
            after = await _next(answer)
            assert "the test made second Pending" in after["main"]
            assert after["digest"] != before["digest"]

    serving(world.cluster.home.path, ask)


def test_what_the_page_knows_already_is_not_sent_again(world: World) -> None:
    async def ask(client: Client) -> None:
        async with client.get("/live", params={"view": "/"}) as answer:
            digest = (await _next(answer))["digest"]
        async with client.get("/live", params={"view": "/", "digest": digest}) as answer:
            world.run("new")
            while "new" not in (told := await _next(answer))["main"]:
                assert told["digest"] != digest  # nothing but another change is sent, such as of who looks after it

    serving(world.cluster.home.path, ask)


def test_a_run_that_is_deleted_is_told_and_the_stream_ends(world: World) -> None:
    async def ask(client: Client) -> None:
        for view in ("/runs/0123", "/?state=x", "//evil.example/"):
            async with client.get("/live", params={"view": view}) as answer:
                assert b"event: gone" in await answer.read(), view

    serving(world.cluster.home.path, ask)


def test_more_pages_than_can_be_served_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_STREAMS", 1)

    async def ask(client: Client) -> None:
        async with client.get("/live") as first:
            await _next(first)
            async with client.get("/live") as second:
                assert second.status == 503

    serving(world.cluster.home.path, ask)


def test_threads_end_with_the_server_and_streams_do_not_hold_it_up(world: World) -> None:
    before = set(threading.enumerate())

    async def ask(client: Client) -> None:
        answer = await client.get("/live")
        await _next(answer)  # it is left open

    serving(world.cluster.home.path, ask)
    left = [
        each for each in threading.enumerate() if each not in before and each.name.startswith(("reader", "watcher"))
    ]
    assert not left


async def _next(answer: ClientResponse) -> dict[str, str]:
    """The next message of a stream."""
    while line := await answer.content.readline():
        if line.startswith(b"data: "):
            told: dict[str, str] = json.loads(line.removeprefix(b"data: "))
            return told
    raise AssertionError("the stream ended")
