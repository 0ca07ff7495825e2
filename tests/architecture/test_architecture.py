"""Rules of the project as a whole: who imports what, defaults stated in one place, and texts without machine names."""

import dataclasses
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from podrace.agentpod.v1 import agentpod_pb2
from podrace.config import read_toml
from podrace.evolution.v1 import evolution_pb2
from podrace.leaderboard.v1 import leaderboard_pb2
from podrace.orchestrator.v1 import orchestrator_pb2
from podrace.simulator.v1 import simulator_pb2
from podrace.specification import catalog, resolve
from podrace.tensor.v1 import tensor_pb2
from podrace.tournament.v1 import tournament_pb2

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("podrace", "orchestrator", "leaderboard", "agentpod", "simulators")
SOURCES = sorted(
    path
    for package in PACKAGES
    for path in (REPOSITORY / package).rglob("*.py")
    if "_pb2" not in path.name and path.is_file()
)
TEXTS = [
    path
    for pattern in (
        "*.md",
        "*.toml",
        "*.yml",
        "Makefile",
        "deploy/**/*.md",
        "docs/**/*.md",
        "docs/**/*.py",
        "protos/**/*.proto",
        "examples/**/*",
        "benchmarks/**/*.py",
        "tests/**/*.py",
    )
    for path in sorted(REPOSITORY.glob(pattern))
    if path.is_file() and "__pycache__" not in path.parts
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_imported_from_this_repository(package):
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    assert Path(found.origin).is_relative_to(REPOSITORY), f"{package} comes from {found.origin}"


@pytest.mark.parametrize("module", ["orchestrator.__main__", "leaderboard.__main__", "podrace.cli"])
def test_small_services_start_without_torch_and_numpy(module):
    script = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'pandas', 'gymnasium'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]"


def test_the_catalog_lists_the_algorithms_there_are():
    from agentpod.algorithms import ALGORITHMS

    assert set(catalog.ALGORITHMS) == set(ALGORITHMS)


@pytest.mark.parametrize("name", catalog.ALGORITHMS)
def test_the_catalog_says_of_an_algorithm_what_it_says_of_itself(name):
    from agentpod.algorithms import ALGORITHMS

    settings = ALGORITHMS[name].settings_type
    assert settings.algorithm == name
    assert set(catalog.ALGORITHMS[name].action_kinds) == set(ALGORITHMS[name].action_kinds)
    declared = {key: entry.default for key, entry in catalog.ALGORITHMS[name].hyperparameters.items()}
    assert declared == dataclasses.asdict(settings())
    assert {key: type(value) for key, value in declared.items()} == {
        field.name: type(field.default) for field in dataclasses.fields(settings)
    }


def test_the_catalog_lists_the_strategies_there_are():
    from leaderboard.evolution import STRATEGIES

    assert set(catalog.STRATEGIES) == set(STRATEGIES)


def test_the_catalog_lists_the_simulators_there_are():
    from simulators import SIMULATORS, make

    assert set(SIMULATORS) <= set(catalog.SIMULATORS)
    for name in SIMULATORS:
        assert make(name, 1).action_space.kind == catalog.SIMULATORS[name].action_kind


def test_searched_ranges_lie_within_what_is_allowed():
    for algorithm in catalog.ALGORITHMS.values():
        for name, entry in algorithm.hyperparameters.items():
            for search in filter(None, (entry.search, entry.wide)):
                low, high, zero_probability = search
                extra = {float(entry.scale == "reverse_log")} if zero_probability else set()
                assert entry.low <= low <= high <= entry.high, name
                assert low <= entry.default <= high or entry.default in extra, name
            if entry.search and entry.wide:
                assert entry.wide.low <= entry.search.low <= entry.search.high <= entry.wide.high, name


def test_the_protos_state_the_defaults_that_are_filled_in():
    text = (REPOSITORY / "protos/podrace/tournament/v1/tournament.proto").read_text()
    sections = {"pool": "PoolSpec", "pod": "PodSpec", "assignment": "AssignmentSpec", "evaluation": "EvaluationSpec"}
    sections |= {"evolution": "EvolutionSpec", "champion": "ChampionSpec"}
    for section, message in sections.items():
        body = re.search(rf"message {message} {{(.*?)\n}}", text, re.DOTALL)
        assert body is not None
        for name, default in resolve.DEFAULTS[section].items():
            comment = re.search(rf"((?:  //[^\n]*\n)+)  optional \w+ {name} =", body[1])
            assert comment is not None, f"{section}.{name}"
            words = " ".join(comment[1].replace("//", " ").split())
            words_of = {
                "True": "true",
                "False": "false",
                str(1 << 30): "1 GiB",
                str(16 << 30): "16 GiB",
                "200000": "200,000",
            }
            stated = words_of.get(str(default), f"{default:g}" if isinstance(default, float) else default)
            assert f"Default {stated}" in words or f"Default `{stated}`" in words, f"{section}.{name}: {words}"


def test_every_rpc_states_its_deadline_and_every_mutation_its_request_id():
    for file in (orchestrator_pb2, leaderboard_pb2, agentpod_pb2, evolution_pb2, simulator_pb2, tensor_pb2):
        source = (REPOSITORY / "protos" / file.DESCRIPTOR.name).read_text()
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                comment = re.search(rf"((?:  //[^\n]*\n)+)  rpc {method.name}\(", source)
                assert comment is not None, method.full_name
                assert "eadline" in comment[1], f"{method.full_name} states no deadline"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_a_valid_specification(path):
    resolved = resolve.resolve(resolve.parse(read_toml(path), source=path.name))
    assert isinstance(resolved, tournament_pb2.TournamentSpec)


def test_nothing_names_a_machine_or_a_registry():
    forbidden = re.compile(r"/(?:root|work|home/\w+)/|pypi\.org|files\.pythonhosted|registry\.npmjs|pkg\.dev")
    own = Path(__file__)
    found = [
        f"{path.relative_to(REPOSITORY)}: {line.strip()}"
        for path in [*SOURCES, *TEXTS]
        if path != own
        for line in path.read_bytes().decode("utf-8", "ignore").splitlines()
        if forbidden.search(line)
    ]
    assert not found
