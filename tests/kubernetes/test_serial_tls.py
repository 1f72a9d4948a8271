"""A TLS connection that one thread reads while another writes loses nothing, whatever the server sends meanwhile."""

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import trustme

from fairlead.cluster.kubernetes.api.serial_tls import SerialTlsSocket, serial

CONNECTIONS, THREADS = 160, 8


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def address(authority: trustme.CA) -> Iterator[tuple[str, int]]:
    """A server that sends 16 session tickets to each client, then back what it gets first."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    context.num_tickets = 16

    def answer(connection: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as safe:
            safe.sendall(safe.recv(100))
            safe.recv(1)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)


def connected(authority: trustme.CA, address: tuple[str, int]) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the system's authorities, which take 50 ms to read
    authority.configure_trust(context)
    made = context.wrap_socket(socket.create_connection(address), server_hostname="localhost")
    made.settimeout(None)
    return made


def test_what_is_written_while_tickets_are_read_arrives(authority: trustme.CA, address: tuple[str, int]) -> None:
    """Without taking turns one connection in some thirty never gets its answer, or fails in OpenSSL."""

    def ask(_: int) -> bytes:
        found: list[bytes] = []
        connection = serial(connected(authority, address))
        reader = threading.Thread(target=lambda: found.append(connection.recv(100)), daemon=True)
        reader.start()
        connection.sendall(b"hello")
        reader.join(timeout=20)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        return b"".join(found)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(ask, range(CONNECTIONS))) == [b"hello"] * CONNECTIONS


def test_a_reader_ends_when_another_thread_closes_the_socket(authority: trustme.CA, address: tuple[str, int]) -> None:
    connection, ended = serial(connected(authority, address)), threading.Event()

    def read() -> None:
        with suppress(OSError):
            connection.recv(100)
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    connection.close()
    assert ended.wait(20)


def test_a_write_that_is_not_taken_ends_after_its_timeout() -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(lambda: context.wrap_socket(server.accept()[0], server_side=True))
        connection = serial(connected(authority, server.getsockname()))
        with accepted.result(timeout=20), connection:
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.sendall(bytes(100_000_000))


def test_a_socket_without_tls_is_left_as_it_is() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert serial(one) is one
        assert not isinstance(serial(one), SerialTlsSocket)
