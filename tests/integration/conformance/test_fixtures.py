"""What the broken services break is a requirement of the contracts, in their words."""

import subprocess
import sys
from pathlib import Path

import foreign_evaluators
import foreign_plugins
import foreign_pod_requests
import foreign_pods
import foreign_simulators
import foreign_worker_policies
import foreign_workers
import pytest

from podrace.conformance.examine import CONTRACTS, judge_of

PROTOS = Path(__file__).parents[3] / "protos"
MODULES = (
    *(foreign_simulators, foreign_plugins, foreign_evaluators),
    *(foreign_workers, foreign_worker_policies, foreign_pods, foreign_pod_requests),
)
BROKEN = [broken for module in MODULES for broken in module.BROKEN]


def contract_text() -> str:
    """All comments of the contracts as one line."""
    lines = [line.strip() for path in sorted(PROTOS.rglob("*.proto")) for line in path.read_text().splitlines()]
    return " ".join(" ".join(line.removeprefix("//") for line in lines if line.startswith("//")).split())


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_every_violated_service_breaks_a_requirement_in_the_words_of_a_contract(broken: type) -> None:
    assert broken.breaks in contract_text()


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_requirement_that_is_examined_is_in_the_words_of_a_contract(contract: str) -> None:
    text = contract_text()
    assert [
        requirement.name for requirement in judge_of(contract).requirements.values() if requirement.words not in text
    ] == []


def test_the_examination_imports_neither_torch_nor_numpy_nor_click() -> None:
    code = "import sys, podrace.conformance.sessions; print({'torch', 'numpy', 'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_there_are_more_than_ten_violated_services_of_every_kind_together() -> None:
    assert len({broken.__name__ for broken in BROKEN}) == len(BROKEN) > 50
