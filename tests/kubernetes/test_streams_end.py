"""What a watch leaves behind when it ends: nothing of it runs on, and nothing of the program's is touched."""

import random

import urllib3

from fairlead.cluster.kubernetes.api.client import ResponseStream
from fairlead.cluster.kubernetes.api.pacing import between, jittered


class ClosedByItsReader(urllib3.HTTPResponse):
    """As an answer is for whoever closes it while its reader, in another thread, does the same."""

    def close(self) -> None:
        raise ValueError("I/O operation on closed file.")


def test_a_stream_that_its_reader_closes_at_the_same_moment_is_closed() -> None:
    ResponseStream(ClosedByItsReader(), "/api/v1/pods").close()


def test_waits_leave_the_numbers_of_the_program_as_its_seed_says() -> None:
    random.seed(7)
    wanted = random.random()
    random.seed(7)
    assert 1.0 <= jittered(2.0) <= 2.0
    assert between(3, 3) == 3
    assert random.random() == wanted
