"""A provider that mends a fault only if it is told of it: does the feedback say what to change?"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from pkb.config import load
from pkb.evaluate.node import Evaluator
from pkb.generate.client import Client
from pkb.refine.attempt import Refinement
from pkb.store import reader
from tests.evaluate.faulty import candidate
from tests.generate.conftest import FAST, model_at
from tests.generate.server import Server, answer
from tests.sweep import stubs

#: Candidates from one fault to the next, each with the words that make the provider mend it.
LOCAL = "return tensor.clone()"
HALVED = "return (total(tensor) / 2).to(tensor.dtype)"
STUCK = "everyone(tensor)\nif dist.get_rank() == 1:\n    shared.handle.wait_signal(0)\nreturn total(tensor).to(tensor.dtype)"
RACY = """
global shared
shared = shared or Shared()
shared.view(shared.rank, tensor).copy_(tensor)
shared.handle.barrier()
return torch.stack([shared.view(r, tensor).float() for r in range(2)]).sum(0).to(tensor.dtype)
"""
RIGHT = "return total(tensor).to(tensor.dtype)"
STEPS = [
    (LOCAL, "The data of the other ranks never arrived"),
    (HALVED, "are 1/2 times what is expected"),
    (STUCK, "inside `wait_signal`: `shared.handle.wait_signal(0)`"),
    (RACY, "alternate between two buffers"),
    (RIGHT, ""),
]


class Backend(stubs.Backend):
    """One node with a real evaluator, in a thread of its own."""

    def __init__(self, config):
        super().__init__(None, names=("node",))
        self.thread = ThreadPoolExecutor(1)
        self.evaluator = self.thread.submit(Evaluator, config).result()

    def add(self, name):
        super().add(name)
        self.all[-1].evaluate = self.evaluate

    async def evaluate(self, job, build):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.thread, self.evaluator.evaluate, job, build)

    def end(self):
        self.thread.submit(self.evaluator.close).result()


def provider(request):
    """The candidate after the last one that was sent, if what was said about that names its fault; else the same again."""
    messages = request.body["messages"]
    at = max(
        (i for m in messages if m["role"] == "assistant" for i, (c, _) in enumerate(STEPS) if fenced(c) in m["content"]),
        default=-1,
    )
    told = messages[-1]["content"]
    step = 0 if at < 0 else at + 1 if STEPS[at][1] in told else at
    return answer(f"Here it is.\n\n{fenced(STEPS[step][0])}")


def fenced(body):
    return f"```python\n{candidate(body)}```"


def test_every_fault_is_mended_because_the_feedback_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_PROVIDER_KEY", "key")
    overrides = ["models=[m]", "problems=[1]", "attempts=1", "agent.max_turns=7", "agent.target_speedup=0.0001"]
    limits = ["evaluation.limits.call_seconds=4", "evaluation.timing.iterations=6", "evaluation.timing.blocks=3"]
    config = load([*overrides, *limits, "evaluation.timing.warmup=4"])
    backend = Backend(config)
    with Server(provider) as server:
        model = model_at(server)
        client = Client(FAST, [model])
        try:
            options = {"conversation": Refinement(config), "problems": ("001_allreduce",)}
            stubs.sweep(tmp_path / "run", config, _Asked(client, model), backend, seconds=200, **options)
        finally:
            backend.end()
    rows = reader.scan(tmp_path / "run", "evaluations").collect().sort("turn")
    assert rows["verdict"].to_list() == ["mismatch", "mismatch", "deadlock", "nondeterministic", "correct"]
    assert len(server.requests) == 5, "no turn was wasted on an answer whose fault was not named"


class _Asked:
    """The client, for the driver's stubs, which know models by name only."""

    def __init__(self, client, model):
        self.client, self.model = client, model

    async def generate(self, _, key, messages):
        return await self.client.generate(self.model, key, messages)

    def unavailable(self, name):
        return self.client.unavailable(name)

    def forget(self, generation):
        self.client.forget(generation)
