"""A node's evaluator: owns the reference group and the candidate groups, judges one candidate at a time."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pkb
from pkb import problem as problems
from pkb.config import Config
from pkb.errors import HarnessError, UserError
from pkb.evaluate import folders, gpu_state, profiling, sandbox, watch
from pkb.evaluate.build import Build, build
from pkb.evaluate.pair import Ended
from pkb.evaluate.ranks import GroupFailed, RankGroup, Zygote, request_of
from pkb.evaluate.sandbox import Policy
from pkb.evaluate.session import Session, run_secret
from pkb.records import Evaluation, Job
from pkb.verdict import Verdict

#: Users of candidate groups: each group has its own (on CPU ranks each rank), so that limits per user are limits per group.
FIRST_UID, FEW_UID = 1 << 28, 60_000
MOST_OF_MEMORY = 0.5  # of what the machine has available, at most, for one candidate group
CANARY_BLOCKS, CANARY_CALLS = 5, 4
#: A canary call that takes so many times its usual time, and so many seconds, means sickness, not load.
SLOW, SLOW_SECONDS = {"cpu": 100.0, "cuda": 5.0}, {"cpu": 0.25, "cuda": 0.005}
FREE_SECONDS, FREE_SLACK = 20.0, 256 << 20
#: Verdicts that a broken machine could bring about: after them the reference ranks must still be well.
_SUSPECT = (Verdict.LOAD_ERROR, Verdict.RUNTIME_ERROR, Verdict.OUT_OF_MEMORY, Verdict.DEADLOCK)


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
        if self.level != "namespaces":
            sandbox.keep_to_itself()  # candidates see this process, and without root they run as its user
        wanted = config.sandbox.require
        if sandbox.LEVELS.index(self.level) < sandbox.LEVELS.index(wanted):
            raise UserError(f"sandbox.require={wanted}: this machine offers only '{self.level}'; see `pkb doctor`")
        self.devices, self.shared = _devices(config, devices)
        self.root, self._lock = folders.claim("pkb-node-")
        self._zygote: Zygote | None = None
        self._reference: RankGroup | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="spare")
        self._spare: Future[RankGroup] | None = None
        self._groups = 0
        self._usual: float | None = None  # seconds of a canary call when the reference ranks first came up
        self._room: dict[str, int] = {}  # device memory that the next candidate found, bytes by device
        self._sick: str | None = None

    def evaluate(self, job: Job, built: Build | None = None) -> Evaluation:
        """Judge one candidate. Raises HarnessError for the machine's faults, UserError for an inadmissible job."""
        start = time.monotonic()
        problems.load(job.problem).shape(job.world_size, job.preset, job.dtype, job.dims)
        if job.world_size != self.config.ranks:
            raise UserError(
                f"this evaluator has {self.config.ranks} ranks, the job asks for {job.world_size}; set ranks={job.world_size}"
            )
        if self._sick is not None:
            raise HarnessError(self._sick)
        reference = self._reference_group()
        session = Session(
            job,
            self.config,
            run_secret(self.secret, job.purpose) if job.purpose else self.secret,
            reference,
            self._take_candidate,
            self._reference_failed,
            self._settle,
            fields={"node": self.name, "shared_device": self.shared},
            gpus=self.devices,
        )
        try:
            evaluation = session.judge(built, lambda: build(job.source, job.device, self.config))
            if evaluation.verdict in _SUSPECT and self.config.evaluation.canary:
                self._pulse()
        except BaseException:
            self._drop_reference()
            raise
        self._sick = self._held_memory()
        session.seconds["total"] = time.monotonic() - start
        return session.result(evaluation.verdict, evaluation.detail) if session.stage == evaluation.stage else evaluation

    def profile(self, job: Job, calls: int) -> tuple[dict[str, Any], list[bytes]]:
        """Where the time of a candidate's calls goes (``profiling.summary``), and the ranks' Chrome traces.

        Raises UserError when the candidate cannot be run, HarnessError for the machine's faults.
        """
        problems.load(job.problem).shape(job.world_size, job.preset, job.dtype, job.dims)
        session = Session(job, self.config, self.secret, self._reference_group(), self._take_candidate, self._reference_failed)
        try:
            traces = session.profile(build(job.source, job.device, self.config), calls)
        except Ended as end:
            raise UserError(f"{job.label} cannot be profiled: {end.verdict}: {end.detail}") from None
        except BaseException:
            self._drop_reference()
            raise
        return profiling.summary(traces, profiling.kernels_in(job.source)), traces

    def health(self) -> str | None:
        """None when this machine is well, else what is wrong.

        Well: no device memory is held by groups that have ended, and the canary (problem 1's reference as its own candidate) is
        right and takes the time it usually takes.
        """
        self._sick = self._held_memory()
        if self._sick is not None:
            return self._sick
        config = replace(self.config, integrity=replace(self.config.integrity, collectives="any"))
        timing = replace(config.evaluation.timing, enabled=False)
        config = replace(config, evaluation=replace(config.evaluation, timing=timing, trials=1))
        spec = problems.load(1)
        keep, self.config = self.config, config
        try:
            found = self.evaluate(Job(spec.name, spec.reference_source, config.ranks, "smoke", {}, config.dtype, config.device))
            self._pulse()
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
        folders.release(self.root, self._lock)

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- groups ------------------------------------------------------------------------------------------------------

    def _forker(self) -> Zygote:
        if self._zygote is None or self._zygote.process.poll() is not None:
            environment = {"CUDA_VISIBLE_DEVICES": gpu_state.names(self.devices)} if self.devices else {}
            self._zygote = Zygote(environment, self.config.evaluation.limits.start_seconds)
        return self._zygote

    def _reference_group(self) -> RankGroup:
        if self._reference is not None and self._reference.casualty():
            self._drop_reference()
        if self._reference is None:
            self._reference = self._start("reference", Policy())
            self._reference.started()
            self._reference.meet()
            if self._usual is None and self.config.evaluation.canary:
                self._usual = self._call_seconds()
        return self._reference

    def _take_candidate(self) -> RankGroup:
        """The spare group, or a new one; the next spare starts at once, beside the candidate's untimed stages."""
        spare, self._spare = self._spare, None
        group = None
        if spare is not None:
            with contextlib.suppress(HarnessError):  # it started beside a candidate, which may have left it no memory
                group = spare.result()
        if group is not None and group.casualty():
            group.kill()
            group = None
        group = group or self._pool.submit(self._start_candidate).result()
        self._room = self._free_memory()
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
        for shared in sandbox.SHARED:
            (scratch / shared).mkdir()
            os.chmod(scratch / shared, 0o777)
        policy = Policy(
            level=self.level,
            scratch=os.fspath(scratch),
            hidden=self._hidden(),
            keep=needed(),
            memory_bytes=min(limits.memory_bytes, int(MOST_OF_MEMORY * watch.available_bytes())),
            processes=limits.processes,
            file_bytes=limits.scratch_bytes,
            uid=self._next_uid() if os.getuid() == 0 else 0,
            gpu=self.config.device != "cpu",
        )
        group = self._start("candidate", policy)
        try:
            group.started()
            group.meet()
        except HarnessError:
            group.kill()
            raise
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
            environment["CUDA_VISIBLE_DEVICES"] = gpu_state.names(self.devices)
        if self.shared:
            environment["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        if role == "candidate":
            environment.update(HOME=policy.scratch, TMPDIR=policy.scratch, TRITON_CACHE_DIR=f"{policy.scratch}/triton")
            environment["USER"] = role  # its user id has no name, and torch.compile and the profiler ask for one
        order = sorted(set(self.devices))
        devices = [f"cuda:{order.index(d)}" for d in self.devices] if self.devices else ["cpu"] * self.config.ranks
        backend = "gloo" if self.config.device == "cpu" or self.shared else "cpu:gloo,cuda:nccl"
        request = request_of(role, self.config.ranks, devices, backend, environment, policy)
        return self._forker().group(request, self.config.evaluation.limits.start_seconds)

    # -- health ------------------------------------------------------------------------------------------------------

    def _pulse(self) -> None:
        """Have the reference ranks make a canary call. Raises HarnessError if they cannot, or need far longer than usual."""
        seconds = self._call_seconds()
        device = self.config.device
        if self._usual is not None and seconds > max(SLOW[device] * self._usual, SLOW_SECONDS[device]):
            raise HarnessError(f"canary: a call takes {seconds * 1e3:.3g} ms here, usually {self._usual * 1e3:.3g} ms")

    def _call_seconds(self) -> float:
        """Seconds of one call of problem 1's reference at its smallest size: slowest rank, best of several blocks."""
        reference, spec = self._reference_group(), problems.load(1)
        limit, key = self.config.evaluation.limits.start_seconds, secrets.token_hex(32)
        try:
            reference.ask(limit, do="problem", name=spec.name, preset="smoke", dims={}, dtype=self.config.dtype)
            reference.ask(limit, do="sets", first=problems.TIMING_TRIAL, keys=[key], send=False)
            found = []
            for _ in range(CANARY_BLOCKS):
                reference.tell(do="block", first=0, count=CANARY_CALLS, renew=False, copy=False)
                _, replies = reference.go(limit)
                found.append(max(int(r["ns"]) for r in replies) / CANARY_CALLS / 1e9)
        except GroupFailed as error:
            raise self._reference_failed(error) from None
        return min(found)

    def _free_memory(self) -> dict[str, int]:
        """Bytes by device that a candidate can have beside the reference ranks; empty on CPU ranks."""
        if self.config.device == "cpu" or self._reference is None:
            return {}
        free: dict[str, int] = {}
        kept: dict[str, int] = {}
        try:
            for reply in self._reference.ask(30.0, do="memory"):
                device = str(reply["device"])
                free[device] = int(reply["free"])
                kept[device] = kept.get(device, 0) + int(reply["reserved"])
        except GroupFailed as error:
            raise self._reference_failed(error) from None
        return {device: free[device] + kept[device] for device in free}

    def _held_memory(self) -> str | None:
        """Wait until the last candidate's device memory is free again; after FREE_SECONDS, say where it is not.

        The candidate was measured beside a spare group that was starting; now only the spare is left, so there must be more.
        """
        deadline = time.monotonic() + FREE_SECONDS
        while self._room:
            now = self._free_memory()
            short = {d: n - now[d] for d, n in self._room.items() if d in now and n - now[d] > FREE_SLACK}
            if not short:
                return None
            if time.monotonic() > deadline:
                lost = ", ".join(f"{n / 2**30:.1f} GiB on {d}" for d, n in short.items())
                return f"device memory of an ended candidate did not come free within {FREE_SECONDS:g} s: {lost}"
            time.sleep(0.05)
        return None

    def _hidden(self) -> list[str]:
        """What no candidate may see: homes, the references and their tests, run directories."""
        package = Path(pkb.__file__).resolve().parent
        folders = [Path.home(), Path("/root"), Path("/home"), problems.problems_root()]
        folders += [Path(entry, "pkb", "_data", "problems") for entry in sys.path]  # what was installed beside this checkout
        if (package.parent / "pyproject.toml").is_file():
            folders.append(package.parent)  # a checkout: everything beside the package
        if self.log_dir is not None:
            folders.append(self.log_dir)
        return [os.fspath(f) for f in folders if f.is_dir()]

    def _reference_failed(self, error: GroupFailed) -> Exception:
        reason = f"reference ranks: {error.text}"
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


def needed() -> list[str]:
    """Folders that Python, torch and this package are loaded from."""
    found = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.abspath(pkb.__file__))}
    found |= {
        os.path.dirname(os.path.abspath(m.__file__))
        for n in ("torch", "triton", "numpy")
        if (m := sys.modules.get(n)) and m.__file__
    }
    found |= {p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")}
    return sorted(os.path.realpath(p) for p in found if os.path.isdir(p))
