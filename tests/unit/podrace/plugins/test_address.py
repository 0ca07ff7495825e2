"""Which addresses of plugins are valid, and the time limits of their answers."""

import pytest

from podrace.errors import InvalidArgument
from podrace.plugins.address import GrpcService, PythonFunction, parse
from podrace.specification import resolve as spec
from podrace.specification.plugin_settings import evolution_answer_seconds
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def resolve(**evolution: object) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 1000},
        "evolution": evolution,
    }
    return spec.resolve(spec.parse(values, source="test"))


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("python:mine:propose", PythonFunction("mine", "propose")),
        ("python:my.own_package:Judge2", PythonFunction("my.own_package", "Judge2")),
        ("grpc://localhost:50070", GrpcService("localhost:50070")),
        ("grpc://10.1.2.3:1", GrpcService("10.1.2.3:1")),
        ("grpc://[::1]:50070", GrpcService("[::1]:50070")),
        ("grpc://evolution.my-team.svc:65535", GrpcService("evolution.my-team.svc:65535")),
        ("grpc://unix:/run/mine.sock", GrpcService("unix:/run/mine.sock")),
    ],
)
def test_an_address_names_a_function_or_a_service(address: str, named: object) -> None:
    assert parse(address) == named


@pytest.mark.parametrize(
    "address",
    [
        "",
        "mine:propose",
        "python:mine",
        "python:mine:",
        "python::propose",
        "python:mine:propose:again",
        "python:my-own:propose",
        "python:.mine:propose",
        "python:mine:propose --set x=y",
        "python:mine:propose\n",
        "grpc://localhost",
        "grpc://localhost:",
        "grpc://:50070",
        "grpc://localhost:0",
        "grpc://localhost:65536",
        "grpc://a b:1",
        "grpc://unix:relative",
        "http://localhost:50070",
    ],
)
@pytest.mark.parametrize("part", ["generator", "updater"])
def test_any_other_address_is_refused_in_one_line_with_the_valid_forms(address: str, part: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        resolve(**{part: address})
    expected = f"evolution.{part} = {address!r}: expected python:module:function or grpc://host:port"
    assert (refusal.value.message, refusal.value.reason) == (expected, "ERROR_REASON_BAD_SPEC")


def test_a_specification_without_plugins_has_no_plugin_settings() -> None:
    evolution = resolve().evolution
    assert not evolution.HasField("generator")
    assert not evolution.HasField("updater")
    assert not evolution.HasField("answer_duration")


def test_the_default_time_limit_of_an_answer_is_five_seconds() -> None:
    assert evolution_answer_seconds(resolve(generator="python:mine:propose").evolution) == 5.0
    assert evolution_answer_seconds(resolve(updater="python:mine:judge", answer_duration="300ms").evolution) == 0.3


@pytest.mark.parametrize("duration", ["10ms", "9s"])
def test_the_time_limit_of_an_answer_lies_below_that_of_the_caller(duration: str) -> None:
    with pytest.raises(InvalidArgument, match=r"evolution.answer_duration = \S+ s: expected 0.05 s to 8 s"):
        resolve(updater="python:mine:judge", answer_duration=duration)


def test_a_time_limit_without_a_plugin_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"is a setting of evolution\.generator and updater; name one"):
        resolve(answer_duration="2s")


def test_resolving_twice_changes_nothing() -> None:
    once = resolve(generator="python:mine:propose")
    assert spec.resolve(once) == once
