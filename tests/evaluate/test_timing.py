"""Statistics and block protocol, with groups whose every clock is scripted; and two real candidates, one slow and one fast."""

import itertools
import random
import signal
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb import config
from pkb.evaluate import blocks, stats, timing
from pkb.evaluate.ranks import GroupFailed
from pkb.problem import TIMING_TRIAL
from pkb.verdict import Verdict

# -- statistics --------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12))
def test_the_interval_holds_the_median_and_lies_within_the_data(ratios):
    middle, low, high = stats.median_interval(ratios, 200)
    assert min(ratios) <= low <= middle <= high <= max(ratios)
    assert middle == statistics.median(ratios)


def test_one_ratio_has_no_width_and_equal_ratios_none_either():
    assert stats.median_interval([1.7], 100) == (1.7, 1.7, 1.7)
    assert stats.median_interval([2.0] * 10, 100) == (2.0, 2.0, 2.0)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says():
    dice, inside = random.Random(7), 0
    for _ in range(300):
        ratios = [dice.lognormvariate(0, 0.1) for _ in range(10)]
        _, low, high = stats.median_interval(ratios, 300)
        inside += low <= 1.0 <= high
    assert 0.88 <= inside / 300 <= 1.0


def test_one_wild_block_does_not_move_the_speedup():
    calm = [1.5, 1.51, 1.49, 1.5, 1.52, 1.48, 1.5, 1.5, 1.51]
    assert stats.median_interval([*calm, 40.0], 1000)[0] == pytest.approx(1.5, abs=0.01)


# -- the protocol ------------------------------------------------------------------------------------------------------


class Log(list):
    """Commands in order, and the keys of veiled sets that ranks were given: (role, with what, by rank)."""

    def __init__(self):
        self.keys = []

    def given(self, role, to):
        return [keys for who, what, keys in self.keys if (who, what) == (role, to) and keys]


class Clock:
    """The parent's clock, moved by what the groups say their blocks take."""

    def __init__(self, log):
        self.ns, self.log = 0, log

    def perf_counter_ns(self):
        return self.ns

    def monotonic(self):
        return self.ns / 1e9

    def sleep(self, seconds):
        self.ns += int(seconds * 1e9)
        self.log.append(("parent", {"rest": seconds}))


class Group:
    """Stands in for a RankGroup of two ranks. call_ms: time of day -> what a call takes; log: commands to both sides, in order."""

    world_size = 2

    def __init__(
        self,
        role,
        clock,
        log,
        call_ms,
        *,
        says=lambda true_ns, block: true_ns,
        right=lambda block: True,
        sums=lambda count: list(range(count)),
        chained_ms=None,
    ):
        self.sums, self.chained_ms = sums, chained_ms
        self.role, self.clock, self.log, self.call_ms, self.says, self.right = role, clock, log, call_ms, says, right
        self.blocks = self.judged = 0
        self.last = {}

    def tell(self, per_rank=None, **command):
        self.last = command
        if per_rank is not None:
            command["veils"] = [per_rank(rank)["veils"] for rank in range(self.world_size)] if command["do"] == "sets" else []
        self.drawn = len(command["keys"]) if "keys" in command else getattr(self, "drawn", 0)
        self.log.append((self.role, command))

    def ask(self, deadline_s, per_rank=None, **command):
        self.tell(per_rank, **command)
        return self.replies(deadline_s)

    def replies(self, deadline_s, expect=""):
        if self.last["do"] == "commit":
            return [{"sums": self.sums(self.count)}] * 2
        if self.last["do"] == "judge_block":
            self.judged += 1
            return [{"right": self.right(self.judged), "detail": "output[3]: wrong", "call": 5}] * 2
        return [{}] * 2

    def step(self, deadline_s, keys):
        count, ms = len(keys[0]), self.call_ms(self.clock.ns / 1e9)
        if self.chained_ms is not None:
            ms = self.chained_ms
        start, each = self.clock.ns, [int(ms * 1e6)] * count
        self.count = count
        self.clock.ns += sum(each) + 30_000 * count
        self.log.keys.append((self.role, "stepped", keys))
        sums = self.sums(count)
        return start, [sums[:-1]] * 2, [{"ns": sum(each), "each": each, "sum": sums[-1]}] * 2

    def go(self, deadline_s, keys=()):
        self.log.keys.append((self.role, "gone", keys))
        if self.last["do"] == "between":  # what passes between calls takes 50 us
            self.clock.ns += (spent := 50_000 * self.drawn)
            return self.clock.ns - spent, [{"ns": spent}] * 2
        start, count = self.clock.ns, self.last["count"]
        self.count = count
        self.blocks += 1
        ms = self.call_ms(self.clock.ns / 1e9)
        if "place" in self.last:
            ms = ms + 0.05 if self.chained_ms is None else self.chained_ms
        true_ns = int(count * ms * 1e6)
        self.clock.ns += true_ns + 20_000
        said = self.says(true_ns, self.blocks)
        return start, [{"ns": said // 2 if isinstance(said, int) else said}, {"ns": said}]

    def signal(self, number):
        self.log.append((self.role, {"signal": number}))


@pytest.fixture
def run(monkeypatch):
    """Measure scripted groups: (Timing, log of commands)."""

    def measure(reference_ms=1.0, candidate_ms=0.5, changed=(), overrides=(), set_bytes=1 << 10, place=None, **candidate):
        log = Log()
        clock = Clock(log)
        monkeypatch.setattr(timing, "time", clock)
        monkeypatch.setattr(blocks, "time", clock)
        right = candidate.pop("right", lambda block: True)
        honest = candidate.pop("reference_says", lambda true_ns, block: true_ns)
        call = lambda ms: ms if callable(ms) else lambda second: ms  # noqa: E731
        reference = Group("reference", clock, log, call(reference_ms), says=honest, right=right)
        group = Group("candidate", clock, log, call(candidate_ms), **candidate)
        settings = config.load(["evaluation.timing.bootstrap=200", *overrides]).evaluation
        found = timing.measure(
            reference, group, settings, lambda trial: f"{trial:064x}", set_bytes, list(changed), "cpu", place
        )
        return found, log

    return measure


def warm_up_and_rest(log):
    """The log until the protocol asks whether outputs share memory, and from there on."""
    turn = next(n for n, (_, c) in enumerate(log) if c.get("do") == "answers")
    return log[:turn], log[turn:]


def timed(log, side):
    return [c for role, c in warm_up_and_rest(log)[1] if role == side and c.get("do") == "block"]


def warm(log, side):
    found = [c for role, c in warm_up_and_rest(log)[0] if role == side and c.get("do") == "block"]
    return found[:-1] if side == "candidate" else found  # the last is there to look at its outputs


def test_speedup_is_the_median_ratio_and_times_are_of_the_slowest_rank(run):
    found, _ = run(reference_ms=1.0, candidate_ms=0.4)
    assert found.speedup == pytest.approx(2.5, rel=1e-6) and found.high - found.low < 1e-9
    assert (found.reference_ms, found.candidate_ms) == (pytest.approx(1.0), pytest.approx(0.4))
    assert found.pairs == 10 and not found.wrong and not found.suspicious


def test_blocks_alternate_abba_and_are_equally_long_within_a_pair(run):
    _, log = run()
    sides = [role for role, c in warm_up_and_rest(log)[1] if c.get("do") == "block"]
    assert sides == ["reference", "candidate", "candidate", "reference"] * 5
    lengths = [c["count"] for c in timed(log, "reference")]
    assert lengths == [c["count"] for c in timed(log, "candidate")]
    assert len(set(lengths)) > 1, "the length of a block is drawn too"


def test_a_drifting_machine_cancels_out(run):
    """Everything gets slower, in the end by half: what is measured side by side keeps its ratio."""
    found, _ = run(reference_ms=lambda second: 1 + second / 2, candidate_ms=lambda second: 0.5 + second / 4)
    assert found.reference_ms > 1.1
    assert found.speedup == pytest.approx(2.0, rel=0.02)
    assert found.low <= 2.0 <= found.high


def test_every_timed_call_has_a_set_of_its_own_that_was_never_seen(run):
    _, log = run()
    sets = [c for role, c in log if role == "reference" and c.get("do") == "sets"]
    keys = list(itertools.chain.from_iterable(c["keys"] for c in sets))
    assert len(keys) == len(set(keys)), "no draw is used twice"
    assert all(int(k, 16) >= TIMING_TRIAL for k in keys), "timing draws nothing that correctness has shown"
    for block in timed(log, "candidate"):
        assert block["first"] == 0 and not block["renew"]
    lengths = {len(c["keys"]) for c in sets[1:]}
    assert {c["count"] for c in timed(log, "candidate")} <= lengths, "as many sets as calls"


def test_problems_that_change_their_inputs_warm_up_on_copies(run):
    _, log = run(changed=[1])
    assert all(c["renew"] for side in ("reference", "candidate") for c in warm(log, side))
    assert not any(c["renew"] for side in ("reference", "candidate") for c in timed(log, side)), "timed calls have fresh sets"
    handed = [c for _, c in log if c.get("do") == "answers"]
    assert handed and all(c["changed"] == [1] for c in handed), "what the problem changes belongs to the answer"


def test_the_candidate_stands_still_while_the_reference_runs(run):
    _, log = run()
    frozen = False
    for role, command in log:
        if role == "candidate" and "signal" in command:
            frozen = command["signal"] == signal.SIGSTOP
        elif command.get("do") == "block":
            assert frozen == (role == "reference")
    assert not frozen


def test_both_sides_rest_before_they_are_timed(run):
    """Reference ranks have just drawn inputs; a busy machine's scheduler would make them, and only them, wait for that."""
    commands = [c for _, c in warm_up_and_rest(run()[1])[1] if "signal" not in c]
    blocks = [n for n, c in enumerate(commands) if c.get("do") == "block"]
    assert len(blocks) == 20
    assert all(commands[n - 1] == {"rest": timing.REST_SECONDS["cpu"]} for n in blocks)


def test_which_answers_are_looked_at_is_said_only_after_all_have_been_summed(run):
    log = [entry for entry in warm_up_and_rest(run()[1])[1] if entry[0] != "parent"]
    blocks = [n for n, (role, c) in enumerate(log) if role == "candidate" and c.get("do") == "block"]
    seen = set()
    for n in blocks:
        assert set(log[n][1]) == {"do", "first", "count", "renew", "copy"}, "the block's command names no call"
        assert log[n + 1] == ("candidate", {"do": "commit", "changed": []}), "nor does the question for sums"
        assert log[n + 2] == ("reference", {"do": "collect", "calls": timing.JUDGED})
        handed = log[n + 3][1]
        assert handed["do"] == "answers"
        judged = next(c for _, c in log[n:] if c.get("do") == "judge_block")
        assert judged["calls"] == handed["calls"] and len(judged["calls"]) == timing.JUDGED
        seen.add(tuple(judged["calls"]))
    assert len(seen) > 1, "and they differ"


@pytest.mark.parametrize("sums", [lambda count: [1] * (count - 1), lambda count: ["1"] * count, lambda count: None])
def test_who_does_not_commit_to_every_answer_breaks_the_protocol(run, sums):
    with pytest.raises(GroupFailed) as error:
        run(sums=sums)
    assert (error.value.kind, error.value.role) == ("lost", "candidate")


def test_shared_outputs_are_looked_for_in_a_block_as_long_as_any(run):
    """A ring of buffers, each returned again after so many calls, does not show in a shorter one."""
    _, log = run()
    before, after = warm_up_and_rest(log)
    looked_at = [c for role, c in before if role == "candidate" and c.get("do") == "block"][-1]
    assert after[0] == ("candidate", {"do": "answers", "calls": [], "changed": []})
    assert looked_at["count"] >= max(c["count"] for c in timed(log, "candidate"))


def test_work_put_off_to_after_the_block_is_time_of_the_candidate(run):
    """Its clock shows nothing, and no block is so long that somebody is accused."""
    late = lambda true_ns, block: true_ns // 3 if block > 64 else true_ns  # noqa: E731  timed blocks only
    busy = lambda true_ns, block: true_ns // 20 if block % 5 == 0 else true_ns  # noqa: E731
    found, _ = run(reference_ms=4.0, candidate_ms=2.0, says=late, reference_says=busy)
    assert not found.suspicious and found.speedup == pytest.approx(2.0, rel=0.1)


def test_a_wrong_timed_call_ends_the_measurement(run):
    found, log = run(right=lambda judged: judged < 3)
    assert found.wrong == "a timed call was answered wrongly: output[3]: wrong" and found.speedup == 0
    judged = sum(c.get("do") == "judge_block" for _, c in log)
    assert judged == 3 and len(timed(log, "candidate")) <= 3 and found.wrong_call == 5


def test_a_clock_that_lags_in_every_block_is_suspicious(run):
    found, _ = run(candidate_ms=2.0, says=lambda true_ns, block: true_ns // 2)
    assert "own time passed without its clock showing it" in found.suspicious
    assert found.evidence["unseen_share"] > 0.9


def test_a_slow_block_of_the_reference_excuses_a_lying_clock_but_buys_it_no_speed(run):
    stalled = lambda true_ns, block: true_ns // 50 if block % 7 == 0 else true_ns  # noqa: E731  time passed unseen, now and then
    found, _ = run(
        reference_ms=4.0, candidate_ms=2.0, says=lambda true_ns, block: max(1, true_ns // 1000), reference_says=stalled
    )
    assert found.suspicious == ""
    assert found.speedup == pytest.approx(2.0, rel=0.1)


def test_a_clock_that_lags_in_some_blocks_only_is_a_busy_machine(run):
    found, _ = run(candidate_ms=2.0, says=lambda true_ns, block: true_ns // (10 if block % 2 else 1))
    assert not found.suspicious


def chains(log):
    return [n for n, (role, c) in enumerate(log) if role == "candidate" and c.get("do") == "block" and "place" in c]


def test_chains_are_timed_after_pairs_that_are_drawn_and_an_honest_candidate_pays_nothing_for_them(run):
    seen = set()
    for _ in range(4):
        found, log = run(place=2, changed=[1])
        assert found.speedup == pytest.approx(2.0, rel=1e-6) and not found.batched and not found.suspicious
        assert found.evidence["chain"] == {"call_ms": pytest.approx(0.55), "between_ms": 0.05, "added_ms": 0.0}
        assert len(chains(log)) == timing.CHAINS
        blocks = [n for n, (role, c) in enumerate(log) if role == "candidate" and c.get("do") == "block"]
        seen.add(tuple(blocks.index(n) for n in chains(log)))
    assert len(seen) > 1


def test_of_a_chain_a_call_that_depends_on_another_is_judged_by_the_sum_that_was_named_for_that(run):
    _, log = run(place=2, changed=[1], sums=lambda count: [100 + i for i in range(count)])
    for n in chains(log):
        count = log[n][1]["count"]
        assert 2 <= count <= timing.CHAINED and log[n][1]["changed"] == [1]
        judged = next(c for role, c in log[n:] if c.get("do") == "judge_block")
        assert judged["place"] == 2 and any(call > 0 for call in judged["calls"])
        between = [c for role, c in log[:n] if c.get("do") == "between"][-1]
        assert between == {"do": "between", "place": 2, "changed": [1]}
        fresh = [c for c in [c for _, c in log[:n]] if c.get("do") == "sets" and "keys" in c][-1]
        assert len(fresh["keys"]) == count, "a chain's calls have sets of their own"


def test_calls_answered_together_are_paid_for_one_by_one(run):
    found, _ = run(reference_ms=1.0, candidate_ms=0.1, chained_ms=0.85, place=0)
    assert "depend on the answer before take 0.85 ms each, others at most 0.1 ms" in found.batched
    assert found.candidate_ms == pytest.approx(0.1 + 0.85 - 1.25 * 0.15)
    assert found.speedup == pytest.approx(1.0 / found.candidate_ms)


def test_one_slow_block_excuses_from_blame_but_buys_no_speed(run):
    spread = itertools.count()
    found, _ = run(
        reference_ms=1.0, candidate_ms=lambda second: 0.8 if next(spread) % 3 == 0 else 0.1, chained_ms=0.85, place=0
    )
    assert not found.batched and found.speedup < 1.4


def test_a_busy_machine_shows_in_the_reference_and_excuses_chains(run):
    spread = itertools.count()
    found, _ = run(reference_ms=lambda second: 4.0 if next(spread) % 5 == 0 else 1.0, candidate_ms=0.5, chained_ms=1.2, place=0)
    assert not found.batched and found.evidence["chain"]["added_ms"] == 0.0


def veils(log):
    """The keys under which reference ranks sent their sets, by rank."""
    return [c["veils"] for _, c in log if "veils" in c]


def test_where_no_input_may_change_nobody_can_read_a_set_before_its_turn(run):
    found, log = run(place=None)
    assert chains(log) == [] and found.evidence["chain"] == {
        "call_ms": pytest.approx(0.5),
        "between_ms": 0.0,
        "added_ms": 0.0,
    }
    stepped, gone = log.given("candidate", "stepped"), log.given("candidate", "gone")
    assert len(stepped) == timing.CHAINS and len(gone) == found.pairs
    assert (stepped, gone) == (log.given("reference", "stepped"), log.given("reference", "gone"))
    keys = [key for by_rank in (*stepped, *gone) for of_rank in by_rank for key in of_rank]
    assert len(set(keys)) == len(keys), "no key tells anything of another set, or of another rank's"
    assert {k for by_rank in veils(log) for of_rank in by_rank for k in of_rank} >= set(keys)


def test_calls_answered_together_are_paid_for_one_by_one_under_veils(run):
    found, _ = run(reference_ms=1.0, candidate_ms=0.1, chained_ms=0.85, place=None)
    assert "take 0.85 ms each" in found.batched and found.candidate_ms == pytest.approx(0.1 + 0.85 - 1.25 * 0.1)


def test_with_an_input_that_may_change_nothing_is_veiled(run):
    _, log = run(place=0)
    assert not any(keys for *_, keys in log.keys) and not any(c.get("veiled") or c.get("veils") for _, c in log)


@pytest.mark.parametrize("word", [1 << 63, -(1 << 63) - 1, 1 << 70])
def test_a_sum_is_a_word_of_64_bits(run, word):
    with pytest.raises(GroupFailed) as error:
        run(sums=lambda count: [word] * count)
    assert (error.value.kind, error.value.role) == ("lost", "candidate")


@pytest.mark.parametrize("said", [-5, 1 << 70, 0.5, "1", None])
def test_what_is_no_time_breaks_the_protocol(run, said):
    with pytest.raises(GroupFailed) as error:
        run(says=lambda true_ns, block: said)
    assert (error.value.kind, error.value.role) == ("lost", "candidate")


def test_fast_calls_share_a_long_block_and_slow_ones_do_not(run):
    fast, _ = run(reference_ms=0.01, candidate_ms=0.01)
    slow, _ = run(reference_ms=500.0, candidate_ms=500.0)
    assert fast.evidence["block_calls"] == timing.MOST_SETS
    assert slow.evidence["block_calls"] == 10 and slow.calls >= 70


def test_large_sets_bound_the_length_of_a_block(run):
    found, _ = run(set_bytes=timing.SETS_BYTES["cpu"] // 4)
    assert found.evidence["block_calls"] <= 4


def test_time_limits_end_the_measurement_early_but_not_before_three_pairs(run):
    found, _ = run(reference_ms=3000.0, candidate_ms=3000.0, overrides=["evaluation.limits.timing_seconds=60"])
    assert found.pairs == 3


def test_warm_up_ends_by_count_or_by_time(run):
    _, log = run(reference_ms=0.1, candidate_ms=0.1, overrides=["evaluation.timing.warmup=30"])
    assert sum(c["count"] for c in warm(log, "candidate")) == 30
    _, log = run(reference_ms=100.0, candidate_ms=100.0)
    assert 16 <= sum(c["count"] for c in warm(log, "candidate")) <= 24, "at least twice over the sets, then the cap of a second"


# -- for real ----------------------------------------------------------------------------------------------------------

TIMED = ("evaluation.timing.enabled=true", "evaluation.timing.blocks=5", "evaluation.timing.warmup=20")


@pytest.mark.slow
def test_a_slow_candidate_is_slow_and_a_fast_one_fast(node, allreduce):
    """By a wide margin, because the machine may be busy."""
    slow = allreduce.replace("def solution(tensor):", "import time\ndef solution(tensor):\n    time.sleep(0.05)")
    found = node.judge(slow, 1, *TIMED)
    assert found.verdict is Verdict.CORRECT and found.speedup < 0.5 and found.speedup_high < 1, found
    assert found.candidate_ms > 50
    quick = node.judge(allreduce, 1, *TIMED)
    assert quick.verdict is Verdict.CORRECT and quick.speedup > 1.2, quick
