"""Machines, actors and the head of a real Ray cluster are killed in the middle of a sweep; the table must not show it.

The cluster is several Ray nodes on this machine; evaluator and builder are fakes (``tests.actors.fake``), everything else is real.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import time
from pathlib import Path

import pytest

from pkb.config import Config
from pkb.store import reader
from pkb.store import run as runs
from pkb.store.writer import RunStore
from pkb.sweep import judges
from pkb.sweep import plan as plans
from pkb.sweep.driver import Driver
from pkb.sweep.progress import Progress
from pkb.sweep.ray_backend import RayBackend
from pkb.sweep.recorder import Recorder
from tests.actors import fake
from tests.sweep import stubs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
ATTEMPTS = 8
LABELS = [(m, p, a) for m in ("m1", "m2") for p in stubs.PROBLEMS for a in range(ATTEMPTS)]
UNDISTURBED = {key: fake.verdict(f"{key[0]}/{key[1]}/{key[2]}.0").value for key in LABELS}


class LocalCluster:
    """A head without CPUs and two nodes that can serve, as processes of this machine."""

    def __init__(self):
        from ray.cluster_utils import Cluster as RayCluster

        root = os.fspath(Path(__file__).resolve().parents[2])
        os.environ["PYTHONPATH"] = root
        self.ray = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 120 * 2**20})
        self.nodes = [self.add() for _ in range(2)]

    def add(self):
        return self.ray.add_node(num_cpus=3, object_store_memory=120 * 2**20)

    def remove(self, node):
        self.ray.remove_node(node, allow_graceful=False)

    def close(self):
        self.ray.shutdown()


@pytest.fixture(scope="module")
def cluster():
    started = LocalCluster()
    yield started
    started.close()


@pytest.fixture
def bench(tmp_path, cluster):
    return Bench(tmp_path, cluster)


class Bench:
    """Runs one sweep on the cluster while a fault is played."""

    def __init__(self, folder, cluster):
        self.folder, self.cluster = folder, cluster
        self.control = folder / "control"
        self.control.mkdir()
        self.run = folder / "run"
        config = Config(models=["m1", "m2"], problems=["1", "2", "3"], attempts=ATTEMPTS)
        limits = dataclasses.replace(config.evaluation.limits, start_seconds=60.0)
        evaluation = dataclasses.replace(config.evaluation, cache_dir=str(self.control), limits=limits)
        self.config = dataclasses.replace(
            config,
            evaluation=evaluation,
            cluster=dataclasses.replace(config.cluster, address=cluster.ray.address, lost_node_seconds=60.0),
        )

    def sweep(self, fault=None, generator=None, evaluator="tests.actors.fake:Evaluator", after=5):
        """One session; ``fault`` is called once ``after`` attempts are judged."""
        return asyncio.run(self._session(fault, generator or stubs.Generator(), evaluator, after))

    async def _session(self, fault, generator, evaluator, after):
        runs.write(self.run, self.config)
        with RunStore(self.run) as store:
            plan = plans.make(self.run, "run", self.config.models, stubs.PROBLEMS, ATTEMPTS)
            progress = Progress()
            fleet = RayBackend(self.config, self.run / "ray.log", progress.notice, evaluator, "tests.actors.fake:build")
            driver = Driver(
                self.config,
                plan,
                Recorder(store, progress.notice),
                generator,
                fleet,
                dict.fromkeys(plan.models),
                stubs.single_shot,
                progress,
            )
            try:
                async with asyncio.timeout(200):
                    await fleet.open()
                    work = asyncio.create_task(driver.run())
                    while fault is not None and progress.done < after and not work.done():
                        await asyncio.sleep(0.02)
                    if fault is not None:
                        fault()  # in this thread: Ray nodes can be started in no other
                    await work
            finally:
                await fleet.close()
            return progress

    def pids(self, kind):
        """Living processes of a kind (node, rank, builder) that the fakes have told of."""
        found = [int(path.name.split("-")[1]) for path in self.control.glob(f"{kind}-*")]
        return [pid for pid in found if alive(pid)]

    def kill(self, kind):
        """SIGKILL one of them."""
        deadline = time.monotonic() + 20
        while not (found := self.pids(kind)):
            assert time.monotonic() < deadline, f"no {kind} to kill"
            time.sleep(0.01)
        os.kill(found[0], signal.SIGKILL)

    def check(self):
        """The table of an undisturbed run, no row twice, and nothing left running."""
        assert stubs.outcomes(self.run) == UNDISTURBED
        assert reader.done_keys(self.run, "generations").height == len(LABELS)
        wait_until(lambda: not self.pids("rank"), "ranks left running")
        wait_until(lambda: not self.pids("node") and not self.pids("builder"), "actors left running")


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_until(condition, message, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)


def test_undisturbed(bench):
    progress = bench.sweep()
    bench.check()
    assert {n.state for n in progress.nodes.values()} == {"ready"} and len(progress.nodes) == 2


def test_the_cluster_s_monitoring_shows_the_sweep(bench, cluster):
    """Numbers that are published appear where Prometheus reads them: at the metrics port of some Ray node."""
    import urllib.request

    def shown():
        found = ""
        for port in ports:
            with contextlib.suppress(OSError):
                found += urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5).read().decode()
        return found

    async def play():
        nonlocal ports
        progress = Progress()
        progress.begin("m1", 10, 4)
        backend = RayBackend(bench.config, bench.folder / "ray.log")
        await backend.open()
        try:
            ports = [n["MetricsExportPort"] for n in cluster.ray.global_state.node_table()]
            deadline = time.monotonic() + 60
            while "pkb_attempts" not in (text := await asyncio.to_thread(shown)):
                assert time.monotonic() < deadline, "not published"
                backend.publish(progress.gauges())
                await asyncio.sleep(1)
            return text
        finally:
            await backend.close()

    ports: list[int] = []
    host = cluster.ray.address.rsplit(":", 1)[0]
    text = asyncio.run(play())
    assert 'State="judged"' in text or 'state="judged"' in text


def test_a_killed_node_actor_is_replaced_and_its_ranks_are_removed(bench):
    bench.sweep(lambda: bench.kill("node"))
    bench.check()


def test_a_killed_builder_is_replaced(bench):
    bench.sweep(lambda: bench.kill("builder"))
    bench.check()


def test_killed_ranks_do_not_stop_anything(bench):
    bench.sweep(lambda: bench.kill("rank"))
    bench.check()


def test_a_lost_machine_is_forgiven_and_a_new_one_used(bench, cluster):
    def lose_one_and_add_one():
        cluster.remove(cluster.nodes.pop())
        cluster.nodes.append(cluster.add())

    progress = bench.sweep(lose_one_and_add_one)
    assert stubs.outcomes(bench.run) == UNDISTURBED
    assert len(progress.nodes) >= 2


def test_an_attempt_that_kills_every_node_it_meets_is_given_up_with_the_last_words_of_both(bench):
    poison = ("m1", stubs.PROBLEMS[1], 3)
    progress = bench.sweep(generator=stubs.Generator(texts={poison[1:]: "die"}, only={"m1"}))
    assert stubs.outcomes(bench.run) == {**UNDISTURBED, poison: "harness_error"}
    assert progress.failed == 1
    frame = reader.scan(bench.run, "evaluations").collect()
    row = frame.row(frame["verdict"].to_list().index("harness_error"), named=True)
    failures = json.loads(row["extra"])["failures"]
    assert len({f["node"] for f in failures}) == 2
    assert all("about to take the node down" in f["log"] for f in failures)
    wait_until(lambda: not bench.pids("rank"), "ranks left running")


def test_a_machine_whose_canary_fails_rests_until_it_is_well(bench, monkeypatch):
    monkeypatch.setattr(judges, "QUARANTINE_SECONDS", 0.2)
    bench.sweep(evaluator="tests.actors.fake:FirstFails")
    bench.check()
    events = [json.loads(line) for line in (bench.run / "events.jsonl").read_text().splitlines()]
    assert {"quarantined", "ready"} <= {e.get("state") for e in events}


def test_builds_larger_than_the_object_store_travel_all_the_same(bench):
    """24 builds of 40 MiB through object stores of 120 MiB: Ray spills, the sweep goes on."""
    texts = {(p, a): "big" for p in stubs.PROBLEMS for a in range(0, ATTEMPTS, 2)}
    bench.sweep(generator=stubs.Generator(texts=texts))
    bench.check()


def test_a_node_with_more_gpus_than_ranks_runs_several_groups_and_losing_it_loses_nothing(bench, cluster):
    """cluster.pack: one actor owns the machine (whose four GPUs nobody looks for here), each group judges by itself."""
    packed = dataclasses.replace(bench.config.cluster, pack=True)
    bench.config = dataclasses.replace(bench.config, device="cuda", ranks=2, cluster=packed)
    machine = cluster.ray.add_node(num_cpus=6, num_gpus=4, object_store_memory=120 * 2**20)
    try:
        progress = bench.sweep(lambda: bench.kill("node"))
    finally:
        cluster.remove(machine)
    bench.check()
    groups = [path.name.split("-", 2)[1:] for path in bench.control.glob("group-*")]
    assert sorted(devices for _, devices in groups) == ["0-1", "0-1", "2-3", "2-3"]  # of the killed actor, and of the next
    assert len({pid for pid, _ in groups}) == 2
    assert len(progress.nodes) == 2 and all(name.endswith(("/0", "/1")) for name in progress.nodes)
    assert all(n.judged > 2 for n in progress.nodes.values())


def test_a_killed_head_is_connected_to_again(tmp_path):
    """SIGKILL of the GCS, and a new head at the same place: the session goes on by itself."""
    own = LocalCluster()
    bench = Bench(tmp_path, own)
    replacement = []

    def kill_head():
        host, port = own.ray.address.rsplit(":", 1)
        own.ray.head_node.kill_gcs_server(check_alive=False)
        for node in own.ray.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        from ray.cluster_utils import Cluster as RayCluster

        new = {"num_cpus": 3, "gcs_server_port": int(port), "node_ip_address": host, "object_store_memory": 120 * 2**20}
        replacement.append(RayCluster(initialize_head=True, head_node_args=new))

    try:
        progress = bench.sweep(kill_head)
        assert stubs.outcomes(bench.run) == UNDISTURBED
        assert any("connected to Ray again" in notice for notice in progress.notices)
    finally:
        for new in replacement:
            new.shutdown()
