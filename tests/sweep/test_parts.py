"""The driver's parts one by one: the queue before the nodes, the bound on generation, who is to blame, where actors go."""

import asyncio
import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb.config import Config
from pkb.sweep import placement
from pkb.sweep.dispatch import Dispatch
from pkb.sweep.lag import Lag
from pkb.sweep.placement import Machine
from pkb.sweep.suspicion import MOST_TRIES, Suspicion


@dataclasses.dataclass(eq=False)
class Item:
    problem: str
    model: str = "m"
    avoid: set = dataclasses.field(default_factory=set)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def queue(items, nodes=("a", "b"), patience=100):
    dispatch = Dispatch(patience)
    for node in nodes:
        dispatch.join(node)
    for item in items:
        dispatch.put(item)
    return dispatch


def test_a_node_stays_with_its_problem_and_nodes_spread_over_problems():
    async def play():
        dispatch = queue([Item(p) for p in ("p1", "p2") * 4])
        taken = {"a": [], "b": []}
        for _ in range(4):
            for node in taken:
                taken[node].append((await dispatch.take(node)).problem)
        return taken

    taken = run(play())
    assert taken == {"a": ["p1"] * 4, "b": ["p2"] * 4}


def test_within_a_problem_the_model_served_least_goes_first():
    async def play():
        dispatch = queue([Item("p", "greedy") for _ in range(10)] + [Item("p", "modest") for _ in range(3)], nodes=("a",))
        return [(await dispatch.take("a")).model for _ in range(6)]

    assert Counter(run(play())) == {"greedy": 3, "modest": 3}


@given(st.integers(1, 20), st.lists(st.sampled_from(["p1", "p2", "p3"]), min_size=1, max_size=60))
def test_nobody_is_passed_over_more_than_patience_and_the_length_of_the_queue_before_them(patience, problems):
    """A stream of one popular problem cannot keep another one waiting for ever."""

    async def play():
        dispatch = queue([], nodes=("a",), patience=patience)
        dispatch.put(Item("popular"))
        await dispatch.take("a")
        others = [Item(p) for p in problems]
        for item in others:
            dispatch.put(item)
        waited = 0
        while others:
            dispatch.put(Item("popular"))
            taken = await dispatch.take("a")
            waited += 1
            if taken in others:
                others.remove(taken)
            assert waited <= patience + 2 * len(problems) + 1
        return True

    assert run(play())


def test_a_candidate_goes_to_another_node_than_the_one_that_failed_unless_there_is_none():
    async def play():
        item = Item("p", avoid={"a"})
        dispatch = queue([item])
        waiting = asyncio.create_task(dispatch.take("a"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        dispatch.leave("b")
        assert await waiting is item

    run(play())


def test_cancelling_a_node_s_request_loses_no_candidate():
    async def play():
        dispatch = queue([])
        waiting = asyncio.create_task(dispatch.take("a"))
        await asyncio.sleep(0)
        dispatch.put(Item("p"))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert len(dispatch) == 1 and (await dispatch.take("b")).problem == "p"

    run(play())


def test_outstanding_attempts_are_bounded_and_a_slow_model_leaves_room_for_the_others():
    async def play():
        lag = Lag(in_flight=4, lag=3)
        for model in ("slow", "quick"):
            lag.open(model)
        started = Counter()

        async def start(model):
            await lag.start(model)
            started[model] += 1

        tasks = [asyncio.create_task(start("slow")) for _ in range(9)]
        await asyncio.sleep(0.01)
        assert started == {"slow": 2}, "half of four places"
        tasks += [asyncio.create_task(start("quick")) for _ in range(20)]
        for _ in range(50):
            await asyncio.sleep(0)
            if lag.in_flight and started["quick"] and lag._by_model["quick"]:
                await lag.generated("quick")
            assert lag.in_flight <= 4 and lag.in_flight + lag.waiting <= 7
        assert lag.waiting == 5 and lag._by_model["slow"] == 2, "answers fill what the slow ones leave"
        for task in tasks:
            task.cancel()

    run(play())


def test_an_attempt_is_guilty_when_only_it_fails():
    suspicion = Suspicion(tries=2)
    for _ in range(100):
        suspicion.judged(5.0)
    suspicion.failed(1.0)
    assert not suspicion.guilty(1, 1.0)
    suspicion.failed(1.0)
    assert suspicion.guilty(2, 2.0)


def test_an_attempt_is_innocent_when_somebody_had_to_be_unlucky_twice():
    """A node is lost every four minutes, under evaluations of 3 s: of 400 attempts one is there twice, sooner or later."""
    suspicion = Suspicion(tries=2)
    for _ in range(5):
        suspicion.failed(3.0)
        for _ in range(80):
            suspicion.judged(3.0)
    for n in (1, 2):
        suspicion.failed(3.0)
        assert not suspicion.guilty(n, 3.0 * n)
    suspicion.failed(3.0)
    assert suspicion.guilty(3, 9.0)


def test_an_attempt_is_innocent_while_everybody_fails_but_is_not_tried_for_ever():
    suspicion = Suspicion(tries=2)
    for _ in range(50):
        suspicion.judged(3.0)
        suspicion.failed(3.0)
    for n in range(1, MOST_TRIES):
        suspicion.failed(3.0)
        if n < 5:
            assert not suspicion.guilty(n, 3.0 * n)
    assert suspicion.guilty(MOST_TRIES, 3.0 * MOST_TRIES)


def gpus(count, cpus=64.0, name="g"):
    return Machine(f"id-{name}", name, cpus, count, local=False)


def config(**changes):
    base = Config(device="cuda", ranks=4)
    cluster = dataclasses.replace(base.cluster, **changes)
    return dataclasses.replace(base, cluster=cluster)


def test_one_actor_owns_a_whole_machine():
    (place,) = placement.places(gpus(8), config())
    assert place.gpus == 8 and place.groups == ((0, 1, 2, 3, 4, 5, 6, 7),)


def test_packing_makes_disjoint_groups_in_one_actor():
    (place,) = placement.places(gpus(8), config(pack=True))
    assert place.groups == ((0, 1, 2, 3), (4, 5, 6, 7)) and place.group_names == ["g/0", "g/1"]


@pytest.mark.parametrize(
    ("machine", "reason"), [(gpus(2), "2 GPUs, 4 ranks"), (gpus(0), "0 GPUs"), (gpus(8), None)], ids=["few", "none", "enough"]
)
def test_machines_that_cannot_serve_are_told_why(machine, reason):
    found = placement.unfit(machine, config())
    assert found is None if reason is None else reason in found


def test_builders_leave_every_node_the_cores_of_its_ranks_and_are_spread():
    machines = [gpus(4, 8.0, "x"), gpus(4, 6.0, "y"), Machine("id-c", "cpu-only", 3.0, 0, local=False)]
    found = placement.builders(machines, config())
    assert Counter(node for _, node, _ in found) == {"id-x": 4, "id-y": 2, "id-c": 3}
    assert [node for _, node, _ in found[:3]] == ["id-x", "id-y", "id-c"]


def test_there_is_a_builder_even_where_no_cpu_is_to_spare():
    assert placement.builders([gpus(4, 4.0)], config())
    local = Machine("id", "laptop", 2.0, 0, local=True)
    assert placement.builders([local], dataclasses.replace(Config(), ranks=2))


def test_nodes_keep_their_names_while_others_of_the_same_host_name_come_and_go():
    def node(node_id, host, address="10.0.0.1"):
        return {"NodeID": node_id * 8, "NodeManagerHostname": host, "NodeManagerAddress": address}

    first = placement.machine_names({}, [node("a", "gpu"), node("b", "other")])
    assert first == {"a" * 8: "gpu", "b" * 8: "other"}
    second = placement.machine_names(first, [node("a", "gpu"), node("c", "gpu", "10.0.0.2"), node("d", "gpu", "10.0.0.2")])
    assert second == {"a" * 8: "gpu", "c" * 8: "gpu-cccccc", "d" * 8: "gpu-dddddd"}
    third = placement.machine_names(second, [node("c", "gpu", "10.0.0.2"), node("e", "gpu", "10.0.0.3")])
    assert third == {"c" * 8: "gpu-cccccc", "e" * 8: "gpu-10.0.0.3"}
    returned = placement.machine_names(third, [node("f", "gpu", "10.0.0.3")])
    assert returned == {"f" * 8: "gpu"}
