"""What this machine can run, and what is missing: the findings of ``pkb doctor``, looked up afresh each time."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "safetensors", "numpy", "pyarrow", "polars", "ray", "litellm", "omegaconf", "typer", "rich")
#: Packages that only part of the work needs, and which part; what everything needs is not listed.
NEEDED_FOR = {
    "ray": "pkb sweep",
    "litellm": "pkb sweep",
    "polars": "pkb sweep, pkb report",
    "omegaconf": "configurations other than the default",
    "triton": "Triton candidates",
}


def examine() -> dict[str, Any]:
    """Findings as nested plain data: machine, packages, compilers, sandbox, GPUs, their link, and a list ``missing`` with advice."""
    packages = {name: _version(name) for name in PACKAGES}
    compilers = {
        "cxx": _compiler(os.environ.get("CXX", "c++")),
        "nvcc": _compiler("nvcc"),
        "ninja": shutil.which("ninja") is not None,
    }
    sandbox = _sandbox()
    gpus = _gpus() if packages["torch"] else []
    found: dict[str, Any] = {
        "machine": {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
            "shared_memory_gib": round(shutil.disk_usage("/dev/shm").total / 2**30, 1) if Path("/dev/shm").is_dir() else None,
        },
        "packages": packages,
        "compilers": compilers,
        "sandbox": sandbox,
        "gpus": gpus,
        "link": _link(len(gpus)) if gpus else None,
        "can_run": {"cpu": bool(packages["torch"] and compilers["cxx"]), "cuda": bool(gpus and compilers["nvcc"])},
    }
    found["missing"] = _missing(found)
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown" if importlib.util.find_spec(name) else None


def _compiler(command: str) -> str | None:
    try:
        said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "release" in line), lines[0] if lines else None)


def _sandbox() -> dict[str, Any]:
    """The isolation level, and what the system said where it is not the best."""
    script = (
        "from pkb.evaluate import sandbox\n"
        "try:\n    sandbox.enter(sandbox.Policy(level='namespaces'))\n    print('namespaces')\n"
        "except OSError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.fspath(Path(__file__).resolve().parents[1])}
    try:  # in a process of its own: namespaces are entered for good
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {"level": "process", "why_not_namespaces": str(error)}
    said = (done.stdout.strip() or done.stderr.strip() or "no answer").splitlines()[-1]
    if said == "namespaces":
        return {"level": "namespaces"}
    return {"level": "process", "why_not_namespaces": said, "closed_folders": _closed_folders()}


def _closed_folders() -> list[str]:
    """Folders that keep the user whom candidates run as, where root starts them, from Python's own files."""
    from pkb.evaluate import node, sandbox

    return sorted(set(sandbox.closed_ancestors(node.needed()))) if os.getuid() == 0 else []


def _gpus() -> list[dict[str, Any]]:
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": device.name,
                "capability": f"{device.major}.{device.minor}",
                "memory_gib": round(device.total_memory / 2**30, 1),
                "l2_mib": round(device.L2_cache_size / 2**20),
            }
        )
    return found


def _link(count: int) -> dict[str, Any]:
    """Peer access, multicast and bandwidth, measured; on one GPU with two ranks sharing it."""
    from pkb.errors import HarnessError
    from pkb.evaluate import link

    try:
        measured = link.measure(list(range(count)) if count > 1 else [0, 0])
    except HarnessError as error:
        return {"p2p": False, "multicast": False, "fault": str(error)}
    return {
        "p2p": measured.p2p,
        "multicast": measured.multicast,
        "read_gb_per_s": round(measured.read_bytes_per_s / 1e9, 1),
        "write_gb_per_s": round(measured.write_bytes_per_s / 1e9, 1),
        "measured_on": "one GPU that two ranks share" if measured.shared_device else f"{measured.ranks} GPUs",
    }


def _missing(found: dict[str, Any]) -> list[str]:
    advice = [
        f"{name}: {NEEDED_FOR.get(name, 'everything')} needs it; pip install {name}"
        for name, version in found["packages"].items()
        if version is None and not (name == "triton" and not found["gpus"])
    ]
    if not found["compilers"]["cxx"]:
        advice.append("a C++ compiler: candidates with extensions need it; install g++ or set CXX")
    if found["gpus"] and not found["compilers"]["nvcc"]:
        advice.append("nvcc: CUDA candidates need it; install the CUDA toolkit or put it on PATH")
    if not found["gpus"]:
        advice.append("GPUs: none is visible; everything runs on CPU ranks (device=cpu)")
    if found["sandbox"]["level"] != "namespaces":
        advice.append("namespaces: candidates are isolated less; run as root or allow unprivileged user namespaces")
        advice += [
            f"{folder}: candidates, which run as another user, import Python's modules from below it and may not pass; chmod o+x {folder}"
            for folder in found["sandbox"].get("closed_folders", [])
        ]
    return advice
