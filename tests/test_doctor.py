"""The doctor's findings: what is here, and advice for what is not."""

from pkb import doctor


def test_this_machine_runs_cpu_ranks():
    found = doctor.examine()
    assert found["can_run"]["cpu"]
    assert found["packages"]["torch"]
    assert found["sandbox"]["level"] in ("process", "namespaces")
    assert found["machine"]["cores"] >= 1


def test_what_is_missing_comes_with_what_needs_it():
    found = doctor.examine()
    bare = {
        **found,
        "packages": {**found["packages"], "ray": None},
        "compilers": {"cxx": None, "nvcc": None, "ninja": False},
        "gpus": [{"name": "GPU"}],
        "sandbox": {"level": "process", "why_not_namespaces": "refused", "closed_folders": ["/root"]},
    }
    advice = "\n".join(doctor._missing(bare))
    for word in ("pkb sweep needs it", "install g++", "install the CUDA toolkit", "user namespaces", "chmod o+x /root"):
        assert word in advice
    assert "GPUs: none" not in advice
