"""Prints what pip installs in an image: the lock of the image, or plain requirements.

    python requirements.py NAME [EXTRA...]              # locks/NAME.txt, which has hashes, if it is for these extras
    python requirements.py --locked no NAME [EXTRA...]  # the requirements of these extras, within constraints.txt
    python requirements.py torch [REQUIREMENT]          # PyTorch itself; nothing without a requirement
    python requirements.py torch-libraries              # the CUDA libraries of the installed PyTorch, if it uses any
    python requirements.py build                        # what builds the project itself

The project itself is not included, so an image's layer of dependencies is reused when only the source changes. PyTorch
has two separate locks, because its builds for processors, CUDA 12 and CUDA 13 have one version and need different
libraries. Only the standard library is needed.
"""

import argparse
import re
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).parent
LOCKS = FOLDER / "locks"
PYPROJECTS = (FOLDER / "pyproject.toml", FOLDER.parent / "pyproject.toml")
"""In an image, and in the repository."""
TORCH = "torch"
TORCH_LIBRARIES = "torch-libraries"
BUILD = "build"
BESIDES = ("dumb-init==1.2.5.post1",)
"""What every image has besides the dependencies of the project."""
EXTRAS = "# Extras: "
"""Start of the line in which a lock names its extras."""
NAME = re.compile(r"^[A-Za-z0-9][\w.-]*")


def requirements(pyproject: Path, extras: Sequence[str]) -> list[str]:
    """Returns the dependencies of the project, then those of the extras, in order."""
    return [*tomllib.loads(pyproject.read_text())["project"]["dependencies"], *optional(pyproject, extras)]


def optional(pyproject: Path, extras: Sequence[str]) -> list[str]:
    """Returns the dependencies of extras, in order."""
    found = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    unknown = [extra for extra in extras if extra not in found]
    if unknown:
        raise SystemExit(f"error: unknown extra {unknown[0]!r} in {pyproject} (extras: {', '.join(sorted(found))})")
    return [line for extra in extras for line in found[extra]]


def normalized(requirement: str) -> str:
    """Returns the name of a requirement as indexes write it; empty for a line that is none."""
    match = NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def names(lock: str) -> set[str]:
    """Returns the names of the packages of a lock."""
    return {name for line in lock.splitlines() if (name := normalized(line))}


def extras_of(lock: str) -> set[str]:
    """Returns the extras that a lock was made for."""
    lines = [line for line in lock.splitlines() if line.startswith(EXTRAS)]
    return set(lines[0].removeprefix(EXTRAS).split()) if lines else set()


def locked(name: str, extras: Sequence[str], lock: str) -> str:
    """Returns the lock if it is for these extras.

    Raises:
        SystemExit: It is for others.
    """
    if extras_of(lock) == set(extras):
        return lock
    raise SystemExit(
        f"error: locks/{name}.txt is for the extras {' '.join(sorted(extras_of(lock)))}, not for {' '.join(extras)};"
        " change deploy/locks.py and run `make lock`, or build without hashes: --build-arg LOCKED=no"
    )


def torch(requirement: str, lock: str) -> str:
    """Returns the lock of PyTorch if it is for this requirement; nothing for none.

    Raises:
        SystemExit: It is for another version.
    """
    if not requirement:
        return ""
    if f"\n{requirement} \\\n" in lock:
        return lock
    raise SystemExit(f"error: locks/torch.txt is not for {requirement}; to build without hashes: --build-arg LOCKED=no")


def torch_libraries(needed: Sequence[str], lock: str) -> str:
    """Returns the lock of the CUDA libraries if PyTorch needs any of them; otherwise nothing.

    Args:
        needed: What the installed PyTorch requires; its build for processors requires none of them.
        lock: The lock of the libraries.
    """
    return lock if names(lock) & {normalized(each) for each in needed} else ""


def main() -> None:
    """Parses the command line and prints requirements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--locked", choices=("yes", "no"), default="yes")
    parser.add_argument("name", help=f"a file of locks/, or {TORCH_LIBRARIES}")
    parser.add_argument("extras", nargs="*")
    options = parser.parse_args()
    lock = "" if options.locked == "no" else (LOCKS / f"{options.name}.txt").read_text()
    print(_text(options.name, options.extras, lock), end="")


def _text(name: str, extras: Sequence[str], lock: str) -> str:
    """Returns what to print; without a lock, plain requirements."""
    if name == TORCH_LIBRARIES:
        return torch_libraries(metadata.requires(TORCH) or [], lock)
    if name == TORCH and (lock or not extras):
        return torch(" ".join(extras), lock)
    if lock:
        return locked(name, extras, lock)
    pyproject = next(path for path in PYPROJECTS if path.exists())
    if name == BUILD:
        lines = tomllib.loads(pyproject.read_text())["build-system"]["requires"]
    else:
        lines = extras if name == TORCH else [*BESIDES, *requirements(pyproject, extras)]
    return "\n".join(["--constraint constraints.txt", *lines]) + "\n"


if __name__ == "__main__":
    main()
