"""The released contracts, installed by a user: in a fresh environment, without the sources of podrace."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import contract_packages
import pytest
from google.protobuf import descriptor_pb2

REPOSITORY = Path(__file__).parents[2]
INSTALL_SECONDS = 300

PYTHON_CLIENT = """
import sys, grpc
from podrace.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = discovery_pb2_grpc.DiscoveryServiceStub(channel)
    print(stub.GetServer(discovery_pb2.GetServerRequest(), timeout=10, wait_for_ready=True).version)
    try:
        request = orchestrator_pb2.GetTournamentRequest(tournament_id="none")
        orchestrator_pb2_grpc.OrchestratorServiceStub(channel).GetTournament(request, timeout=10)
    except grpc.RpcError as error:
        print(error.code().name)
print(discovery_pb2.__file__)
print(sorted({"torch", "numpy"} & set(sys.modules)))
"""
NODE_CLIENT = """
const { connect, call, errorDetails, version, descriptorSet } = require("podrace-contracts");
async function main() {
  const [, , address] = process.argv;
  const discovery = connect("podrace.discovery.v1.DiscoveryService", address);
  const server = await call(discovery, "GetServer", {}, { seconds: 20 });
  console.log(server.version, version, descriptorSet().length > 0);
  const orchestrator = connect("podrace.orchestrator.v1.OrchestratorService", address);
  try {
    await call(orchestrator, "GetTournament", { tournament_id: "none" });
  } catch (error) {
    const { reason, resource, metadata } = errorDetails(error);
    console.log(error.code, reason, resource.resource_type, resource.resource_name, metadata.method);
  }
}
main().catch((error) => { console.error(error); process.exit(1); });
"""
APPLICATION = "import podrace, podrace.cli.session; print(podrace.__version__)"


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="podrace-built-") as folder:
        yield contract_packages.build(Path(folder))


@pytest.fixture(scope="module")
def orchestrator() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="pr") as folder,
        contract_packages.services(Path(folder), "--set", "telemetry.log_level=warning") as address,
    ):
        yield address


class Environment:
    """A fresh virtual environment that sees neither the sources nor other packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_SECONDS)

    def python(self, *arguments: str) -> tuple[int, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(self.folder / "bin/python"), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=inherited, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
        return done.returncode, done.stdout + done.stderr

    def pip(self, *arguments: str) -> None:
        code, output = self.python("-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)
        if code and ("No matching distribution" in output or "connection" in output.lower()):
            pytest.skip(f"the requirements cannot be fetched: {output.strip().splitlines()[-1]}")
        assert code == 0, output


def application_wheel(folder: Path) -> Path:
    """Builds the application from a copy of its sources."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(REPOSITORY / name, source)
    shutil.copytree(REPOSITORY / "podrace", source / "podrace", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--quiet", "--no-isolation", "--wheel", "--outdir", str(folder), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return contract_packages.package(folder, ".whl")


def test_each_package_has_every_contract_and_its_changelog(built):
    protos = {path.relative_to(REPOSITORY / "protos").as_posix() for path in (REPOSITORY / "protos").rglob("*.proto")}
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(contract_packages.package(built, ".binpb").read_bytes())
    described = {file.name for file in descriptors.file}
    assert protos <= described
    assert described - protos == {name for name in described if name.startswith("google/protobuf/")}
    names = zipfile.ZipFile(contract_packages.package(built, ".whl")).namelist()
    assert {f"podrace_contracts/protos/{name}" for name in protos} <= set(names)
    assert {f"podrace_contracts/{name.removesuffix('.proto')}_pb2.py" for name in protos} <= set(names)
    listed = subprocess.run(
        ["tar", "--list", "--file", str(contract_packages.package(built, ".tgz"))], capture_output=True, text=True
    ).stdout.splitlines()
    assert {f"package/protos/{name}" for name in protos} | {"package/CHANGELOG.md", "package/LICENSE"} <= set(listed)


def test_an_npm_package_is_the_same_whenever_it_is_built(built, tmp_path):
    again = contract_packages.package(contract_packages.build(tmp_path), ".tgz")
    first = contract_packages.package(built, ".tgz")
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(first.read_bytes()).digest()


@pytest.mark.slow
@pytest.mark.parametrize("first", ["contracts", "application"])
def test_contracts_and_application_live_together_in_any_order_and_survive_each_other(
    built, orchestrator, tmp_path, first
):
    environment = Environment(tmp_path / "environment")
    contracts = contract_packages.package(built, ".whl")
    (tmp_path / "application").mkdir()
    application = application_wheel(tmp_path / "application")
    client = tmp_path / "client.py"
    client.write_text(PYTHON_CLIENT)

    def calls(folder: str) -> None:
        code, output = environment.python(str(client), orchestrator)
        assert code == 0, output
        version, status, file, heavy = output.splitlines()
        assert (version, status, heavy) == ("0.1.0", "NOT_FOUND", "[]")
        assert f"site-packages/{folder}/discovery/v1" in file

    # The generated modules need what the contracts require; the application brings its other requirements.
    wheels = {"contracts": [str(contracts)], "application": ["click", "structlog", "pyjwt", "rich", str(application)]}
    for name in (first, *(wheels.keys() - {first})):
        environment.pip("install", *(["--no-deps"] if name == "application" else []), *wheels[name])
        if name == "contracts" and first == "contracts":
            calls("podrace_contracts/podrace")
    calls("podrace")
    kept, removed = ("contracts", "podrace") if first == "application" else ("application", "podrace-contracts")
    environment.pip("uninstall", "--yes", removed)
    calls("podrace_contracts/podrace" if kept == "contracts" else "podrace")


@pytest.mark.slow
def test_contracts_in_a_target_folder_are_found_once_their_package_is_imported(built, orchestrator, tmp_path):
    environment = Environment(tmp_path / "environment")
    environment.pip("install", "--target", str(tmp_path / "target"), str(contract_packages.package(built, ".whl")))
    client = tmp_path / "client.py"
    path = f"import sys; sys.path.insert(0, {str(tmp_path / 'target')!r})"
    client.write_text(f"{path}\nimport podrace_contracts\nassert podrace_contracts.descriptor_set()\n{PYTHON_CLIENT}")
    code, output = environment.python(str(client), orchestrator)
    assert code == 0, output
    assert output.startswith("0.1.0\nNOT_FOUND\n")


@pytest.mark.slow
def test_the_npm_package_calls_a_service(built, orchestrator, tmp_path):
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    (tmp_path / "client.js").write_text(NODE_CLIENT)
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(
        [*install, str(contract_packages.package(built, ".tgz"))], cwd=tmp_path, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"gRPC for Node.js cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    done = subprocess.run(["node", "client.js", orchestrator], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "0.1.0 0.1.0 true",
        "5 ERROR_REASON_NOT_FOUND tournament none GetTournament",
    ]
