"""Writes the locks of deploy/locks: exact versions and hashes of everything that pip installs. `make lock` runs it.

There is one lock for each image and one for `make install`. Versions come from constraints.txt; a package that is not
in there keeps the version of the existing lock. Each lock is for every platform and every Python that podrace runs on.

PyTorch has two separate locks. `torch.txt` has the hashes of all builds on PyPI, and of the wheels listed in
`torch-wheels.sha256`: builds of PyTorch's own index, which are not on PyPI. `torch-libraries.txt` has what the builds
for CUDA need; deploy/requirements.py adds it where such a build is installed.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from requirements import BESIDES, BUILD, EXTRAS, TORCH, TORCH_LIBRARIES, normalized, optional, requirements

REPOSITORY = Path(__file__).resolve().parents[1]
LOCKS = REPOSITORY / "deploy/locks"
TORCH_WHEELS = LOCKS / "torch-wheels.sha256"
OLDEST_PYTHON = "3.11"
DEVELOPMENT_PYTHON = "3.11.5"
"""The documentation site needs it."""
GPU = ("agentpod", "mujoco", "warp", "stocks", "minio", "tracing")
SETS: Mapping[str, Sequence[str]] = {
    "leaderboard": ("minio", "kubernetes", "postgresql", "tracing"),
    "orchestrator": ("minio", "docker", "kubernetes", "postgresql", "tracing"),
    "serving": ("serve", "tracing"),
    "agentpod": ("agentpod", "mujoco", "warp", "box2d", "stocks", "minio", "tracing"),
    "cuda12": (*GPU, "cuda12"),
    "cuda13": (*GPU, "cuda13"),
    "development": (
        *("agentpod", "mujoco", "box2d", "warp", "envpool", "atari", "pettingzoo", "minio", "docker", "kubernetes"),
        *("postgresql", "stocks", "pb2", "plots", "policy", "serve", "dashboard", "tensorboard", "tracing", "video"),
        *("docs", "dev"),
    ),
}
"""Extras of each lock. The build arguments of deploy/Dockerfile, and the Makefile, name the same."""
TOOLS = "tools"
"""What `make lock`, `make sbom` and `make audit` run, in a separate environment."""
BLOCK = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)
HEADER = "# Made by `make lock`; do not edit.\n"


def blocks(lock: str) -> list[str]:
    """Splits a lock into its packages, each with its hashes."""
    return [block for block in BLOCK.split(lock) if normalized(block)]


def for_cuda(block: str) -> bool:
    """Whether PyTorch needs this package only for CUDA: its marker names Linux."""
    return "sys_platform == 'linux'" in block.partition("\n")[0]


def pin(block: str) -> str:
    """Returns the first line of a package without its marker: `name==version`."""
    return block.split()[0]


def split_torch(lock: str) -> tuple[str, list[str], list[str]]:
    """Splits the lock of PyTorch into PyTorch, its CUDA libraries, and the pins of what every build needs."""
    found = blocks(lock)
    (torch,) = [block for block in found if normalized(block) == TORCH]
    libraries = [block for block in found if for_cuda(block)]
    return torch, libraries, [pin(block) for block in found if block is not torch and not for_cuda(block)]


def with_wheels(torch: str, wheels: str) -> str:
    """Adds the hashes of wheels to the lock of PyTorch.

    Args:
        torch: The lock.
        wheels: Lines of `sha256sum`; those of other versions are left out.
    """
    version = pin(torch).partition("==")[2]
    listed = [line.split() for line in wheels.splitlines() if line and not line.startswith("#")]
    added = [digest for digest, name in listed if re.match(rf"torch-{re.escape(version)}[+-]", name)]
    return " \\\n".join([torch.rstrip("\n"), *(f"    --hash=sha256:{digest}" for digest in added)]) + "\n"


def compiled(lines: Sequence[str], previous: str, python: str = OLDEST_PYTHON) -> str:
    """Resolves requirements within constraints.txt and returns the lock.

    Args:
        lines: Requirements.
        previous: The existing lock, whose versions are kept where they fit.
        python: The oldest version of Python that the lock is for.
    """
    with tempfile.TemporaryDirectory(prefix="podrace-lock-") as folder:
        wanted, found = Path(folder, "wanted.in"), Path(folder, "found.txt")
        wanted.write_text("\n".join(lines) + "\n")
        found.write_text(previous)
        options = ("--universal", "--python-version", python, "--generate-hashes", "--no-header")
        limits = ("--no-annotate", "--constraint", str(REPOSITORY / "constraints.txt"))
        uv = str(Path(sys.executable).with_name("uv"))
        command = [uv, "pip", "compile", "--quiet", *options, *limits, str(wanted), "--output-file", str(found)]
        subprocess.run(command, check=True)
        return found.read_text()


def previous(*names: str) -> str:
    """Returns the packages of existing locks; nothing for those that do not exist."""
    paths = [LOCKS / f"{name}.txt" for name in names]
    return "".join("".join(blocks(path.read_text())) for path in paths if path.exists())


def write(name: str, text: str, extras: Sequence[str] = ()) -> None:
    """Writes a lock with its header."""
    heading = f"{EXTRAS}{' '.join(sorted(extras))}\n" if extras else ""
    (LOCKS / f"{name}.txt").write_text(f"{HEADER}{heading}{text}")
    print(f"{name:16} {len(blocks(text)):4} packages")


def main() -> None:
    """Writes all locks."""
    pyproject = REPOSITORY / "pyproject.toml"
    version = re.search(r"^torch==[\w.]+$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    if version is None:
        raise SystemExit("error: constraints.txt has no version of torch")
    torch, libraries, others = split_torch(compiled([version[0]], previous(TORCH_LIBRARIES, "development")))
    write(TORCH, with_wheels(torch, TORCH_WHEELS.read_text()))
    write(TORCH_LIBRARIES, "".join(libraries))
    for name, extras in SETS.items():
        lines = [line for line in requirements(pyproject, extras) if normalized(line) != TORCH]
        shared = others if "agentpod" in extras else []
        besides = () if name == "development" else BESIDES
        # CuPy and PyTorch share a library; both locks must name one version of it.
        python = DEVELOPMENT_PYTHON if name == "development" else OLDEST_PYTHON
        write(name, compiled([*besides, *lines, *shared], previous(name, TORCH_LIBRARIES), python), extras)
    write(BUILD, compiled(tomllib.loads(pyproject.read_text())["build-system"]["requires"], previous(BUILD)))
    write(TOOLS, compiled(optional(pyproject, [TOOLS]), previous(TOOLS)))


if __name__ == "__main__":
    main()
