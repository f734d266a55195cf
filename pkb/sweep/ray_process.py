"""The process that talks to Ray, for a driver that does not.

Ray takes its process down with it when its head is lost, and cannot always be shut down then; the driver, with its paid calls in
flight, must not share that fate. This process also has no keys in its environment, and neither has what it starts. Messages are
pickled tuples over a socket pair, see ``ray_backend``. It ends when the driver does.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import sys
from typing import Any

from pkb.errors import HarnessError, UserError
from pkb.sweep.backend import NodeLost
from pkb.sweep.fleet import Fleet, FleetNode

_LENGTH = struct.Struct("!Q")


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message; raises asyncio.IncompleteReadError when the other side is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def send(writer: asyncio.StreamWriter, *message: Any) -> None:
    """Queue a message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    writer.write(_LENGTH.pack(len(data)) + data)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Obey the driver until it closes its end or Ray is lost."""
    from pkb.sweep.cluster import Cluster

    config, evaluator, build = await receive(reader)
    fleet = Fleet(config, Cluster(config), lambda text: send(writer, "notice", text), evaluator, build)
    try:
        await fleet.open()
    except UserError as error:
        send(writer, "refused", str(error))
        return
    except Exception as error:  # Ray's own have no common base
        send(writer, "ended", " ".join(f"{type(error).__name__}: {error}".split())[:500])
        return
    send(writer, "open")
    nodes: dict[int, FleetNode] = {}
    offering = asyncio.create_task(_offer(fleet, writer, nodes))
    listening = asyncio.create_task(_listen(fleet, reader, writer, nodes))
    await asyncio.wait({offering, listening}, return_when=asyncio.FIRST_COMPLETED)
    if offering.done():
        send(writer, "ended", str(offering.exception()))
    else:  # the driver is finished, or gone
        await fleet.close()


async def _offer(fleet: Fleet, writer: asyncio.StreamWriter, nodes: dict[int, FleetNode]) -> None:
    """Tell the driver of every node, and of its loss."""
    async for node in fleet.nodes():
        number = len(nodes)
        nodes[number] = node
        send(writer, "node", number, node.name)

        def tell(lost: asyncio.Future[str], number: int = number) -> None:
            send(writer, "lost", number, lost.result())

        node.lost.add_done_callback(tell)


async def _listen(
    fleet: Fleet, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nodes: dict[int, FleetNode]
) -> None:
    """Carry out requests, many at a time: (number of the request, what, arguments)."""
    running: set[asyncio.Task[None]] = set()
    while True:
        try:
            number, what, *arguments = await receive(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        if what == "publish":
            fleet.publish(*arguments)
            continue
        task = asyncio.create_task(_answer(fleet, writer, nodes, number, what, arguments))
        running.add(task)
        task.add_done_callback(running.discard)


async def _answer(
    fleet: Fleet, writer: asyncio.StreamWriter, nodes: dict[int, FleetNode], number: int, what: str, arguments: list[Any]
) -> None:
    try:
        if what == "build":
            result = await fleet.build(*arguments)
        elif what == "evaluate":
            result = await nodes[arguments[0]].evaluate(*arguments[1:])
        else:
            result = await nodes[arguments[0]].health()
    except NodeLost as error:
        send(writer, "node lost", number, str(error), error.log)
    except HarnessError as error:
        send(writer, "failed", number, str(error))
    else:
        send(writer, "done", number, result)


async def _main(descriptor: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    try:
        await serve(reader, writer)
        await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


def main() -> None:
    """``python -m pkb.sweep.ray_process DESCRIPTOR``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    asyncio.run(_main(int(sys.argv[1])))
    os._exit(0)  # threads that wait for a lost head would keep this process for minutes


if __name__ == "__main__":
    main()
