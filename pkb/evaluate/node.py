"""A node's evaluator: owns the reference group and the candidate groups, judges one candidate at a time."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pkb
from pkb import problem as problems
from pkb.config import Config
from pkb.errors import HarnessError, UserError
from pkb.evaluate import sandbox, watch
from pkb.evaluate.build import Build, build
from pkb.evaluate.ranks import GroupFailed, RankGroup, Zygote, request_of
from pkb.evaluate.sandbox import Policy
from pkb.evaluate.session import Session
from pkb.records import Evaluation, Job
from pkb.verdict import Verdict

#: Users of candidate groups: each group has its own (on CPU ranks each rank), so that limits per user are limits per group.
FIRST_UID, FEW_UID = 1 << 28, 60_000
MOST_OF_MEMORY = 0.5  # of what the machine has available, at most, for one candidate group


class Evaluator:
    """Judges candidates on this machine with ``config.ranks`` ranks.

    The reference group lives as long as it answers; a candidate group lives for one candidate. devices: CUDA devices to use
    (default: the first ``ranks``, or all where ranks share). Raises UserError when the machine cannot do what is configured.
    """

    def __init__(
        self, config: Config, *, devices: Sequence[int] | None = None, name: str = "", log_dir: Path | None = None
    ) -> None:
        self.config = config
        self.name = name or socket.gethostname()
        self.log_dir = log_dir
        self.secret = secrets.token_bytes(32)
        self.level = sandbox.available()
        wanted = config.sandbox.require
        if sandbox.LEVELS.index(self.level) < sandbox.LEVELS.index(wanted):
            raise UserError(f"sandbox.require={wanted}: this machine offers only '{self.level}'; see `pkb doctor`")
        self.devices, self.shared = _devices(config, devices)
        self.root = Path(tempfile.mkdtemp(prefix="pkb-node-"))
        os.chmod(self.root, 0o711)
        self._zygote: Zygote | None = None
        self._reference: RankGroup | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="spare")
        self._spare: Future[RankGroup] | None = None
        self._groups = 0

    def evaluate(self, job: Job, built: Build | None = None) -> Evaluation:
        """Judge one candidate. Raises HarnessError for the machine's faults, UserError for an inadmissible job."""
        start = time.monotonic()
        problems.load(job.problem).shape(job.world_size, job.preset, job.dtype, job.dims)
        reference = self._reference_group()
        session = Session(
            job,
            self.config,
            self.secret,
            reference,
            self._take_candidate,
            self._reference_failed,
            self._settle,
            fields={"node": self.name, "shared_device": self.shared},
        )
        try:
            evaluation = session.judge(built, lambda: build(job.source, job.device, self.config))
        except BaseException:
            self._drop_reference()
            raise
        session.seconds["total"] = time.monotonic() - start
        return session.result(evaluation.verdict, evaluation.detail) if session.stage == evaluation.stage else evaluation

    def health(self) -> str | None:
        """Judge the canary, problem 1's reference as its own candidate; None when it is right, else what is wrong."""
        from dataclasses import replace

        config = replace(self.config, integrity=replace(self.config.integrity, collectives="any"))
        timing = replace(config.evaluation.timing, enabled=False)
        config = replace(config, evaluation=replace(config.evaluation, timing=timing, trials=1))
        spec = problems.load(1)
        keep, self.config = self.config, config
        try:
            found = self.evaluate(Job(spec.name, spec.reference_source, config.ranks, "smoke", {}, config.dtype, config.device))
        except HarnessError as error:
            return str(error)
        finally:
            self.config = keep
        return None if found.verdict is Verdict.CORRECT else f"canary: {found.verdict}: {found.detail}"

    def close(self) -> None:
        """End every process and remove every folder of this evaluator."""
        if self._spare is not None:
            with contextlib.suppress(HarnessError):
                self._spare.result().kill()
            self._spare = None
        self._pool.shutdown()
        self._drop_reference()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- groups ------------------------------------------------------------------------------------------------------

    def _forker(self) -> Zygote:
        if self._zygote is None or self._zygote.process.poll() is not None:
            environment = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, sorted(set(self.devices))))} if self.devices else {}
            self._zygote = Zygote(environment, self.config.evaluation.limits.start_seconds)
        return self._zygote

    def _reference_group(self) -> RankGroup:
        if self._reference is None:
            self._reference = self._start("reference", Policy())
            self._reference.started()
            self._reference.meet()
        return self._reference

    def _take_candidate(self) -> RankGroup:
        """The spare group, or a new one; the next spare starts at once, beside the candidate's untimed stages."""
        spare, self._spare = self._spare, None
        group = (spare or self._pool.submit(self._start_candidate)).result()
        self._spare = self._pool.submit(self._start_candidate)
        return group

    def _settle(self) -> None:
        """Before anything is timed: no group may still be starting."""
        if self._spare is not None:
            wait([self._spare])

    def _start_candidate(self) -> RankGroup:
        limits = self.config.evaluation.limits
        scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=self.root))
        os.chmod(scratch, 0o755)
        for shared in ("extensions", "triton"):
            (scratch / shared).mkdir()
            os.chmod(scratch / shared, 0o777)
        policy = Policy(
            level=self.level,
            scratch=os.fspath(scratch),
            hidden=self._hidden(),
            keep=_needed(),
            memory_bytes=min(limits.memory_bytes, int(MOST_OF_MEMORY * watch.available_bytes())),
            processes=limits.processes,
            file_bytes=limits.scratch_bytes,
            uid=self._next_uid() if os.getuid() == 0 else 0,
            gpu=self.config.device != "cpu",
        )
        group = self._start("candidate", policy)
        group.started()
        group.meet()
        return group

    def _next_uid(self) -> int:
        """The first of ``ranks`` user ids that no other group of this machine has, as far as the ids that we may use reach."""
        self._groups += 1
        with open("/proc/self/uid_map") as file:
            reach = max(int(first) + int(count) for first, _, count in (line.split() for line in file))
        place = (os.getpid() << 12) + (self._groups * self.config.ranks) % (1 << 12)
        return FIRST_UID + place if reach > 1 << 31 else FEW_UID + place % 5000

    def _start(self, role: str, policy: Policy) -> RankGroup:
        from pkb.evaluate.ranks import ENVIRONMENT

        environment = {k: v for k, v in os.environ.items() if k in ENVIRONMENT}
        environment.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, sorted(set(self.devices))))
        if self.shared:
            environment["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        if role == "candidate":
            environment.update(HOME=policy.scratch, TMPDIR=policy.scratch, TRITON_CACHE_DIR=f"{policy.scratch}/triton")
        order = sorted(set(self.devices))
        devices = [f"cuda:{order.index(d)}" for d in self.devices] if self.devices else ["cpu"] * self.config.ranks
        backend = "gloo" if self.config.device == "cpu" or self.shared else "cpu:gloo,cuda:nccl"
        request = request_of(role, self.config.ranks, devices, backend, environment, policy)
        return self._forker().group(request, self.config.evaluation.limits.start_seconds)

    def _hidden(self) -> list[str]:
        """What no candidate may see: homes, the references and their tests, run directories."""
        package = Path(pkb.__file__).resolve().parent
        folders = [Path.home(), Path("/root"), Path("/home"), problems.problems_root()]
        if (package.parent / "pyproject.toml").is_file():
            folders.append(package.parent)  # a checkout: everything beside the package
        if self.log_dir is not None:
            folders.append(self.log_dir)
        return [os.fspath(f) for f in folders if f.is_dir()]

    def _reference_failed(self, error: GroupFailed) -> Exception:
        reason = f"reference ranks: {error}"
        if error.trace:
            reason += f" [{error.trace.strip().splitlines()[-1][:300]}]"
        self._drop_reference()
        return HarnessError(reason)

    def _drop_reference(self) -> None:
        if self._reference is not None:
            self._reference.kill()
            self._reference = None


def _devices(config: Config, given: Sequence[int] | None) -> tuple[list[int], bool]:
    """(CUDA device of each rank, whether ranks share one); ([], False) on CPU."""
    if config.device == "cpu":
        return [], False
    import torch

    count = torch.cuda.device_count()
    present = list(given) if given is not None else list(range(count))
    if not present:
        raise UserError("device=cuda: no GPU is visible here; use device=cpu, or see `pkb doctor`")
    if config.ranks <= len(present):
        return present[: config.ranks], False
    if not config.evaluation.share_device:
        raise UserError(
            f"ranks={config.ranks} but {len(present)} GPU{'s' if len(present) > 1 else ''} here; "
            "set evaluation.share_device=true to let ranks share (times then never count as fast)"
        )
    return [present[r % len(present)] for r in range(config.ranks)], True


def _needed() -> list[str]:
    """Folders that Python, torch and this package are loaded from."""
    found = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.abspath(pkb.__file__))}
    found |= {
        os.path.dirname(os.path.abspath(m.__file__))
        for n in ("torch", "triton", "numpy")
        if (m := sys.modules.get(n)) and m.__file__
    }
    found |= {p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")}
    return sorted(os.path.realpath(p) for p in found if os.path.isdir(p))
