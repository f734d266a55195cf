"""An evaluator and a builder without ranks, for tests of the cluster: real actors, real Ray, instant verdicts.

What they are to do stands in the candidate's first line; whom they are stands in files under ``evaluation.cache_dir``.
"""

import hashlib
import os
import signal
import subprocess
import time
from pathlib import Path

from pkb.errors import HarnessError
from pkb.evaluate.build import Build
from pkb.records import Evaluation
from pkb.verdict import Stage, Verdict

VERDICTS = (Verdict.CORRECT, Verdict.MISMATCH, Verdict.RUNTIME_ERROR)
SECONDS = 0.15


def verdict(label):
    """The same for a label whoever judges it, so that tables of disturbed and undisturbed runs can be compared."""
    return VERDICTS[hashlib.sha256(label.encode()).digest()[0] % len(VERDICTS)]


class Evaluator:
    def __init__(self, config, *, devices=None, name="", log_dir=None):
        self.name, self.control = name, Path(config.evaluation.cache_dir)
        (self.control / f"node-{os.getpid()}").write_text(name)
        if devices is not None:
            (self.control / f"group-{os.getpid()}-{'-'.join(map(str, devices))}").touch()

    def evaluate(self, job, build):
        order = job.source.splitlines()[0].removeprefix("# ")
        # a "rank" that survives its parent unless somebody looks for it
        rank = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        try:
            (self.control / f"rank-{rank.pid}").touch()
            if order == "die":
                os.write(2, b"about to take the node down\n")
                os.kill(os.getpid(), signal.SIGKILL)
            if order == "hang":
                time.sleep(1000)
            time.sleep(SECONDS)
            assert build.ok
        finally:
            rank.kill()
            rank.wait()
        what = verdict(job.label)
        stage = Stage.DONE if what is Verdict.CORRECT else Stage.CORRECTNESS
        return Evaluation(job.problem, what, "by a fake", stage, job.world_size, job.preset, job.dtype, job.device, trials=1)

    def health(self):
        sick = self.control / f"sick-{self.name}"
        if sick.exists():
            return sick.read_text()
        return None

    def close(self):
        pass


class FirstFails(Evaluator):
    """The first evaluation of each machine ends in a harness error, after which its canary fails for a while."""

    def evaluate(self, job, build):
        if not hasattr(self, "failed"):
            self.failed = time.monotonic()
            (self.control / f"sick-{self.name}").write_text("canary: mismatch")
            raise HarnessError("NCCL fell over")
        return super().evaluate(job, build)

    def health(self):
        if hasattr(self, "failed") and time.monotonic() - self.failed > 1:
            (self.control / f"sick-{self.name}").unlink(missing_ok=True)
        return super().health()


def build(source, device, config):
    control = Path(config.evaluation.cache_dir)
    (control / f"builder-{os.getpid()}").touch()
    time.sleep(0.02)
    size = 40 * 2**20 if source.startswith("# big") else 100
    return Build("key", True, files={"key": os.urandom(size)})
