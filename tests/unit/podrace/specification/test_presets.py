"""The preset `wide` searches what the specification leaves out, and keeps what it states."""

from typing import Any

import pytest

from podrace.errors import InvalidArgument
from podrace.specification import catalog, presets
from podrace.specification.hyperparameter_checks import extra_value
from podrace.specification.presets import trusts_values
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1 import tournament_pb2 as pb

SPEC: dict[str, Any] = {
    "search": "wide",
    "environment": {"id": "CartPole-v1"},
    "algorithms": {"ppo": {}},
    "objective": {"target_return": 475.0},
}


def ppo(**hyperparameters: Any) -> dict[str, Any]:
    return {"algorithms": {"ppo": {"hyperparameters": hyperparameters}}}


def resolved(**sections: Any) -> pb.TournamentSpec:
    return resolve(parse(SPEC | sections, source="test"))


def ranges(spec: pb.TournamentSpec, algorithm: str = "ppo") -> dict[str, tuple[float, float]]:
    entries = spec.algorithms[algorithm].hyperparameters.items()
    return {name: (entry.low, entry.high) for name, entry in sorted(entries) if entry.HasField("low")}


def test_ppo_is_searched_in_wide_ranges() -> None:
    spec = resolved()
    assert ranges(spec) == {
        "clip_range": (0.05, 0.4),
        "discount": (0.9, 0.9999),
        "entropy_coefficient": (1e-8, 0.1),
        "epochs": (1, 10),
        "gae_lambda": (0.8, 0.999),
        "learning_rate": (1e-5, 0.1),
        "minibatch_size": (64, 1024),
    }
    hyperparameters = spec.algorithms["ppo"].hyperparameters
    assert hyperparameters["discount"].scale == pb.SCALE_REVERSE_LOG
    assert extra_value(hyperparameters["gae_lambda"]) == 1.0
    assert hyperparameters["minibatch_size"].scale == pb.SCALE_LOG


@pytest.mark.parametrize("algorithm", sorted(catalog.ALGORITHMS))
def test_every_algorithm_has_a_wide_search_that_resolves(algorithm: str) -> None:
    spec = resolved(algorithms={algorithm: {}}, environment={"id": "python:module:factory"})
    assert {"learning_rate", "discount"} < ranges(spec, algorithm).keys()
    assert resolve(spec) == spec


def test_what_the_specification_states_is_kept() -> None:
    stated = {"learning_rate": 1e-3, "discount": {"low": 0.95, "high": 0.99}, "epochs": {"choices": [2, 4]}}
    spec = resolved(**ppo(**stated))
    found = ranges(spec)
    assert "learning_rate" not in found
    assert "epochs" not in found
    assert found["discount"] == (0.95, 0.99)
    assert found["clip_range"] == (0.05, 0.4)


@pytest.mark.parametrize(
    ("count", "horizon", "expected"),
    [
        (16, 128, (64, 1024)),
        (4, 128, (64, 512)),
        (4, {"choices": [32, 128]}, (64, 128)),
        (4, {"low": 40, "high": 99}, (64, 160)),
    ],
)
def test_no_minibatch_is_larger_than_the_smallest_rollout(count: int, horizon: Any, expected: tuple[int, int]) -> None:
    spec = resolved(environment={"id": "CartPole-v1", "count": count}, **ppo(horizon=horizon))
    assert ranges(spec)["minibatch_size"] == expected


def test_a_minibatch_that_leaves_nothing_to_search_is_the_whole_rollout() -> None:
    spec = resolved(**ppo(horizon=2))
    assert "minibatch_size" not in ranges(spec)
    assert spec.algorithms["ppo"].hyperparameters["minibatch_size"].value.number_value == 2 * 16


def test_without_the_preset_nothing_is_added_and_values_are_trusted() -> None:
    spec = resolved(search="declared")
    assert "discount" not in ranges(spec)
    assert trusts_values(spec)
    assert not trusts_values(resolved())
    assert resolved(search="") == spec


def test_founders_keep_no_share_of_their_own() -> None:
    assert resolved(evolution={"strategy": "incumbent"}).evolution.founder_share == 0
    assert resolved(evolution={"strategy": "incumbent", "founder_share": 0.3}).evolution.founder_share == 0.3
    assert resolved(evolution={"strategy": "incumbent"}, search="declared").evolution.founder_share == 0.5


@pytest.mark.parametrize(
    ("pods", "strategy"), [(1, "asha"), (2, "asha"), (3, "incumbent"), (8, "incumbent"), (None, "incumbent")]
)
def test_with_few_pods_the_strategy_is_successive_halving(pods: int | None, strategy: str) -> None:
    pool = {} if pods is None else {"maximum_pods": pods}
    assert resolved(pool=pool).evolution.strategy == strategy
    assert resolve(resolved(pool=pool)) == resolved(pool=pool)
    assert resolved(pool=pool, search="declared").evolution.strategy == "incumbent"
    assert resolved(pool=pool, evolution={"strategy": "tournament"}).evolution.strategy == "tournament"


def test_a_setting_that_only_the_usual_strategy_has_names_that_strategy() -> None:
    pool = {"maximum_pods": 2}
    assert resolved(pool=pool, evolution={"founder_share": 0.5}).evolution.strategy == "incumbent"
    assert resolved(pool=pool, evolution={"rung_factor": 4.0}).evolution.strategy == "asha"
    assert not resolved(pool=pool).evolution.HasField("founder_share")


def test_the_preset_has_its_own_defaults_for_settings_of_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "WIDE_SETTINGS", {"perturbation": 0.4, "temperature": 3.0})
    truncation = resolved(evolution={"strategy": "truncation"}).evolution
    assert truncation.perturbation == 0.4
    assert not truncation.HasField("temperature")  # a setting of softmax
    assert resolved(evolution={"strategy": "truncation", "perturbation": 0.1}).evolution.perturbation == 0.1
    assert resolved(evolution={"strategy": "truncation"}, search="declared").evolution.perturbation == 0.2


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match="search: unknown search 'wider'; did you mean 'wide'"):
        resolved(search="wider")
