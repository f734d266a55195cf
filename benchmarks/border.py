"""What a tensor costs on its way between a candidate's rank and the reference's: the library's whole files against streams.

    python benchmarks/border.py [--mib 256] [--repeat 5]

Both ways carry the same tensor over a socket pair within one process, alternately. Prints the median of processor and wall seconds and
their ratio.
"""

import argparse
import json
import socket
import statistics
import threading
import time
from collections.abc import Callable

import torch
from safetensors.torch import load, save

from pkb.evaluate import wire


def whole(link: socket.socket, x: torch.Tensor) -> None:
    """As the safetensors library does it: one file in memory."""
    wire.send_bytes(link, save({"0": x}))


def receive_whole(link: socket.socket) -> torch.Tensor:
    return load(bytes(wire.receive_bytes(link, 1 << 40)))["0"].clone()


def streamed(link: socket.socket, x: torch.Tensor) -> None:
    """As the evaluator does it."""
    wire.send_tree(link, x)


def receive_streamed(link: socket.socket) -> torch.Tensor:
    return wire.receive_tree(link, 1 << 40)


def seconds(
    send: Callable[..., None], receive: Callable[[socket.socket], torch.Tensor], x: torch.Tensor
) -> tuple[float, float]:
    """(processor, wall) seconds of one journey."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        cpu, wall = time.process_time(), time.perf_counter()
        sender = threading.Thread(target=send, args=(theirs, x))
        sender.start()
        got = receive(ours)
        sender.join()
        spent = time.process_time() - cpu, time.perf_counter() - wall
    assert torch.equal(got, x)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    x = torch.randn(options.mib << 18)
    found: dict[str, list[tuple[float, float]]] = {"whole": [], "streamed": []}
    for _ in range(options.repeat):
        found["whole"].append(seconds(whole, receive_whole, x))
        found["streamed"].append(seconds(streamed, receive_streamed, x))
    medians = {
        way: [round(statistics.median(column), 3) for column in zip(*spent, strict=True)] for way, spent in found.items()
    }
    ratio = [round(a / b, 2) for a, b in zip(medians["whole"], medians["streamed"], strict=True)]
    print(json.dumps({"mib": options.mib, "cpu_s, wall_s": medians, "ratio": ratio}))


if __name__ == "__main__":
    main()
