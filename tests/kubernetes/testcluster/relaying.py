"""Carries connections from a socket of loopback into a network namespace: `relaying.py FD HOST PORT`.

A socket belongs to the namespace that it was made in. So this runs inside, where the server is, and accepts on a socket
that it inherits from outside: neither side needs an address in the other's network.
"""

import asyncio
import contextlib
import socket
import sys


async def main(fd: int, host: str, port: int) -> None:
    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, server_writer), carry(server_reader, writer))

    server = await asyncio.start_server(accept, sock=socket.socket(fileno=fd), backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
