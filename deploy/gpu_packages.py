"""Chooses and checks the packages for GPUs: PyTorch, CuPy and NCCL must be for one major version of CUDA.

    python deploy/gpu_packages.py requirements     # arguments of pip for the driver of this machine
    python deploy/gpu_packages.py check --cuda 13  # prints the installed versions; fails if they do not fit together

`make test-gpu` uses the first, the images for GPUs the second. Neither needs podrace to be installed.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
INDEX = "https://download.pytorch.org/whl/cu126"
"""Index with PyTorch for CUDA 12; the package of that name on PyPI is for CUDA 13."""
CUDA12_BUILD = "+cu126"
CUDA_OF_DRIVER = "CUDA 13 needs driver 580 or newer (or the package cuda-compat-13 on a data-center GPU)"


@dataclass(frozen=True)
class Installed:
    """Versions of the packages that can be imported."""

    torch: Mapping[str, str]
    """Version of each PyTorch by its folder; there should be one."""
    cuda: str | None
    """Version of CUDA that PyTorch was built for; None: for processors only."""
    nccl: str
    """Version of NCCL that PyTorch uses; empty if it has none."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages of CuPy, NCCL and Warp by name."""

    def lines(self) -> list[str]:
        """One line for each package."""
        torch = [f"torch {version} ({folder})" for folder, version in self.torch.items()]
        others = [f"{name} {version}" for name, version in sorted(self.packages.items())]
        return [
            *(torch or ["torch -"]),
            f"CUDA of torch {self.cuda or '-'}",
            f"NCCL of torch {self.nccl or '-'}",
            *others,
        ]


def problems(installed: Installed, cuda: int, torch: str) -> list[str]:
    """Returns what does not fit together.

    Args:
        installed: The versions found.
        cuda: Major version of CUDA that everything must be for.
        torch: Version of PyTorch that podrace is tested with.
    """
    found = []
    if len(installed.torch) != 1:
        found.append(f"{len(installed.torch)} PyTorch packages are installed, expected one: {dict(installed.torch)}")
    other = [version for version in installed.torch.values() if version.partition("+")[0] != torch]
    found += [f"torch {version}: podrace is tested with {torch} (constraints.txt)" for version in other]
    if (installed.cuda or "").partition(".")[0] != str(cuda):
        found.append(f"torch is for CUDA {installed.cuda or '(none: a build for CPUs)'}, expected CUDA {cuda}")
    cupy = sorted(name for name in installed.packages if name.startswith("cupy"))
    if cupy != [f"cupy-cuda{cuda}x"]:
        found.append(f"CuPy: {', '.join(cupy) or 'none'} is installed, expected cupy-cuda{cuda}x alone")
    nccl = sorted(name for name in installed.packages if name.startswith("nvidia-nccl"))
    if len(nccl) > 1:
        # All have the same files, so those of the one that was installed last are used.
        found.append(f"NCCL: {', '.join(nccl)} are installed, expected one: uninstall all, and install one again")
    elif installed.nccl and any(installed.packages[name] != installed.nccl for name in nccl):
        found.append(f"{nccl[0]} {installed.packages[nccl[0]]} is installed, but torch uses NCCL {installed.nccl}")
    return found


def requirements(cuda_driver: int, torch: str, extras: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the arguments of pip that install the packages for a driver.

    Args:
        cuda_driver: Newest version of CUDA that the driver supports, as NVML reports it: 13000 is 13.0.
        torch: Version of PyTorch.
        extras: Optional dependencies of the project.
    """
    if cuda_driver >= 13000:
        return [f"torch=={torch}", *extras["cuda13"]]
    if cuda_driver >= 12060:
        return ["--extra-index-url", INDEX, f"torch=={torch}{CUDA12_BUILD}", *extras["cuda12"]]
    raise SystemExit(
        f"error: the driver supports CUDA {cuda_driver // 1000}.{cuda_driver % 1000 // 10} at most, podrace needs 12.6;"
        f" {CUDA_OF_DRIVER}"
    )


def tested_torch(constraints: Path) -> str:
    """Returns the version of PyTorch in a file of constraints."""
    found = re.search(r"^torch==([\w.]+)", constraints.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"error: {constraints} has no version of torch")
    return found.group(1)


def find_installed() -> Installed:
    """Reads the versions of the installed packages; imports torch, which needs no driver."""
    torch_folders, packages = {}, {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name == "torch":
            torch_folders[str(distribution.locate_file(""))] = distribution.version
        elif name.startswith(("cupy", "nvidia-nccl")) or name == "warp-lang":
            packages[name] = distribution.version
    if not torch_folders:
        return Installed({}, None, "", packages)
    import torch

    try:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):
        nccl = ""
    return Installed(torch_folders, torch.version.cuda, nccl, packages)


def cuda_of_driver(nvml: Any) -> int:
    """Returns the newest version of CUDA that the driver supports.

    Args:
        nvml: The module `pynvml`.
    """
    try:
        nvml.nvmlInit()
        return int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError as error:
        raise SystemExit(
            f"error: the NVIDIA driver does not answer ({error}): this needs a machine with a GPU"
        ) from None


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("requirements")
    check = commands.add_parser("check")
    check.add_argument("--cuda", type=int, choices=(12, 13), help="default: what the driver supports")
    check.add_argument("--constraints", type=Path, default=REPOSITORY / "constraints.txt")
    options = parser.parse_args(arguments)
    if options.command == "requirements":
        import pynvml

        extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        print("\n".join(requirements(cuda_of_driver(pynvml), tested_torch(REPOSITORY / "constraints.txt"), extras)))
        return 0
    cuda = options.cuda
    if cuda is None:
        import pynvml

        cuda = cuda_of_driver(pynvml) // 1000
    installed = find_installed()
    print("\n".join(installed.lines()))
    wrong = problems(installed, cuda, tested_torch(options.constraints))
    for problem in wrong:
        print(f"error: {problem}", file=sys.stderr)
    if wrong and cuda == 13:
        print(CUDA_OF_DRIVER, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
