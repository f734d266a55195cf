"""What killed actors leave behind is found by its mark and removed; credentials are forgotten."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pkb.sweep import actor_process

OWNER = """
import subprocess, sys, tempfile, time
from pkb.sweep import actor_process
print(actor_process.claim("test"), flush=True)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(child.pid, tempfile.mkdtemp(), flush=True)
time.sleep(1000)
"""


def start():
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    removed = process.stdout.readline().strip()
    pid, folder = process.stdout.readline().split()
    return process, removed, int(pid), Path(folder)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_successor_removes_processes_and_files_of_a_killed_owner_and_nobody_else_s():
    alive = start()
    dead = start()
    try:
        dead[0].send_signal(signal.SIGKILL)
        dead[0].wait()
        assert running(dead[2]) and dead[3].exists()
        successor = start()
        assert "1 processes and 1 folders" in successor[1]
        deadline = time.monotonic() + 5
        while running(dead[2]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not dead[3].exists()
        assert running(alive[2]) and alive[3].exists()
        successor[0].kill()
    finally:
        for process, *_ in (alive, dead):
            process.kill()
            process.wait()
        actor_process.kill_orphans()
        actor_process.remove_folders()
    assert not running(alive[2])


def test_owners_in_another_pid_namespace_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(actor_process, "_root", lambda: tmp_path)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    for namespace in (actor_process._namespace(), "1"):
        (tmp_path / f"pkb-owner-{namespace}-{int(ended.stdout)}-1").mkdir()
    assert actor_process.remove_folders() == 1
    assert [path.name.split("-")[2] for path in tmp_path.iterdir()] == ["1"]


def test_credentials_are_forgotten_and_ordinary_settings_kept(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t")
    monkeypatch.setenv("DB_PASSWORD", "p")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gone = actor_process.forget_credentials()
    assert {"OPENAI_API_KEY", "AWS_SESSION_TOKEN", "DB_PASSWORD"} <= set(gone)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0" and "PATH" in os.environ
