"""Defaults and errors of the evaluator plugin in a specification."""

import pytest
from google.protobuf.duration_pb2 import Duration

from podrace.errors import InvalidArgument
from podrace.specification import resolve as spec
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def resolve(**evaluation: object) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"target_return": 475},
        "evaluation": evaluation,
    }
    return spec.resolve(spec.parse(values, source="test.toml"))


@pytest.mark.parametrize(
    "evaluator", ["python:mine:score", "python:a.b_2.c:d", "grpc://127.0.0.1:50080", "grpc://scores.example:1"]
)
def test_a_valid_evaluator_gets_the_default_time_limit(evaluator):
    resolved = resolve(evaluator=evaluator)
    assert resolved.evaluation.evaluator == evaluator
    assert resolved.evaluation.answer_duration == Duration(seconds=300)
    assert spec.resolve(resolved) == resolved


def test_without_an_evaluator_no_time_limit_is_set():
    resolved = resolve()
    assert not resolved.evaluation.HasField("evaluator")
    assert not resolved.evaluation.HasField("answer_duration")


@pytest.mark.parametrize(
    "evaluator",
    [
        *("", "mine", "python:mine", "python:mine:", "python:a..b:c", "python:a:b c"),
        *("grpc://host", "grpc://host:0", "grpc://host:70000", "http://host:80", "grpc://:80", "grpc://a/b:80"),
    ],
)
def test_a_malformed_evaluator_is_refused_in_one_line(evaluator):
    with pytest.raises(InvalidArgument) as caught:
        resolve(evaluator=evaluator)
    expected = f"evaluation.evaluator = {evaluator!r}: expected python:module:function or grpc://host:port"
    assert caught.value.message == expected
    assert caught.value.reason == "ERROR_REASON_BAD_SPEC"


def test_a_time_limit_needs_an_evaluator_and_is_at_most_the_deadline_of_the_contract():
    with pytest.raises(InvalidArgument, match=r"^evaluation.answer_duration = 2 s: is a setting of"):
        resolve(answer_duration="2s")
    with pytest.raises(InvalidArgument, match=r"^evaluation.answer_duration = 1801 s: expected at most 1800 s$"):
        resolve(evaluator="python:a:b", answer_duration=1801)
    assert resolve(evaluator="python:a:b", answer_duration=1800).evaluation.answer_duration.seconds == 1800
