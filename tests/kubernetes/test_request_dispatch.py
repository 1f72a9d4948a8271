"""Work that several threads share."""

import threading

from fairlead.cluster.kubernetes.operator.request_dispatch import at_once


def test_what_follows_from_the_first_does_not_wait_for_the_last() -> None:
    done: list[int] = []
    last = threading.Event()

    def work(item: int) -> int:
        if item == 2:
            assert last.wait(30)
        done.append(item)
        return item * 10

    def meanwhile() -> None:
        if sorted(done) == [0, 1]:
            last.set()

    assert at_once(work, [0, 1, 2], num_threads=2, meanwhile=meanwhile) == (0, 10, 20)
