"""A dry run counts what is left to ask and its cost, asks nobody and writes nothing."""

import json

import pytest

from pkb import config
from pkb.errors import UserError
from pkb.records import AttemptKey, Generation
from pkb.store import run as runs
from pkb.store.rows import generation_row
from pkb.store.writer import RunStore
from pkb.sweep.dry_run import dry_run
from pkb.verdict import GenerationStatus


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text(
        "priced: {model: openai/a, key_env: NO_SUCH_KEY, max_tokens: 10000, prices: {input: 2, output: 10}}\n"
        "unknown: {model: openai/nobody-knows-me, api_base: 'http://127.0.0.1:1/v1'}\n"
    )
    return str(path)


def forecast(capsys, *overrides):
    assert dry_run(config.load(list(overrides)), as_json=True) == 0
    return json.loads(capsys.readouterr().out)


def test_counts_and_prices(models, tmp_path, capsys):
    found = forecast(capsys, f"models=[{models}:priced]", "problems=[1,2]", "attempts=5", f"run_dir={tmp_path}/run")
    (model,) = found["models"]
    assert model["calls"] == found["total"]["calls"] == 10
    assert 10 * 500 < model["prompt_tokens"] < 10 * 20_000
    assert model["cost_low_usd"] == pytest.approx(model["prompt_tokens"] * 2e-6 + 10 * 1000 * 1e-5)
    assert model["cost_high_usd"] == pytest.approx(model["prompt_tokens"] * 2e-6 + 10 * 10_000 * 1e-5)
    assert not (tmp_path / "run").exists()


def test_an_unknown_price_is_unknown_in_the_sum(models, tmp_path, capsys):
    found = forecast(capsys, f"models=[{models}]", "problems=[1]", f"run_dir={tmp_path}/run")
    assert [m["cost_high_usd"] is None for m in found["models"]] == [False, True]
    assert found["total"]["cost_high_usd"] is None and found["total"]["calls"] == 6


def test_what_is_answered_is_not_counted(models, tmp_path, capsys):
    run = tmp_path / "run"
    key = AttemptKey(run.name, "priced", "001_allreduce", 1)
    overrides = [f"models=[{models}:priced]", "problems=[1,2]", "attempts=2", f"run_dir={run}"]
    with RunStore(run) as store:
        runs.write(
            run, config.load(overrides), {"models": [{"name": "priced"}], "problems": ["001_allreduce", "002_allgather"]}
        )
        store.append("generations", [generation_row(Generation(key, GenerationStatus.OK, "p", "h"))])
    found = forecast(capsys, *overrides)
    assert found["total"]["calls"] == 3


def test_an_attempt_of_several_turns_takes_between_one_and_all_of_them(models, tmp_path, capsys):
    overrides = [f"models=[{models}:priced]", "problems=[1,2]", "attempts=5", f"run_dir={tmp_path}/run", "agent.max_turns=4"]
    (model,) = forecast(capsys, *overrides)["models"]
    assert (model["calls_low"], model["calls"]) == (10, 40)
    assert model["cost_low_usd"] == pytest.approx(model["prompt_tokens_low"] * 2e-6 + 10 * 1000 * 1e-5)
    assert model["cost_high_usd"] == pytest.approx(model["prompt_tokens"] * 2e-6 + 40 * 10_000 * 1e-5)
    assert model["prompt_tokens"] - 4 * model["prompt_tokens_low"] > 10 * (0 + 1 + 2 + 3) * 10_000
    (tight,) = forecast(capsys, *overrides, "agent.context_tokens=10000")["models"]
    assert tight["prompt_tokens"] == tight["prompt_tokens_low"] + 30 * 10_000


def test_an_attempt_that_has_had_a_turn_may_have_all_but_one_left(models, tmp_path, capsys):
    run = tmp_path / "run"
    key = AttemptKey(run.name, "priced", "001_allreduce", 1)
    overrides = [f"models=[{models}:priced]", "problems=[1,2]", "attempts=2", f"run_dir={run}", "agent.max_turns=4"]
    with RunStore(run) as store:
        runs.write(
            run, config.load(overrides), {"models": [{"name": "priced"}], "problems": ["001_allreduce", "002_allgather"]}
        )
        store.append("generations", [generation_row(Generation(key, GenerationStatus.OK, "p", "h"))])
    total = forecast(capsys, *overrides)["total"]
    assert (total["calls_low"], total["calls"]) == (3, 3 * 4 + 3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("agent.context_tokens=10", "leaves no room for an answer; give at least"),
        ("agent.patience=-1", r"agent\.patience=-1: must be 0 \(no limit\) or more"),
        ("agent.max_cost_usd=-0.5", "must be 0"),
        ("budget.seconds=-1", "must be 0"),
    ],
)
def test_limits_that_nothing_could_keep_are_refused(models, override, words):
    with pytest.raises(UserError, match=words):
        dry_run(config.load([f"models=[{models}:priced]", "problems=[1]", "agent.max_turns=2", override]))


def test_the_table_names_every_model(models, tmp_path, capsys):
    dry_run(config.load([f"models=[{models}]", "problems=[1]", f"run_dir={tmp_path}/run"]))
    text = capsys.readouterr().out
    assert all(word in text for word in ("priced", "unknown", "all", "$"))


def test_a_folder_of_kernels_has_nothing_to_ask(tmp_path, capsys):
    from pkb.sweep.kernels import import_folder

    (tmp_path / "kernels").mkdir()
    for name in ("1_allreduce_cuda.py", "1_allreduce_cuda_v2.py", "2_allgather_cuda.py"):
        (tmp_path / "kernels" / name).write_text("def solution(tensor): ...\n")
    import_folder(tmp_path / "kernels", "by-hand", tmp_path / "run")
    assert dry_run(config.resumed(tmp_path / "run"), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["total"]["calls"] == 0


@pytest.mark.parametrize(
    ("overrides", "said"), [(["budget.cost_usd=1"], "price of 'unknown' is unknown"), ([], "export NO_SUCH_KEY")]
)
def test_a_sweep_that_cannot_begin_leaves_no_run_directory(models, tmp_path, overrides, said):
    from pkb.sweep.command import run_sweep

    names = [f"models=[{models}:unknown]"] if overrides else [f"models=[{models}]"]
    settings = config.load([*names, "problems=[1]", f"run_dir={tmp_path / 'new'}", *overrides])
    with pytest.raises(UserError, match=said):
        run_sweep(settings)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("key", ["models", "problems"])
def test_nothing_to_do_is_bad_input(key):
    with pytest.raises(UserError, match=f"{key}=.*name at least one"):
        config.load([f"{key}=[]"])
