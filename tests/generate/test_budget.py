"""Budgets stop new calls, keep what is in flight, and do not overshoot by all of it."""

import asyncio

import pytest

from pkb.config import BudgetConfig
from pkb.errors import UserError
from pkb.generate.budget import Budget, Spent
from pkb.generate.client import Client
from pkb.generate.models import Model
from pkb.verdict import GenerationStatus
from tests.generate.conftest import FAST, ask, model_at
from tests.generate.server import Server, answer

COST = (80 * 1.0 + 20 * 0.5 + 40 * 10.0) / 1e6  # of one answer of the test server


def asked_with(budget, count=20, **settings):
    with Server.replying(answer()) as server:
        model = model_at(server, **settings)
        found = ask(*[(model, i) for i in range(count)], budget=budget)
    return found, server


@pytest.mark.parametrize(
    ("budget", "settings", "word"),
    [
        (BudgetConfig(cost_usd=4.5 * COST), {}, "budget.cost_usd"),
        (BudgetConfig(tokens=4 * 140 + 70), {}, "budget.tokens"),
        (BudgetConfig(), {"budget_usd": 4.5 * COST}, "budget_usd"),
    ],
)
def test_a_used_up_budget_stops_new_calls_and_loses_none(budget, settings, word):
    found, server = asked_with(budget, **settings)
    answered = [f for f in found if f.status is GenerationStatus.OK]
    assert len(server.requests) == len(answered)
    assert 4 <= len(answered) <= 6  # one call may cross the line
    rest = [f for f in found if f.status is GenerationStatus.PROVIDER_ERROR]
    assert len(rest) == 20 - len(answered)
    assert all(f.tries == 0 and word in f.error for f in rest)


def test_one_models_budget_leaves_the_other_alone():
    with Server.replying(answer()) as server:
        poor, rich = model_at(server, "poor", budget_usd=1.5 * COST), model_at(server, "rich")
        found = ask(*[(poor, i) for i in range(8)], *[(rich, i) for i in range(8)])
    assert sum(f.status is GenerationStatus.OK for f in found[:8]) < 4
    assert all(f.status is GenerationStatus.OK for f in found[8:])


def test_earlier_sessions_count():
    with Server.replying(answer()) as server:
        model = model_at(server)
        (found,) = ask(model, budget=BudgetConfig(cost_usd=1.0), earlier={"m": Spent(1.0, 1000, 10)})
    assert found.tries == 0 and not server.requests


def test_time_is_a_budget():
    clock = [0.0]
    budget = Budget(BudgetConfig(seconds=10), {}, clock=lambda: clock[0])
    assert budget.exhausted("m") is None
    clock[0] = 10.0
    assert "budget.seconds=10" in budget.exhausted("m")


def test_a_budget_in_dollars_needs_prices():
    model = Model("m", "openai/nobody-knows-me", api_base="http://127.0.0.1:1")
    with pytest.raises(UserError, match="price of 'm' is unknown"):
        Client(FAST, [model], BudgetConfig(cost_usd=1.0))


def test_reservations_hold_back_calls_until_they_fit():
    async def main():
        budget = Budget(BudgetConfig(cost_usd=1.0), {})
        budget.charge("m", 0.3, 0)  # so a call costs 0.3: two more fit
        inside, most = 0, 0
        release = asyncio.Event()

        async def call():
            nonlocal inside, most
            async with budget.reserve("m", 0.3, 0):
                if budget.exhausted("m"):
                    return
                inside += 1
                most = max(most, inside)
                await release.wait()
                budget.charge("m", 0.3, 0)
                inside -= 1

        calls = [asyncio.create_task(call()) for _ in range(10)]
        await asyncio.sleep(0.01)
        assert inside == 2
        release.set()
        await asyncio.gather(*calls)
        return budget.spent["m"].cost_usd

    assert asyncio.run(main()) == pytest.approx(1.2)  # 0.1 was left, and one call may cross the line
