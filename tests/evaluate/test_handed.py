"""What candidate ranks leave behind is read, whatever they put there."""

import os

from pkb.evaluate import handed


def test_links_pipes_and_folders_are_not_read(tmp_path):
    home = tmp_path / "rank0"
    home.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("key")
    (home / "link").symlink_to(secret)
    os.mkfifo(home / "pipe")
    (home / "folder").mkdir()
    (tmp_path / "rank1").symlink_to(tmp_path)
    read = [handed.read(str(tmp_path), 0, name, 10) for name in ("link", "pipe", "folder", "absent")]
    assert read == [b""] * 4 and handed.read(str(tmp_path), 1, "secret", 10) == b""
    (home / "plain").write_text("stacks")
    assert handed.read(str(tmp_path), 0, "plain", 4) == b"stac"
