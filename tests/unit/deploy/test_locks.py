"""The locks of deploy/locks: they are for what the images and `make install` ask for, and everything has a hash."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[3]
DOCKERFILE = (REPOSITORY / "deploy/Dockerfile").read_text()
MAKEFILE = (REPOSITORY / "Makefile").read_text()


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"deploy/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


requirements = loaded("requirements")
locks = loaded("locks")
NAMES = sorted(path.stem for path in locks.LOCKS.glob("*.txt"))
LOCK = "# Extras: minio kubernetes\nminio==7.2.20 \\\n    --hash=sha256:00\n"
TORCH = "# Made\ntorch==2.13.0 \\\n    --hash=sha256:aa\n"
CUDA = "nvidia-cublas==13.1.1.3 ; sys_platform == 'linux' \\\n    --hash=sha256:bb\n"


def text(name: str) -> str:
    return (locks.LOCKS / f"{name}.txt").read_text()


def pins(lock: str) -> dict[str, str]:
    return dict(locks.pin(block).split("==") for block in locks.blocks(lock))


def test_there_is_a_lock_for_every_set_and_no_other():
    assert set(NAMES) == {*locks.SETS, "torch", "torch-libraries", "build", "tools"}


@pytest.mark.parametrize("name", NAMES)
def test_every_package_of_a_lock_has_hashes_and_no_address(name):
    found = locks.blocks(text(name))
    assert found
    for block in found:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", block), block.partition("\n")[0]
    assert "://" not in text(name), "the index is that of the machine"


@pytest.mark.parametrize("name", locks.SETS)
def test_a_lock_has_what_the_project_requires_now(name):
    extras = locks.SETS[name]
    assert requirements.extras_of(text(name)) == set(extras)
    found = pins(text(name))
    for line in requirements.requirements(REPOSITORY / "pyproject.toml", extras):
        wanted = Requirement(line)
        if wanted.name != "torch" and (wanted.marker is None or wanted.marker.evaluate({"python_version": "3.11"})):
            version = found.get(canonicalize_name(wanted.name))
            assert version, f"{line}: run `make lock`"
            assert wanted.specifier.contains(version), f"{line}: run `make lock`"


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_has_the_versions_of_the_constraints(name):
    constraints = {
        canonicalize_name(key): value for key, value in pins((REPOSITORY / "constraints.txt").read_text()).items()
    }
    others = {key: value for key, value in pins(text(name)).items() if constraints.get(key, value) != value}
    assert not others, "run `make lock`"


def test_images_and_the_makefile_ask_for_the_extras_of_the_locks():
    arguments = dict(re.findall(r'^ARG (\w*EXTRAS)="([^"]*)"$', DOCKERFILE, re.MULTILINE))
    assert set(arguments["LEADERBOARD_EXTRAS"].split()) == set(locks.SETS["leaderboard"])
    assert set(arguments["ORCHESTRATOR_EXTRAS"].split()) == set(locks.SETS["orchestrator"])
    assert set(arguments["SERVING_EXTRAS"].split()) == set(locks.SETS["serving"])
    assert set(arguments["EXTRAS"].split()) == set(locks.SETS["agentpod"])
    for cuda in ("cuda12", "cuda13"):
        assert {*arguments["GPU_EXTRAS"].split(), cuda} == set(locks.SETS[cuda])
    (extras,) = re.findall(r"^EXTRAS := (.*)$", MAKEFILE, re.MULTILINE)
    assert set(extras.split(",")) == set(locks.SETS["development"])


def test_packages_of_an_image_are_locked_except_pytorch_of_cuda_12():
    installs = re.findall(r"pip install --quiet (.*?)(?: \\)?$", DOCKERFILE, re.MULTILINE)
    free = [each for each in installs if "--requirement" not in each and "--no-build-isolation" not in each]
    assert [each for each in free if "--dry-run" not in each] == [
        '--constraint constraints.txt --extra-index-url "${CUDA12_INDEX}"'
    ]


def test_installing_for_development_requires_hashes_and_builds_with_the_locked_tools():
    _, _, locked = MAKEFILE.partition("ifeq ($(LOCKED),no)")[2].partition("\nelse\n")
    installs = [
        line for line in locked.partition("endif")[0].splitlines() if "pip install" in line and "--dry-run" not in line
    ]
    assert len(installs) == 3
    assert all("--require-hashes" in line or "--no-build-isolation" in line for line in installs)


def test_the_ignored_files_of_a_build_leave_what_the_image_copies():
    allowed = re.findall(r"^!(.*)$", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {source for line in lines for source in line.split()}
    assert copied <= set(allowed)


# --- which lock is printed --------------------------------------------------------------------------------------


def test_a_lock_is_for_its_own_extras_in_any_order():
    assert requirements.locked("leaderboard", ["kubernetes", "minio"], LOCK) == LOCK
    with pytest.raises(SystemExit, match=r"is for the extras kubernetes minio, not for minio pb2; .* LOCKED=no"):
        requirements.locked("leaderboard", ["minio", "pb2"], LOCK)


def test_pytorch_of_another_version_is_refused_and_none_is_none():
    assert requirements.torch("torch==2.13.0", TORCH) == TORCH
    assert requirements.torch("", TORCH) == ""
    for other in ("torch==2.13.0+cu126", "torch==2.13", "torch"):
        with pytest.raises(SystemExit, match="is not for torch"):
            requirements.torch(other, TORCH)


def test_only_a_build_for_cuda_gets_the_libraries_of_cuda():
    for_processors = ["filelock", "sympy>=1.13.3", "typing-extensions>=4.10.0"]
    assert requirements.torch_libraries(for_processors, CUDA) == ""
    cuda = 'nvidia_cublas==13.1.1.3; platform_system == "Linux"'
    assert requirements.torch_libraries([*for_processors, cuda], CUDA) == CUDA


def test_without_a_lock_requirements_are_limited_by_the_constraints(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["requirements.py", "--locked", "no", "leaderboard", "minio"])
    requirements.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "--constraint constraints.txt"
    assert {"click>=8.2", "minio>=7.2.20,<8", *requirements.BESIDES} <= set(lines)


def test_an_unknown_extra_is_refused_by_name():
    with pytest.raises(SystemExit, match="unknown extra 'nonsense'"):
        requirements.requirements(REPOSITORY / "pyproject.toml", ["nonsense"])


# --- how locks are written --------------------------------------------------------------------------------------


def test_the_lock_of_pytorch_is_split_by_who_needs_it():
    torch, libraries, others = locks.split_torch(
        f"filelock==4.2 \\\n    --hash=sha256:cc\n{CUDA}torch==2.13.0 \\\n    --hash=sha256:aa\n"
    )
    assert torch.startswith("torch==2.13.0")
    assert libraries == [CUDA]
    assert others == ["filelock==4.2"]


def test_listed_wheels_of_the_version_are_accepted_and_others_are_not():
    wheels = "# comment\n11  torch-2.13.0+cpu-cp311.whl\n22  torch-2.13.01-cp311.whl\n33  torch-2.12.0+cpu-cp311.whl\n"
    found = locks.with_wheels("torch==2.13.0 \\\n    --hash=sha256:aa\n", wheels)
    assert re.findall(r"sha256:(\w+)", found) == ["aa", "11"]
    assert found.count("\\\n") == 2


def test_every_listed_wheel_is_in_the_lock_of_pytorch():
    listed = re.findall(r"^([0-9a-f]{64})  torch-", locks.TORCH_WHEELS.read_text(), re.MULTILINE)
    assert listed
    assert all(f"--hash=sha256:{digest}" in text("torch") for digest in listed)
