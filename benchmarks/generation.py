"""Many calls in flight: rate against the ideal, CPU and memory of the driver's side, and whether every answer arrives once.

A loopback server in a process of its own speaks OpenAI's protocol and answers after a random time. With the defaults (2,000
calls over 4 models, 256 in flight, 5 to 20 s) this takes about two minutes:

    PYTHONPATH=. python benchmarks/generation.py
    PYTHONPATH=. python benchmarks/generation.py --in-flight 1000 --calls 4000
    PYTHONPATH=. python benchmarks/generation.py --refused 0.10 --reset 0.02

The ideal rate is that of ``in-flight`` servers that are never idle: the sum of all answer times divided by ``in-flight``; what the
last, partly filled round costs is no fault of the client, so the ideal is simulated with the same times in the same order.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import multiprocessing
import os
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

MODELS = ["gpt-5.6", "gpt-5.5", "gpt-5.4-mini", "gpt-5"]  # names that litellm knows, as in a real sweep; nobody is called
CODE = "```python\ndef solution(tensor):\n    return tensor\n```\n"


def answer_seconds(number: int, low: float, high: float) -> float:
    """The time that question ``number`` takes, the same in both processes."""
    return random.Random(number).uniform(low, high)


def serve(options: argparse.Namespace, port: Any, served: Any) -> None:
    """Answer until killed; ``served`` counts answers, refusals and resets."""
    from aiohttp import web

    chance = random.Random(0)
    text = "x" * options.answer_bytes + "\n" + CODE

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = int(body["messages"][0]["content"].split()[-1])
        draw = chance.random()
        if draw < options.refused:
            with served.get_lock():
                served[1] += 1
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "1"})
        await asyncio.sleep(answer_seconds(number, options.low, options.high))
        if draw > 1 - options.reset:
            with served.get_lock():
                served[2] += 1
            assert request.transport is not None
            request.transport.abort()
        with served.get_lock():
            served[0] += draw <= 1 - options.reset
        message = {"role": "assistant", "content": f"{number}\n{text}"}
        usage = {"prompt_tokens": 3000, "completion_tokens": 5000, "total_tokens": 8000}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": f"c{number}", "object": "chat.completion", "choices": [choice], "usage": usage})

    async def main() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        assert site._server is not None
        port.value = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    asyncio.run(main())


def ideal_seconds(options: argparse.Namespace) -> float:
    """Wall time of a client without any cost: the next question starts the moment a place is free."""
    free = [0.0] * options.in_flight
    for number in range(options.calls):
        heapq.heappush(free, heapq.heappop(free) + answer_seconds(number, options.low, options.high))
    return max(free)


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def ask(options: argparse.Namespace, url: str, spool: Path) -> dict[str, Any]:
    from pkb.config import GenerationConfig
    from pkb.generate.client import Client
    from pkb.generate.models import Model, Prices
    from pkb.records import AttemptKey

    models = [Model(name, f"openai/{name}", api_base=url, prices=Prices(1, 2)) for name in MODELS[: options.models]]
    client = Client(GenerationConfig(max_in_flight=options.in_flight, max_rate_limited=1000), models, spool=spool)
    warm = [{"role": "user", "content": "question 0"}]
    await client.generate(
        models[0], AttemptKey("warm", models[0].name, "001_allreduce", 0), warm
    )  # litellm imports on the first call
    memory: list[float] = []
    padding = "p" * options.prompt_bytes
    places = asyncio.Semaphore(options.in_flight)  # as the driver does: no more coroutines than calls
    outcomes: Counter[str] = Counter()

    async def one(number: int) -> None:
        model = models[number % len(models)]
        key = AttemptKey("run", model.name, f"{number:06}", 0)
        found = await client.generate(model, key, [{"role": "user", "content": f"{padding} question {number}"}])
        right = found.status == "ok" and found.answer.startswith(f"{number}\n")
        outcomes["right" if right else f"{found.status}: {found.error[:60]}"] += 1
        outcomes["tries"] += found.tries
        client.forget(found)
        places.release()

    cpu, started = time.process_time(), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(options.calls):
            await places.acquire()
            group.create_task(one(number))
            if number % max(1, options.calls // 10) == 0:
                memory.append(resident_mb())
    wall, cpu = time.monotonic() - started, time.process_time() - cpu
    memory.append(resident_mb())
    await client.close()
    return {"wall_seconds": wall, "cpu_seconds": cpu, "memory_mb": memory, "outcomes": dict(outcomes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("calls", 2000),
        ("in-flight", 256),
        ("models", 4),
        ("answer-bytes", 20_000),
        ("prompt-bytes", 8_000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, value in (("low", 5.0), ("high", 20.0), ("refused", 0.0), ("reset", 0.0)):
        parser.add_argument(f"--{name}", type=float, default=value)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    context = multiprocessing.get_context("spawn")
    port, served = context.Value("i", 0), context.Array("i", 3)
    server = context.Process(target=serve, args=(options, port, served), daemon=True)
    server.start()
    while not port.value:
        time.sleep(0.05)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(ask(options, f"http://127.0.0.1:{port.value}/v1", Path(folder)))
    answers, refused, reset = served[:]
    server.terminate()
    ideal = ideal_seconds(options)
    report = {
        "calls": options.calls,
        "in_flight": options.in_flight,
        "wall_seconds": round(found["wall_seconds"], 1),
        "ideal_seconds": round(ideal, 1),
        "share_of_ideal_rate": round(ideal / found["wall_seconds"], 4),
        "cpu_ms_per_call": round(1000 * found["cpu_seconds"] / options.calls, 2),
        "memory_mb": [round(m) for m in found["memory_mb"]],
        "outcomes": found["outcomes"],
        "server": {"answers": answers - 1, "refused": refused, "reset": reset},  # one answer was the warm-up's
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
