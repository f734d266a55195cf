"""The launchers under conf/cluster: shell that parses, YAML with what its reader requires."""

import os
import shutil
import subprocess
import sys

import pytest
import yaml

from pkb.config import conf_root, keys

FOLDER = conf_root() / "cluster"
SCRIPTS = sorted(FOLDER.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_shell_parses(script):
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False).stderr == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_shellcheck_finds_nothing(script):
    shellcheck = shutil.which("shellcheck", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_by_hand_explains_itself():
    done = subprocess.run(["bash", FOLDER / "by-hand.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_ray_job_has_what_the_operator_requires():
    job = yaml.safe_load((FOLDER / "kuberay-rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        assert "rayStartParams" in group
        pod = group["template"]["spec"]
        mounted = {m["name"] for c in pod["containers"] for m in c.get("volumeMounts", [])}
        assert mounted == {v["name"] for v in pod.get("volumes", [])}
    workers = cluster["workerGroupSpecs"][0]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    given = [word.split("=")[0] for word in job["spec"]["entrypoint"].split()[2:]]
    assert set(given) <= {*keys(), "size"}


def test_ray_up_has_what_ray_requires():
    cluster = yaml.safe_load((FOLDER / "ray-up.yaml").read_text())
    assert {"cluster_name", "provider", "auth", "head_start_ray_commands", "worker_start_ray_commands"} <= cluster.keys()
    assert all(
        "RAY_AUTH_MODE=token" in c for k in ("head", "worker") for c in cluster[f"{k}_start_ray_commands"] if "start" in c
    )
    assert cluster["min_workers"] == len(cluster["provider"]["worker_ips"])
