"""Hardware profiles."""

import pytest

from pkb import config, hardware
from pkb.errors import UserError


@pytest.mark.parametrize("name", hardware.names())
def test_every_profile_is_complete_and_physical(name):
    profile = hardware.load(name)
    assert profile.device in ("cpu", "cuda")
    assert profile.peak("bfloat16") >= profile.peak("float32") >= profile.peak("float64") > 1e12
    assert profile.memory_bandwidth > profile.peer_bandwidth > 1e10
    assert profile.source and "\n" not in profile.topology
    assert bool(profile.arch) == (profile.device == "cuda")


def test_a_count_may_follow_the_name():
    assert hardware.load("h200").gpus == 8
    assert hardware.load("h200x2").gpus == 2
    assert hardware.load("gb200_nvl72").gpus == 72


def test_unknown_profile_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'h200'"):
        hardware.load("h20")


def test_auto_depends_on_the_configuration_alone():
    assert hardware.of(config.load()).name == "cpu"
    assert hardware.of(config.load(["device=cuda"])).name == "h200"


def test_a_profile_that_does_not_fit_the_run_is_refused():
    with pytest.raises(UserError, match="device=cpu"):
        hardware.of(config.load(["prompt.hardware=h100"]))
    with pytest.raises(UserError, match="ranks=4"):
        hardware.of(config.load(["device=cuda", "prompt.hardware=h200x2", "ranks=4"]))
