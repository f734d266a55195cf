"""run.yaml: a directory is one configuration's run, or it is left alone."""

import pytest

from pkb import config
from pkb.errors import UserError
from pkb.store import run


def test_a_run_is_described_once_and_every_session_is_added(tmp_path):
    settings = config.load(["attempts=2"])
    first = run.write(tmp_path / "r", settings, {"models": []})
    second = run.write(tmp_path / "r", settings)
    assert first["run"] == "r" and first["id"] == second["id"] and first["created"] == second["created"]
    assert len(run.read(tmp_path / "r")["sessions"]) == 2
    assert run.read(tmp_path / "r")["config"] == settings.as_dict()


def test_where_and_how_fast_a_run_is_executed_does_not_make_it_another_run(tmp_path):
    run.write(tmp_path, config.load(["cluster.lag=3"]))
    run.check(tmp_path, config.load(["cluster.lag=9", "budget.cost_usd=5", f"run_dir={tmp_path}"]))


def test_another_configuration_is_refused_and_the_difference_named(tmp_path):
    run.write(tmp_path, config.load(["attempts=2"]))
    before = (tmp_path / run.FILE).read_bytes()
    with pytest.raises(UserError, match=r"attempts: 2 there, 3 now.*choose another run_dir"):
        run.write(tmp_path, config.load(["attempts=3"]))
    assert (tmp_path / run.FILE).read_bytes() == before


def test_a_directory_with_other_files_or_a_file_is_not_written_over(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="other files"):
        run.check(tmp_path, config.load())
    with pytest.raises(UserError, match="is a file"):
        run.check(tmp_path / "thesis.tex", config.load())


@pytest.mark.parametrize("text", ["a: [", "just text", "{}"])
def test_a_damaged_description_is_one_line(tmp_path, text):
    (tmp_path / run.FILE).write_text(text)
    with pytest.raises(UserError) as error:
        run.read(tmp_path)
    assert "\n" not in str(error.value) and "run.yaml" in str(error.value)


def test_no_run_directory(tmp_path):
    with pytest.raises(UserError, match="no run directory"):
        run.read(tmp_path)


@pytest.mark.parametrize(
    ("keys", "profile"),
    [([], "cpu"), (["device=cuda", "ranks=8"], "h200"), (["device=cuda", "prompt.hardware=b200x8"], "b200x8")],
)
def test_the_hardware_that_auto_stands_for_is_written_down(tmp_path, keys, profile):
    run.write(tmp_path, config.load(keys))
    assert run.read(tmp_path)["hardware"]["profile"] == profile
