"""A web server and a mail server that keep what they get, on ports of this machine."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Web:
    """The requests that a web server got.

    Attributes:
        answers: Status codes of the next answers; 200 after them.
        location: Where it redirects to, with a status from 300 on.
    """

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    location: str = ""


@contextmanager
def web_server() -> Iterator[Web]:
    """Run a web server while the block lasts."""
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            web.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            web.headers.append(dict(self.headers))
            self.send_response(web.answers.pop(0) if web.answers else 200)
            if web.location:
                self.send_header("Location", web.location)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Mailbox:
    """The recipients and messages that a mail server got."""

    port: int = 0
    mails: list[tuple[list[str], str]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    """Run a mail server without encryption while the block lasts (RFC 5321, the commands that smtplib sends)."""
    box = Mailbox()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            recipients: list[str] = []
            while line := self.rfile.readline().decode().strip():
                word = line.upper()
                if word.startswith("MAIL") and box.refusals:
                    self.wfile.write(f"{box.refusals.pop(0)}\r\n".encode())
                    continue
                if word.startswith("RCPT"):
                    recipients.append(line.partition("<")[2].partition(">")[0])
                if word == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines: list[str] = []
                    while (part := self.rfile.readline().decode()).strip() != ".":
                        lines.append(part)
                    box.mails.append((recipients, "".join(lines)))
                self.wfile.write(b"221 bye\r\n" if word == "QUIT" else b"250 ok\r\n")
                if word == "QUIT":
                    return

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    box.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield box
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
