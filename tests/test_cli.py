"""The command line's surface: what it accepts, how it fails, how fast it starts, and what it needs installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pkb import cli

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("sweep", "status", "eval", "report", "problems", "prompt", "audit", "import", "export", "doctor")


def pkb(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "pkb", *arguments], capture_output=True, text=True, env=environment, timeout=120, **options
    )


def test_every_command_shows_an_example():
    for command in COMMANDS:
        shown = pkb(command, "--help").stdout
        assert "Example" in shown and f"pkb {command}" in shown.split("Example", 1)[1], command


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nonsense"], "nonsense"),
        (["eval", "x.py"], "--problem"),
        (["sweep", "--frobnicate"], "--frobnicate"),
        (["sweep", "atempts=3"], "attempts"),
        (["sweep", "attempts"], "key=value"),
        (["sweep", "problems=[999]"], "999"),
        (["problems", "allredcue"], "allreduce"),
        (["status", "/nowhere"], "/nowhere"),
        (["report", "/nowhere"], "/nowhere"),
        (["report", "/nowhere", "--format", "pdf"], "pdf"),
    ],
)
def test_bad_input_is_one_line_that_names_it_and_exit_code_2(arguments, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run_command(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and named in err
    assert list(tmp_path.iterdir()) == []


def test_listing_problems_imports_nothing_heavy():
    program = (
        "import sys; from pkb.cli import run_command; run_command(['problems']); "
        "heavy = {'torch', 'ray', 'litellm', 'polars', 'pyarrow', 'numpy', 'omegaconf'}; "
        "print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert done.stderr.strip() == "" and "001_allreduce" in done.stdout


def test_json_is_one_object_and_nothing_else():
    listed = json.loads(pkb("problems", "--json").stdout)["problems"]
    assert {"id": 1, "problem": "001_allreduce"}.items() <= listed[0].items()
    shown = json.loads(pkb("problems", "1", "--json").stdout)
    assert shown["sizes"]["smoke"]["cost_per_rank_by_world_size"]["2"]["sent_bytes"] > 0


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path):
    """Without Ray, polars and the rest, what needs them says so, and problems are still listed."""
    program = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('ray', 'polars', 'litellm', 'omegaconf', 'yaml'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from pkb.cli import run_command\n"
        "sys.exit(run_command(sys.argv[1:]))\n"
    )

    def bare(*arguments):
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})

    assert bare("problems").returncode == 0
    (tmp_path / "run" / "evaluations").mkdir(parents=True)
    (tmp_path / "run" / "run.yaml").write_text("config: {}")
    refused = bare("report", "run")
    assert refused.returncode == 2 and "pip install" in refused.stderr and len(refused.stderr.splitlines()) == 1
