"""Example programs in other languages, built from the contracts alone, on live services."""

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import contract_packages
import pytest

from podrace.conformance.findings import RequirementState, line
from podrace.conformance.sessions import Examination, examine

REPOSITORY = Path(__file__).parents[2]
COMPILED_WITH = ("g++", "make", "pkg-config", "protoc", "grpc_cpp_plugin")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="pr") as name:
        yield Path(name)


def run(*command: str, cwd: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False)


def test_a_program_in_javascript_trains_verifies_the_champion_and_acts_to_475(folder: Path) -> None:
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("Node.js is not installed")
    package = contract_packages.package(contract_packages.build(folder / "built"), ".tgz")
    program = folder / "program"
    program.mkdir()
    shutil.copy(REPOSITORY / "examples/javascript/champion.js", program)
    install = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", str(package))
    if (done := run(*install, cwd=program, seconds=300)).returncode:
        pytest.skip(f"gRPC for Node.js cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    (folder / "mesh").mkdir()
    with contract_packages.services(folder / "mesh") as orchestrator:
        done = run("node", "champion.js", orchestrator, cwd=program, seconds=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert re.search(r"^verified 2 parts and \d+ test vectors of cartpole-\w{6}-a\d+$", done.stdout, re.MULTILINE)
    (mean,) = re.findall(r"^mean return of 10 episodes: ([\d.]+)$", done.stdout, re.MULTILINE)
    assert float(mean) >= 475.0


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs in C++; the stubs are compiled once for all of them."""
    folder = tmp_path_factory.mktemp("cpp")
    if missing := [name for name in COMPILED_WITH if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}; examples/cpp/Makefile names the packages")
    if run("pkg-config", "--exists", "grpc++", "protobuf", cwd=folder, seconds=30).returncode:
        pytest.skip("libgrpc++-dev or libprotobuf-dev is not installed")
    arguments = (f"PROTOS={REPOSITORY}/protos", f"OUT={folder}")
    done = run("make", "-j2", "-C", str(REPOSITORY / "examples/cpp"), *arguments, cwd=folder, seconds=800)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(("program", "contract"), [("simulator", "simulator"), ("generator", "evolution")])
def test_a_service_in_cpp_keeps_its_contract(cpp: Path, program: str, contract: str) -> None:
    service = subprocess.Popen([cpp / program, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout is not None
        address = service.stdout.readline().split()[-1]
        report = asyncio.run(examine(Examination(contract, address, id="point")))
    finally:
        service.kill()
        service.wait(30)
    assert report.conforms, [line(one) for one in report.findings if one.grade == RequirementState.VIOLATED]


def test_a_client_in_cpp_trains_and_prints_the_best_candidates(cpp: Path, folder: Path) -> None:
    with contract_packages.services(folder) as orchestrator:
        done = run(str(cpp / "client"), orchestrator, cwd=folder, seconds=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "tournament_created" in done.stdout
    assert "TOURNAMENT_STATE_COMPLETED: " in done.stdout
    assert re.search(r"^1\. \S+-a\d+: [\d.]+ ± [\d.]+$", done.stdout, re.MULTILINE)


def test_a_program_in_cpp_acts_with_a_served_policy(cpp: Path, folder: Path) -> None:
    podrace = (sys.executable, "-m", "podrace.cli")
    small = ("--set", "objective.target_return=200", "--set", "pool.maximum_pods=1", "--home", f"{folder}/home")
    done = run(*podrace, "train", "examples/cartpole.toml", *small, "--json", cwd=REPOSITORY, seconds=300)
    assert done.returncode == 0, done.stderr
    address = f"unix:{folder}/policy.sock"
    options = ("--listen", address, "--rest", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--home", f"{folder}/home")
    server = subprocess.Popen(
        [*podrace, "serve", "latest", *options, "--json"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline())["grpc"] == address
        done = run(str(cpp / "policy_client"), address, "5", cwd=folder, seconds=120)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
    assert done.returncode == 0, done.stderr
    (mean,) = re.findall(r"^mean return of 5 episodes: ([\d.]+)$", done.stdout, re.MULTILINE)
    assert float(mean) >= 150.0
