"""A page that asks who reads: nothing is shown without a token that the cluster knows."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fairlead.cluster.listing import PagedClient
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.errors import ClusterError, NotAllowed
from fairlead.state.snapshot import Phase
from fairlead.web import server, visitors
from fairlead.web.addresses import MENU
from fairlead.web.server import Page
from fairlead.web.visitors import COOKIE, Authenticator, Identity, read_identity
from tests.web.world import World

Client = TestClient[Any, Any]
GOOD = "abc.def-_~+/=="


def serving(
    world: World,
    ask: Callable[[Client], Awaitable[None]],
    known: dict[str, str] | None = None,
    trouble: Sequence[str] = (),
) -> list[str]:
    """Serve the page of a state directory to those who are known; tells the namespaces that were opened.

    Args:
        trouble: While it has something, nobody can be asked who reads.
    """
    names = {GOOD: "ada"} if known is None else known
    opened: list[str] = []

    def name(identity: Identity) -> str:
        if trouble:
            raise ClusterError(trouble[0])
        if identity.token not in names:
            raise NotAllowed("The cluster does not know this token, or not any more.")
        return names[identity.token]

    def open_as(identity: Identity) -> PagedClient:
        opened.append(identity.namespace)
        return LocalCluster.open(world.cluster.home.path)

    def never() -> PagedClient:
        raise AssertionError("nothing is opened for nobody")

    async def serve() -> None:
        page = Page(never, Authenticator(name=name, open_as=open_as))
        async with TestClient(TestServer(page.application())) as client:
            await asyncio.wait_for(ask(client), 30)

    asyncio.run(serve())
    return opened


def bearer(token: str = GOOD) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_nothing_is_shown_to_whoever_has_not_said_who_they_are(world: World) -> None:
    run = world.run("secret-run", Phase.RUNNING)

    async def ask(client: Client) -> None:
        for path in (*(address for address, _, _ in MENU), f"/runs/{run.uid}", "/nothing", "/live", "/live?view=/"):
            for headers in ({}, bearer("wrong"), bearer("bad token"), {"Authorization": "Basic abc"}):
                async with client.get(path, headers=headers) as answer:
                    text = await answer.text()
                    assert answer.status == 401, (path, headers)
                    assert "secret-run" not in text
                    assert '<form class="filter" method="post" action="/sign-in">' in text
                    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        for path in ("/livez", "/readyz", "/icon.svg"):
            async with client.get(path) as answer:
                assert answer.status == 200

    assert serving(world, ask) == []


def test_a_token_in_the_header_shows_the_page(world: World) -> None:
    world.run("first", Phase.RUNNING)

    async def ask(client: Client) -> None:
        headers = {**bearer(), "Fairlead-Namespace": "research"}
        async with client.get("/", headers=headers) as answer:
            text = await answer.text()
            assert (answer.status, "first" in text, "Sign out" in text) == (200, True, True)
            assert "Set-Cookie" not in answer.headers
            assert GOOD not in text

    assert set(serving(world, ask)) == {"research"}


def test_signing_in_leaves_a_cookie_that_no_script_and_no_other_site_gets(world: World) -> None:
    async def ask(client: Client) -> None:
        form = {"token": f" {GOOD}\n", "namespace": "research"}
        for forwarded in ({}, {"X-Forwarded-Proto": "https"}):
            async with client.post("/sign-in", data=form, headers=forwarded, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "/")
                cookie = answer.headers["Set-Cookie"]
                assert "HttpOnly" in cookie
                assert "SameSite=Strict" in cookie
                assert "Max-Age" not in cookie
                assert "expires" not in cookie.lower()
                assert ("Secure" in cookie) == bool(forwarded)
        value = Identity(token=GOOD, namespace="research").cookie
        async with client.get("/", headers={"Cookie": f'{COOKIE}="{value}"'}) as answer:
            assert answer.status == 200
        async with client.post("/sign-out", allow_redirects=False) as answer:
            assert answer.status == 303
            assert f'{COOKIE}=""' in answer.headers["Set-Cookie"]

    assert set(serving(world, ask)) == {"research"}


def test_a_token_that_is_wrong_or_too_long_is_told_and_left_nowhere(world: World) -> None:
    async def ask(client: Client) -> None:
        for form in (
            {"token": "wrong"},
            {"token": "x" * 3_801},
            {"token": ""},
            {"token": GOOD, "namespace": "Not A Namespace"},
            {"token": "<script>"},
        ):
            async with client.post("/sign-in", data=form, allow_redirects=False) as answer:
                assert answer.status == 401, form
                assert "Set-Cookie" not in answer.headers
                assert "<script>" not in await answer.text()

    assert serving(world, ask) == []


def test_another_site_can_neither_sign_somebody_in_nor_out(world: World) -> None:
    async def ask(client: Client) -> None:
        for headers in (
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
        ):
            for path in ("/sign-in", "/sign-out"):
                async with client.post(path, data={"token": GOOD}, headers=headers, allow_redirects=False) as answer:
                    assert answer.status == 403, (path, headers)
        async with client.put("/sign-in") as answer:
            assert answer.status == 405

    assert serving(world, ask) == []


def test_browsers_may_say_of_the_pages_own_forms_where_they_come_from(world: World) -> None:
    """By the policy `no-referrer` they would say ``Origin: null``, which is refused."""

    async def ask(client: Client) -> None:
        async with client.get("/") as answer:
            assert answer.headers["Referrer-Policy"] == "same-origin"
        own = {"Origin": str(client.make_url("")).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
        async with client.post("/sign-in", data={"token": GOOD}, headers=own, allow_redirects=False) as answer:
            assert answer.status == 303

    serving(world, ask)


def test_signing_out_ends_what_is_open_elsewhere(world: World) -> None:
    async def ask(client: Client) -> None:
        async with client.get("/live", headers=bearer()) as stream:
            while not (await stream.content.readline()).startswith(b"data: "):
                pass
            async with client.post("/sign-out", headers=bearer(), allow_redirects=False) as answer:
                assert answer.status == 303
            await asyncio.wait_for(stream.read(), 5)

    serving(world, ask)


def test_a_page_stays_open_while_the_cluster_cannot_be_asked_who_reads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "CHECK_S", -1.0)
    monkeypatch.setattr(server, "ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(server, "HEARTBEAT_S", 0.01)
    known, trouble = {GOOD: "ada"}, list[str]()

    async def ask(client: Client) -> None:
        async with client.get("/live", headers=bearer()) as stream:
            while not (await stream.content.readline()).startswith(b"data: "):
                pass
            trouble.append("The API server starts.")
            async with client.get("/", headers=bearer()) as answer:
                assert answer.status == 503
            trouble.clear()
            world.run("second", Phase.RUNNING)
            while b"second" not in (line := await stream.content.readline()):
                assert not line.startswith(b"event: gone")

    serving(world, ask, known, trouble)


def test_a_token_that_does_not_hold_any_more_ends_what_it_showed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "CHECK_S", -1.0)
    known = {GOOD: "ada"}

    async def ask(client: Client) -> None:
        async with client.get("/live", headers=bearer()) as stream:
            while not (await stream.content.readline()).startswith(b"data: "):
                pass
            known.clear()
            async with client.get("/", headers=bearer()) as answer:
                assert answer.status == 401
            rest = await stream.read()
            assert b'data: {"title"' not in rest

    serving(world, ask, known)


def test_who_has_looked_least_lately_makes_room_and_open_pages_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "MOST_VISITORS", 1)

    async def ask(client: Client) -> None:
        for token in ("one", "two"):
            async with client.get("/", headers=bearer(token)) as answer:
                assert answer.status == 200
        async with client.get("/live", headers=bearer("two")) as stream:
            await stream.content.readline()
            async with client.get("/", headers=bearer("one")) as answer:
                assert answer.status == 503

    serving(world, ask, {"one": "one", "two": "two"})


def test_an_identity_says_nothing_of_its_token_by_its_key() -> None:
    identity = read_identity(GOOD, "research")
    assert identity is not None
    assert GOOD not in identity.key
    assert identity.key != Identity(token=GOOD).key
