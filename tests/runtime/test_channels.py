"""The star of sockets around rank 0."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.runtime.channels import Star, open_stars
from fairlead.runtime.errors import AgreementFailed
from tests.ports import free_port

TOKEN = bytes(32)


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Make the call for each rank in a thread of its own; what each returned, or its error."""
    results: list[Any] = [None] * count

    def one(rank: int) -> None:
        try:
            results[rank] = call(rank)
        except AgreementFailed as error:
            results[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank did not come back"
    return results


def open_all(count: int, *, port: int) -> list[list[Star]]:
    names = ("agree", "save")
    return together(
        count,
        lambda rank: open_stars(
            rank=rank, world_size=count, host="127.0.0.1", port=port, token=TOKEN, names=names, timeout_s=10.0
        ),
    )


def close_all(stars: list[list[Star]]) -> None:
    for pair in stars:
        for star in pair:
            star.close()


def test_everyone_learns_the_value_of_everyone() -> None:
    stars = open_all(3, port=free_port())
    gathered = together(3, lambda rank: stars[rank][1].gather({"rank": rank}))
    assert gathered == [[{"rank": 0}, {"rank": 1}, {"rank": 2}]] * 3
    assert together(3, lambda rank: stars[rank][0].maximum([rank, -rank])) == [[2, 0]] * 3
    close_all(stars)


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(AgreementFailed, match=r"ranks \[1, 2\] did not reach 127\.0\.0\.1:\d+ in time"):
        open_stars(
            rank=0, world_size=3, host="127.0.0.1", port=free_port(), token=TOKEN, names=("agree",), timeout_s=0.05
        )


def test_a_rank_that_is_gone_is_named() -> None:
    stars = open_all(2, port=free_port())
    stars[1][0].close()
    with pytest.raises(AgreementFailed, match="rank 1 is gone"):
        stars[0][0].gather(0)
    close_all(stars)
