"""User-defined algorithms in pods are trained, resumed and scored as built-in ones are; a mistake fails one agent."""

import os
import sys
from pathlib import Path

import pytest
from scripted import only_completion, run, store_of

from agentpod.learner.policy_loader import load_published_policy
from agentpod.process.declaring import declaration_of
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store.publish import fetch_latest
from podrace.errors import InvalidArgument
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.plugins.declarations import declare
from podrace.specification.declared_algorithms import declaration_message, entry_of
from podrace.specification.files import to_values
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import AlgorithmSpec, TournamentSpec

EXAMPLES = Path(__file__).parents[3] / "examples" / "algorithms"
sys.path.append(str(EXAMPLES))
REINFORCE, TQC, C51 = "python:reinforce:Reinforce", "python:tqc:TQC", "python:c51:C51"


@pytest.fixture
def make_user_spec(make_spec):
    def make(name: str, environment: str = "CartPole-v1", *, declared_as: str = "", **hyperparameters):
        declaration = to_values(declaration_of(declared_as or name))
        algorithm = {"declaration": declaration, "hyperparameters": hyperparameters}
        return make_spec(environment, algorithms={name: algorithm}, steps=512)

    return make


@pytest.mark.parametrize(
    ("name", "environment", "hyperparameters"),
    [
        (REINFORCE, "CartPole-v1", {"horizon": 16, "hidden_sizes": [8]}),
        (C51, "CartPole-v1", {"hidden_sizes": [8], "warmup_steps": 64, "updates_per_step": 0.1, "atoms": 5}),
        (TQC, "Pendulum-v1", {"hidden_sizes": [8], "warmup_steps": 64, "updates_per_step": 0.1, "horizon": 8}),
    ],
)
async def test_an_agent_is_trained_published_and_resumed(
    mesh, make_user_spec, make_assignment, name, environment, hyperparameters
):
    spec = make_user_spec(name, environment, **hyperparameters)
    await run(mesh, make_assignment(spec))
    assert only_completion(mesh).outcome == pb.OUTCOME_FINISHED, only_completion(mesh).message
    manifest = mesh.leaderboard.manifests[-1]
    assert manifest.algorithm == name
    published = fetch_latest(store_of(mesh), "t-a0")
    policy = load_published_policy(store_of(mesh), published.manifest_digest)
    assert list(policy.network.hidden_sizes) == [8]
    start = Checkpoint(agent_id="t-a0", manifest_digest=published.manifest_digest)
    await run(mesh, make_assignment(spec, number=1, starting_checkpoint=start))
    assert mesh.orchestrator.completed[-1].outcome == pb.OUTCOME_FINISHED, mesh.orchestrator.completed[-1].message


def place(text: str, after: str) -> str:
    """Returns file and line of the first line that contains a text, after another one: `faulty_algorithms.py:24`."""
    lines = (Path(__file__).parent / "faulty_algorithms.py").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if after in line)
    return f"faulty_algorithms.py:{begin + 1 + next(n for n, line in enumerate(lines[begin:]) if text in line)}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Raising", f"Raising.loss ({place('1 / 0', 'class Raising')}) raised ZeroDivisionError: division by zero"),
        (
            "Vector",
            f"Vector.loss ({place('def loss', 'class Vector')}) returned a tensor of shape [128, 2], expected a",
        ),
        ("Infinite", f"Infinite.loss, {place('def loss', 'class Infinite')}: training_loss is not finite"),
        ("NoNetworks", f"NoNetworks.modules ({place('Linear', 'class NoNetworks')}) raised RuntimeError"),
        (
            "Metrics",
            f"Metrics.loss ({place('def loss', 'class Metrics')}) returned a dict besides the loss, expected a",
        ),
        (
            "Flattened",
            f"Flattened.prepare ({place('def prepare', 'class Flattened')}) returned the field 'episode' of shape [8]",
        ),
        ("OwnUpdate", f"OwnUpdate.update ({place('self.metrics', 'class OwnUpdate')}) raised AttributeError: 'OwnUpd"),
        ("OwnState", f"OwnState.state_dict ({place('self.step', 'class OwnState')}) raised AttributeError: 'OwnState'"),
        (
            "Column",
            f"Column.loss ({place('def loss', 'class Column')}) returned errors of shape [16, 1], expected [16]",
        ),
        ("Exploring", f"Exploring.exploration ({place('1.0 /', 'class Exploring')}) raised ZeroDivisionError: float"),
        ("NoLoss", f"NoLoss, {place('class', 'class NoLoss')}: has no method loss"),
        ("Missing", "module 'faulty_algorithms' has no class 'Missing'"),
    ],
)
async def test_a_mistake_of_an_algorithm_fails_its_agent_with_class_and_line(
    mesh, make_user_spec, make_assignment, name, said
):
    declared_as = "Column" if name in ("Column", "Exploring") else "Raising"
    spec = make_user_spec(f"python:faulty_algorithms:{name}", declared_as=f"python:faulty_algorithms:{declared_as}")
    await run(mesh, make_assignment(spec))
    completion = only_completion(mesh)
    assert completion.outcome == pb.OUTCOME_AGENT_FAILED
    assert said in completion.message
    assert "\n" not in completion.message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("InPlace", f"({place('def forward', 'class InPlace')}) raised RuntimeError: one of the variables needed"),
        (
            "WithoutGradients",
            f"({place('no_grad', 'class WithoutGradients')}) returned outputs that cannot be differentiated",
        ),
    ],
)
async def test_a_network_that_cannot_be_differentiated_fails_its_agent(mesh, make_spec, make_assignment, name, said):
    hyperparameters = {"horizon": 16, "minibatch_size": 128, "network_class": f"python:faulty_algorithms:{name}"}
    spec = make_spec(algorithms={"ppo": {"hyperparameters": hyperparameters}})
    await run(mesh, make_assignment(spec))
    completion = only_completion(mesh)
    assert completion.outcome == pb.OUTCOME_AGENT_FAILED
    assert f"network_class: faulty_algorithms.{name}.forward {said}" in completion.message


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("unimportable_algorithms", "cannot be imported (ModuleNotFoundError: No module named 'a_package_that_is_mis"),
        ("not_there", "module 'not_there' cannot be imported"),
    ],
)
async def test_a_module_that_cannot_be_imported_fails_the_agent_and_not_the_specification(
    mesh, make_user_spec, make_assignment, module, said
):
    spec = make_user_spec(f"python:{module}:Any", declared_as="python:faulty_algorithms:Raising")
    await run(mesh, make_assignment(spec))
    assert only_completion(mesh).outcome == pb.OUTCOME_AGENT_FAILED
    assert said in only_completion(mesh).message


async def test_an_agent_with_a_network_that_the_specification_does_not_name_is_refused(
    mesh, make_spec, make_assignment
):
    assignment = make_assignment(make_spec())
    assignment.train.hyperparameters["network_class"] = "python:c51:ReturnDistribution"
    await run(mesh, assignment)
    assert "its specification does not name this network" in only_completion(mesh).message


async def test_an_agent_of_an_algorithm_that_the_specification_does_not_name_is_refused(
    mesh, make_spec, make_assignment
):
    assignment = make_assignment(make_spec())
    assignment.train.algorithm = "python:faulty_algorithms:Raising"
    await run(mesh, assignment)
    assert "unknown algorithm 'python:faulty_algorithms:Raising'; known: ppo" in only_completion(mesh).message


def environment_with(*folders: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def test_the_classes_are_examined_in_a_process_that_prints_what_they_declare() -> None:
    found = declare([REINFORCE, TQC, "nothing"], environment_with(EXAMPLES))
    assert found == {name: declaration_of(name) for name in (REINFORCE, TQC)}
    entry = entry_of(REINFORCE, AlgorithmSpec(declaration=found[REINFORCE]))
    assert entry is not None
    assert declaration_message(entry) == found[REINFORCE]


def test_every_unusable_class_is_one_violation_with_its_key() -> None:
    names = ["NoLoss", "NoAlgorithm", "OutOfRange"]
    with pytest.raises(InvalidArgument) as caught:
        declare([f"python:faulty_algorithms:{name}" for name in names], environment_with(Path(__file__).parent))
    found = {one.field: one.problem for one in caught.value.violations}
    assert found.keys() == {f"algorithms.python:faulty_algorithms:{name}" for name in names}
    problems = [found[f"algorithms.python:faulty_algorithms:{name}"] for name in names]
    assert f"NoLoss, {place('class', 'class NoLoss')}: has no method loss" in problems[0]
    assert f"{place('class', 'class NoAlgorithm')}: has no method update; derive it from" in problems[1]
    wanted = "hyperparameter weight = 2: the default is outside its own range 0 to 1 (faulty_algorithms.Outside, "
    assert f"{wanted}{place('weight', 'class Outside')})" in problems[2]


def test_a_class_that_cannot_be_examined_in_time_is_reported_in_one_line() -> None:
    with pytest.raises(InvalidArgument, match=r"algorithms\.python:a:B: its class was not imported within 0\.01 s"):
        declare(["python:a:B"], dict(os.environ), seconds=0.01)


def test_a_resolved_specification_needs_no_class() -> None:
    values = {"environment": {"id": "cartpole"}, "algorithms": {REINFORCE: {}}, "objective": {"target_return": 475.0}}
    spec: TournamentSpec = parse(values, source="test")
    spec.algorithms[REINFORCE].declaration.CopyFrom(declaration_of(REINFORCE))
    assert resolve(spec).algorithms[REINFORCE].hyperparameters["horizon"].value.number_value == 256
