"""A folder for any coding agent: what is in it, what its check says, and that its result can be imported."""

import json
import subprocess

import pytest
import yaml

from pkb import config as configuration
from pkb import prompt
from pkb.errors import UserError
from pkb.refine import workspace
from pkb.sweep import kernels
from tests.evaluate.faulty import candidate

OVERRIDES = [
    "evaluation.trials=2",
    "evaluation.timing.iterations=4",
    "evaluation.timing.blocks=3",
    "evaluation.timing.warmup=2",
]


@pytest.fixture
def folder(tmp_path):
    config = configuration.load([*OVERRIDES, f"evaluation.cache_dir={tmp_path}/cache"])
    file = workspace.create("1", tmp_path / "work", config)
    assert file == tmp_path / "work" / "001_allreduce_shm.py" and not file.exists()
    return tmp_path / "work"


def test_it_holds_the_task_and_nothing_that_the_prompt_would_not_say(folder):
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "TASK.md", "check", "reference.py", "workspace.yaml"]
    assert (folder / "TASK.md").read_text() == prompt.render("1", configuration.load(OVERRIDES))
    assert (folder / "reference.py").read_text().strip() in (folder / "TASK.md").read_text()
    settings = yaml.safe_load((folder / "workspace.yaml").read_text())
    assert set(settings) == {"ranks", "device", "dtype", "size", "evaluation", "problems"}
    timing = {"iterations": 4, "blocks": 3, "warmup": 2}
    assert {k: settings["evaluation"][k] for k in ("trials", "timing")} == {"trials": 2, "timing": timing}, "what differs only"


def test_its_check_command_says_what_a_refinement_is_told_as_text_and_as_json(folder):
    file = folder / "001_allreduce_shm.py"
    file.write_text(candidate("return tensor.clone()"))
    found = json.loads(json.dumps(workspace.check(folder)))
    assert found["verdict"] == "mismatch" and found["diagnosis"]["kinds"] == ["local"] and "never arrived" in found["text"]
    assert "Edit `001_allreduce_shm.py`" in found["text"] and "Reply" not in found["text"]
    file.write_text(candidate("return total(tensor).to(tensor.dtype)"))
    right = subprocess.run([folder / "check"], capture_output=True, text=True, timeout=120)
    assert right.returncode == 0 and right.stdout.startswith("The candidate is correct.") and "times as fast" in right.stdout


def test_its_result_is_imported_with_the_workspace_s_own_settings(folder, tmp_path):
    (folder / "001_allreduce_shm.py").write_text(candidate("return total(tensor).to(tensor.dtype)"))
    imported = kernels.import_folder(folder, "agent", tmp_path / "run", config=str(folder / "workspace.yaml"))
    assert imported.files == 1 and not imported.skipped
    assert configuration.resumed(tmp_path / "run").evaluation.trials == 2


def test_bad_input_is_one_line(folder, tmp_path):
    with pytest.raises(UserError, match=r"there is no 001_allreduce_shm\.py"):
        workspace.check(folder)
    with pytest.raises(UserError, match="is in use; give a new folder"):
        workspace.create("1", folder, configuration.load([]))
    with pytest.raises(UserError, match="is no workspace; make one with"):
        workspace.check(tmp_path)
