"""User code never runs in the process that has the token, the lease and the access to the store.

Before, a fused pod imported a `python:` environment into the process of its leader.
"""

from dataclasses import replace

import pytest
from google.protobuf.struct_pb2 import Struct

from podrace.errors import InvalidArgument
from podrace.limits.config import EVERYTHING, Allowed
from podrace.limits.specification import check_options, check_specification
from podrace.limits.user_code import imports_user_code, names_user_code, runs_apart
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

ROBOTS = Allowed(modules=("robots",))


def spec(id: str = "CartPole-v1", **sections: object) -> TournamentSpec:
    values = {"environment": {"id": id}, "algorithms": {"ppo": {}}, "objective": {"environment_steps": 10}}
    return resolve(parse({**values, **sections}, source="test"))


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("python:robots:make", True),
        ("robots:Walker-v0", True),
        ("gym:robots:Walker-v0", True),
        ("CartPole-v1", False),
        ("gym:CartPole-v1", False),
        ("cartpole", False),
        ("stocks", False),
        ("mujoco:Ant-v5", False),
        ("warp:ant", False),
        ("isaacgym:Ant", False),
        ("grpc://127.0.0.1:50070", False),
    ],
)
def test_user_code_is_what_an_environment_id_makes_a_pod_import(id: str, expected: bool) -> None:
    assert names_user_code(spec(id)) is expected


def test_an_evaluation_function_is_user_code_and_an_evaluator_elsewhere_is_not() -> None:
    assert names_user_code(spec(evaluation={"evaluator": "python:robots:score"}))
    assert not names_user_code(spec(evaluation={"evaluator": "grpc://127.0.0.1:50070"}))


def test_a_specification_is_inspected_apart_if_any_of_its_plugins_is_a_function() -> None:
    generated = spec(evolution={"generator": "python:robots:propose"})
    assert imports_user_code(generated)
    assert not names_user_code(generated)
    assert imports_user_code(spec("python:robots:make"))
    assert not imports_user_code(spec(evolution={"generator": "grpc://127.0.0.1:50070"}))


def declared(name: str) -> TournamentSpec:
    declaration = {
        "action_kinds": ["discrete"],
        "hyperparameters": [{"name": "dataset", "type": "text", "default_value": "prices:steps.safetensors"}],
    }
    return spec(algorithms={name: {"declaration": declaration}})


def test_a_service_refuses_an_algorithm_of_a_module_because_it_would_run_with_the_token_of_a_pod() -> None:
    named = declared("python:robots:Walker")
    with pytest.raises(InvalidArgument, match=r"algorithms\.python:robots:Walker: an algorithm runs in the process of"):
        check_specification(named, Allowed(modules=("robots",), data_roots={"prices": "/srv/prices"}))
    check_specification(named, EVERYTHING)
    assert imports_user_code(named)


def test_an_algorithm_that_the_operator_has_installed_is_trusted() -> None:
    check_specification(declared("walker"), Allowed(data_roots={"prices": "/srv/prices"}))
    assert not imports_user_code(declared("walker"))


@pytest.mark.parametrize("text", ["/etc/passwd", "../secrets", "prices:../../etc/passwd"])
def test_a_text_of_an_algorithm_is_no_way_to_files_outside_of_the_roots(text: str) -> None:
    named = declared("walker")
    named.algorithms["walker"].hyperparameters["dataset"].value.string_value = text
    with pytest.raises(InvalidArgument, match=r"algorithms\.walker\.hyperparameters\.dataset = "):
        check_specification(named, Allowed(data_roots={"prices": "/srv/prices"}))


def test_the_mesh_of_one_user_runs_the_code_of_that_user_in_one_process() -> None:
    assert runs_apart(spec("python:robots:make"), ROBOTS)
    assert not runs_apart(spec("python:robots:make"), EVERYTHING)


WRAPPED = {"wrappers": [{"name": "frame_stack"}, {"name": "python:robots:Noisy"}]}
SHAPED = {"wrappers": [{"name": "shape_rewards", "function": "python:robots:progress"}]}


@pytest.mark.parametrize("options", [WRAPPED, SHAPED])
@pytest.mark.parametrize("id", ["CartPole-v1", "cartpole", "stocks", "grpc://127.0.0.1:50070", "mujoco:Ant-v5"])
def test_a_wrapper_is_user_code_and_needs_permission_in_every_environment(id: str, options: dict[str, object]) -> None:
    places: list[dict[str, object]] = [
        {"environment": {"id": id, "options": options}},
        {"environment": {"id": id}, "evaluation": {"options": options}},
        {"environment": {"id": id}, "reports": {"test": {"options": options}}},
    ]
    for sections in places:
        named = spec(**sections)
        assert names_user_code(named)
        services = Allowed(services=("127.0.0.1:50070",))
        with pytest.raises(InvalidArgument, match=r"options\.wrappers\..* = 'python:robots:.*allow\.modules"):
            check_specification(named, services)
        check_specification(named, replace(services, modules=("robots",)))
        assert runs_apart(named, ROBOTS)
    assert not names_user_code(spec(environment={"id": id, "options": {"wrappers": [{"name": "frame_stack"}]}}))


def test_a_searched_option_of_a_wrapper_is_no_way_to_other_code() -> None:
    search = {"options.wrappers.0.function": {"choices": ["python:robots:progress", "python:subprocess:run"]}}
    named = spec(environment={"id": "cartpole", "options": SHAPED, "search": search})
    with pytest.raises(InvalidArgument, match="'python:subprocess:run': module 'subprocess' is not allowed"):
        check_specification(named, ROBOTS)
    assert names_user_code(named)


def test_an_evaluation_names_no_code_that_its_tournament_does_not_name() -> None:
    requested = Struct()
    requested.update(WRAPPED)
    check_options(spec(environment={"id": "cartpole", "options": WRAPPED}), requested, ROBOTS, "options")
    with pytest.raises(InvalidArgument, match=r"options\.wrappers: 'python:robots:Noisy' is not named by the specif"):
        check_options(spec("cartpole"), requested, ROBOTS, "options")
    check_options(spec("cartpole"), requested, EVERYTHING, "options")


def test_an_option_of_a_wrapper_is_no_way_to_files_outside_of_the_roots() -> None:
    options = {"wrappers": [{"name": "python:robots:Noisy", "file": "/etc/passwd"}]}
    with pytest.raises(InvalidArgument, match=r"wrappers\.0\.file = '/etc/passwd': files are named as ROOT:PATH"):
        check_specification(spec(environment={"id": "cartpole", "options": options}), ROBOTS)
