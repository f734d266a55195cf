"""Temporary folders outlive nobody, whenever their owner is killed."""

import os
import shutil
from pathlib import Path

import pytest

from pkb.evaluate import folders


class Killed(BaseException):
    pass


def test_the_folder_of_a_dead_owner_goes_with_the_next_claim_and_that_of_a_living_one_stays(tmp_path):
    dead, lock = folders.claim("pkb-test-", tmp_path)
    os.close(lock)
    living, held = folders.claim("pkb-test-", tmp_path)
    assert not dead.exists()
    other, another = folders.claim("pkb-test-", tmp_path)
    assert living.exists()
    folders.release(living, held)
    folders.release(other, another)
    assert list(tmp_path.iterdir()) == []


def test_an_owner_that_is_killed_while_it_removes_its_folder_leaves_it_recognisable(tmp_path, monkeypatch):
    folder, lock = folders.claim("pkb-test-", tmp_path)
    (folder / "code").mkdir()
    (folder / "code" / "module.py").touch()

    def killed(path, **_):  # right after the first file, which may well be the lock
        (Path(path) / folders.LOCK).unlink(missing_ok=True)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(shutil, "rmtree", killed)
        folders.release(folder, lock)
    os.close(lock)  # as the kernel does
    folders.release(*folders.claim("pkb-test-", tmp_path))
    assert list(tmp_path.iterdir()) == []
