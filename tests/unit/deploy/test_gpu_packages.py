"""Which packages a driver gets, and which installed packages do not fit together."""

import importlib.util
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

REPOSITORY = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("podrace_gpu_packages", REPOSITORY / "deploy/gpu_packages.py")
gpu_packages = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = gpu_packages
_spec.loader.exec_module(gpu_packages)

EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PACKAGES = {"cupy-cuda13x": "14.2.0", "nvidia-nccl-cu13": "2.29.7", "warp-lang": "1.19.0"}
GOOD = gpu_packages.Installed({"/opt/site": "2.13.0"}, "13.0", "2.29.7", PACKAGES)


def test_packages_for_one_cuda_and_the_tested_torch_fit_together():
    assert gpu_packages.problems(GOOD, 13, "2.13.0") == []
    assert GOOD.lines() == [
        "torch 2.13.0 (/opt/site)",
        "CUDA of torch 13.0",
        "NCCL of torch 2.29.7",
        "cupy-cuda13x 14.2.0",
        "nvidia-nccl-cu13 2.29.7",
        "warp-lang 1.19.0",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": {"/a": "2.13.0", "/b": "2.13.0"}}, "2 PyTorch packages are installed, expected one"),
        ({"torch": {}}, "0 PyTorch packages"),
        ({"torch": {"/a": "2.11.0+cu130"}}, "torch 2.11.0+cu130: podrace is tested with 2.13.0"),
        ({"cuda": "12.6"}, "torch is for CUDA 12.6, expected CUDA 13"),
        ({"cuda": None}, "torch is for CUDA (none: a build for CPUs), expected CUDA 13"),
        ({"packages": {}}, "CuPy: none is installed, expected cupy-cuda13x alone"),
        ({"packages": {**PACKAGES, "cupy-cuda12x": "14.2.0"}}, "CuPy: cupy-cuda12x, cupy-cuda13x is installed"),
        (
            {"packages": {**PACKAGES, "nvidia-nccl-cu13": "2.32.3"}},
            "nvidia-nccl-cu13 2.32.3 is installed, but torch uses",
        ),
        (
            {"packages": {**PACKAGES, "nvidia-nccl-cu12": "2.29.7"}},
            "nvidia-nccl-cu12, nvidia-nccl-cu13 are installed, expected one",
        ),
    ],
)
def test_what_does_not_fit_is_named(changes, words):
    (problem,) = gpu_packages.problems(replace(GOOD, **changes), 13, "2.13.0")
    assert words in problem


@pytest.mark.parametrize(
    ("driver", "extra", "torch"),
    [
        (13000, "cuda13", "torch==2.13.0"),
        (13020, "cuda13", "torch==2.13.0"),
        (12060, "cuda12", "torch==2.13.0+cu126"),
        (12080, "cuda12", "torch==2.13.0+cu126"),
    ],
)
def test_the_driver_decides_which_packages_are_installed(driver, extra, torch):
    found = gpu_packages.requirements(driver, "2.13.0", EXTRAS)
    assert torch in found
    assert found[-len(EXTRAS[extra]) :] == EXTRAS[extra]
    assert (gpu_packages.INDEX in found) == (extra == "cuda12")


def test_a_driver_that_is_too_old_is_refused():
    with pytest.raises(SystemExit, match=r"supports CUDA 12.4 at most, podrace needs 12.6; CUDA 13 needs driver 580"):
        gpu_packages.requirements(12040, "2.13.0", EXTRAS)


def test_without_a_driver_the_reason_is_printed():
    def refuse():
        raise OSError("Driver Not Loaded")

    nvml = SimpleNamespace(nvmlInit=refuse, NVMLError=OSError)
    with pytest.raises(SystemExit, match=r"does not answer \(Driver Not Loaded\): this needs a machine with a GPU"):
        gpu_packages.cuda_of_driver(nvml)


def test_the_extras_for_gpus_leave_nccl_to_torch():
    for cuda in (12, 13):
        (cupy,) = EXTRAS[f"cuda{cuda}"]
        assert cupy.startswith(f"cupy-cuda{cuda}x")
    (nccl,) = EXTRAS["nccl12"]
    assert nccl.startswith("nvidia-nccl-cu12==")


def test_the_checked_torch_is_the_one_of_the_constraints():
    assert gpu_packages.tested_torch(REPOSITORY / "constraints.txt") in (REPOSITORY / "Makefile").read_text()
