from typing import Any

import pytest


def test_only_the_given_limits_and_objectives_are_changed(type_: Any, mesh: Any) -> None:
    changes = ("--set", "pool.maximum_pods=3", "--set", "objective.target_return=475")
    answer = type_("update", "latest", *changes, "--orchestrator", mesh.address)
    assert answer.code == 0
    assert answer.out.startswith("changed cartpole-abc123: ")
    assert "at most 3" in answer.out
    (request,) = mesh.known.requests
    assert request.pool.maximum_pods == 3
    assert not request.pool.HasField("minimum_pods")
    assert request.objective.target_return == 475.0


def test_sections_that_are_not_mentioned_are_not_sent(type_: Any, mesh: Any) -> None:
    type_("update", "latest", "--set", "pool.maximum_pods=3", "--orchestrator", mesh.address)
    (request,) = mesh.known.requests
    assert not request.HasField("objective")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seed=3", "--set seed: only pool and objective can be changed while it runs"),
        ("pool.maximum_podz=3", "pool.maximum_podz"),
        ("pool", "expected KEY=VALUE"),
    ],
)
def test_a_key_that_cannot_be_changed_is_refused_by_name(type_: Any, mesh: Any, override: str, line: str) -> None:
    answer = type_("update", "latest", "--set", override, "--orchestrator", mesh.address)
    assert answer.code == 2
    assert line in answer.err
    assert mesh.known.requests == []


@pytest.mark.parametrize(("label", "line"), [("team=a b", "labels.team"), ("a b-", "the key 'a b'")])
def test_nothing_is_changed_if_a_label_is_not_allowed(type_: Any, mesh: Any, label: str, line: str) -> None:
    changes = ("--set", "pool.maximum_pods=3", "--label", label)
    answer = type_("update", "latest", *changes, "--orchestrator", mesh.address)
    assert answer.code == 2
    assert line in answer.err
    assert mesh.known.requests == []
