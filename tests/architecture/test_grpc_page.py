"""docs/grpc.md lists every service and method of the contracts, with the deadline that the contract states."""

import re
from pathlib import Path

import pytest

from podrace.agentpod.v1 import agentpod_pb2
from podrace.checkpoint.v1 import delivery_pb2, store_pb2
from podrace.discovery.v1 import discovery_pb2
from podrace.error.v1 import error_reason_pb2
from podrace.evolution.v1 import evolution_pb2
from podrace.inference.v2 import open_inference_pb2
from podrace.leaderboard.v1 import leaderboard_pb2
from podrace.orchestrator.v1 import orchestrator_pb2
from podrace.policy.v1 import policy_service_pb2
from podrace.simulator.v1 import simulator_pb2
from podrace.tensor.v1 import tensor_pb2

REPOSITORY = Path(__file__).parents[2]
FILES = (
    orchestrator_pb2,
    discovery_pb2,
    leaderboard_pb2,
    store_pb2,
    delivery_pb2,
    policy_service_pb2,
    open_inference_pb2,
    agentpod_pb2,
    evolution_pb2,
    simulator_pb2,
    tensor_pb2,
)
SERVICES = [service for file in FILES for service in file.DESCRIPTOR.services_by_name.values()]
PAGE = (REPOSITORY / "docs/grpc.md").read_text()


def rows_of(service: str) -> dict[str, list[str]]:
    """The cells of each method's row in a service's section, by the method's name."""
    section = re.search(rf"^### {service}\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert section is not None, f"docs/grpc.md has no section {service}"
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", section[1], re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def comment_of(service: str, method: str) -> str:
    """A method's comment in the contract, on one line."""
    paths = [REPOSITORY / "protos" / file.DESCRIPTOR.name for file in FILES]
    text = next(text for path in paths if f"service {service} " in (text := path.read_text()))
    comment = re.search(rf"((?:  //[^\n]*\n)+)  rpc {method}\(", text)
    assert comment is not None
    return " ".join(comment[1].replace("//", " ").split())


def deadline_of(comment: str) -> str:
    """The first deadline in a method's comment: a number of seconds, another text, or `none`."""
    stated = re.search(r"\bDeadline.*?([\d,]+ s\b|`wait_duration`)", comment)
    return stated[1] if stated else "none"


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_the_page_lists_the_methods_of_a_service_with_their_deadlines(service):
    rows = rows_of(service.name)
    assert list(rows) == [method.name for method in service.methods]
    for method, (_, _, _, deadline, _) in rows.items():
        assert deadline_of(comment_of(service.name, method)) in deadline, f"{service.name}.{method}: {deadline}"


def test_the_page_names_the_file_of_each_service():
    rows = re.findall(
        r"^\| \[(\w+Service)\]\(#\w+\) \|.*\| (?:\[[\w.]+\]\(../protos/([\w/.]+)\)|(the same)) \|$", PAGE, re.MULTILINE
    )
    files: dict[str, str] = {}
    for service, file, _ in rows:
        files[service] = file or list(files.values())[-1]
    assert files == {service.name: service.file.name for service in SERVICES}


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_the_contract_states_who_calls_each_method(service):
    for method in service.methods:
        assert "Called by" in comment_of(service.name, method.name), method.full_name


def test_the_page_lists_the_reasons_of_errors():
    names = [name for name in error_reason_pb2.ErrorReason.keys() if not name.endswith("_UNSPECIFIED")]  # noqa: SIM118
    assert re.findall(r"^\| `(ERROR_REASON_\w+)` \|", PAGE, re.MULTILINE) == names
