"""The watches of an operator: what it takes for them to begin."""

import time

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.operating import views
from fairlead.cluster.kubernetes.operating.views import View
from tests.kubernetes.loopback import Answering, Listing, client_of, serving


def refusing(listing: Listing, until: float) -> type[Answering]:
    """An API server that has not read its roles before a moment, by ``time.monotonic``."""
    right = listing.handler()

    class Handler(right):  # type: ignore[misc, valid-type]  # a class that is made at run time
        def answer(self) -> None:
            if time.monotonic() < until:
                self.refuse(403, "Forbidden")
            else:
                super().answer()

    return Handler


def test_a_server_that_refuses_because_it_has_just_started_is_waited_for() -> None:
    listing = Listing()
    with serving(refusing(listing, time.monotonic() + 0.5)) as url:
        view = View(client_of(url))
        view.start()
        assert all(cache.is_synced for cache in view.caches)
        view.stop()


def test_a_server_that_goes_on_to_refuse_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "REFUSED_S", 0.2)
    with serving(refusing(Listing(), time.monotonic() + 60)) as url:
        with pytest.raises(ApiError) as told:
            View(client_of(url)).start()
        assert told.value.status == 403
