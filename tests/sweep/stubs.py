"""Stand-ins for models, builders and nodes: the driver under test is the real one, with a real run directory."""

import asyncio
from dataclasses import dataclass, field

from pkb.config import Config
from pkb.evaluate.build import Build
from pkb.records import AttemptKey, Evaluation, Generation
from pkb.store import run as runs
from pkb.store.writer import RunStore
from pkb.sweep import plan as plans
from pkb.sweep.backend import NodeLost
from pkb.sweep.driver import Driver
from pkb.sweep.progress import Progress
from pkb.sweep.recorder import Recorder
from pkb.verdict import GenerationStatus, Stage, Verdict

PROBLEMS = ("001_allreduce", "002_allgather", "003_broadcast")


def source(problem, text=""):
    """A candidate with the right interface; ``text`` tells the stub nodes what to make of it."""
    from pkb import problem as known

    names = ", ".join(p.name for p in known.load(problem).parameters())
    return f"# {text}\n# load_inline\ndef solution({names}):\n    return None\n"


class Generator:
    """Answers at once, and remembers every question.

    texts: (problem, attempt) -> first line of the candidate, of all models or of those in ``only``. faults: key -> statuses of
    the next answers.
    """

    def __init__(self, texts=None, faults=None, only=None):
        self.asked = []
        self.texts, self.faults, self.only = texts or {}, faults or {}, only
        self.stopped = {}  # model -> why it is not asked any more
        self.gate = None  # an asyncio.Event to wait for

    async def generate(self, model, key, messages):
        self.asked.append(key)
        if self.gate is not None:
            await self.gate.wait()
        statuses = self.faults.get((key.model, key.problem, key.attempt))
        status = statuses.pop(0) if statuses else GenerationStatus.OK
        text = self.texts.get((key.problem, key.attempt), "") if self.only is None or key.model in self.only else ""
        found = source(key.problem, text) if status is GenerationStatus.OK else None
        return Generation(key, status, messages[0]["content"], "hash", answer="text", source=found, cost_usd=0.5)

    def unavailable(self, name):
        return self.stopped.get(name)

    def forget(self, generation):
        assert generation.key in self.asked


@dataclass
class Node:
    """Judges by a function of the job: an Evaluation or just its verdict, or an exception."""

    name: str
    judge: object
    log: list = field(default_factory=list)
    sick: list = field(default_factory=list)  # answers of the next health checks
    health_checks: int = 0

    def __post_init__(self):
        self.lost = asyncio.get_running_loop().create_future()

    async def evaluate(self, job, build):
        self.log.append(job.label)
        result = self.judge(job, self)
        if asyncio.iscoroutine(result):
            result = await result
        if isinstance(result, NodeLost) and not self.lost.done():
            self.lost.set_result(str(result))
        if isinstance(result, Exception):
            raise result
        return result if isinstance(result, Evaluation) else evaluation(job, result)

    async def health(self):
        self.health_checks += 1
        return self.sick.pop(0) if self.sick else None


class Backend:
    """Nodes by name; a lost one is replaced under its name. builds: source -> exceptions or logs of the next builds."""

    def __init__(self, judge, names=("node-a", "node-b"), replace=True):
        self.judge, self.names, self.replace = judge, names, replace
        self.built, self.build_faults = [], []
        self.all = []
        self.added = None

    async def nodes(self):
        self.added = asyncio.Queue()
        for name in self.names:
            self.add(name)
        while True:
            yield await self.added.get()

    def add(self, name):
        node = Node(name, self.judge)
        self.all.append(node)
        self.added.put_nowait(node)
        if self.replace:
            node.lost.add_done_callback(lambda _: self.add(name))

    async def build(self, source, device):
        self.built.append(source)
        await asyncio.sleep(0)
        if self.build_faults:
            fault = self.build_faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return Build("key", False, fault)
        return Build("key", True)

    async def close(self):
        pass


def key(attempt=0):
    return AttemptKey("run", "m1", PROBLEMS[0], attempt)


def evaluation(job, verdict=Verdict.CORRECT):
    stage = Stage.DONE if verdict is Verdict.CORRECT else Stage.CORRECTNESS
    return Evaluation(
        job.problem, verdict, "by a stub", stage, job.world_size, job.preset, job.dtype, job.device, speedup=1.5, trials=1
    )


def single_shot(key, history):
    return None if history else [{"role": "user", "content": f"solve {key.problem}"}]


def settings(**changes):
    return Config(models=["m1", "m2"], problems=["1", "2", "3"], attempts=2, **changes)


async def session(run, config, generator, backend, conversation=single_shot, stop=None, problems=PROBLEMS):
    """One session of the driver on a run directory, as ``pkb sweep`` runs it; returns the driver's progress.

    stop: awaited with the driver's task; the task is cancelled when it returns.
    """
    runs.write(run, config, {"problems": list(PROBLEMS)})
    with RunStore(run) as store:
        plan = plans.make(run, runs.read(run)["run"], config.models, problems, config.attempts, config.agent)
        store.supersede("generations", plan.retry_generations)
        store.supersede("evaluations", plan.retry_evaluations)
        progress = Progress()
        driver = Driver(
            config,
            plan,
            Recorder(store, progress.notice),
            generator,
            backend,
            dict.fromkeys(plan.models),
            conversation,
            progress,
        )
        task = asyncio.create_task(driver.run(plans.unfinished(run, plan)))
        if stop is not None:
            await stop(driver)
            task.cancel()
        await asyncio.gather(task, return_exceptions=stop is not None)
        return progress


def sweep(run, config, generator, backend, seconds=60, **options):
    """``session`` from a test that is not a coroutine, with a time limit."""

    async def limited():
        async with asyncio.timeout(seconds):
            return await session(run, config, generator, backend, **options)

    return asyncio.run(limited())


def outcomes(run):
    """(model, problem, attempt) -> verdict of a run; fails when any row is doubled."""
    from pkb.store import reader

    rows = reader.scan(run, "evaluations").select("model", "problem", "attempt", "verdict").collect().rows()
    found = {row[:3]: row[3] for row in rows}
    assert len(found) == len(rows), "doubled rows"
    return found
