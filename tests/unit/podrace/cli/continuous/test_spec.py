from datetime import date
from pathlib import Path
from typing import Any

import pytest

from podrace.cli.continuous.spec import bind_version, check_reference, spec_of_version
from podrace.errors import InvalidArgument
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def spec(**sections: Any) -> TournamentSpec:
    values = {
        "environment": {"id": "stocks", "options": {"path": "prices.npz", "split": "train", "tickers": ["A", "B"]}},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 1000},
        "evaluation": {"options": {"split": "validation"}},
        "reports": {"backtest": {"options": {"path": "prices.npz"}}},
    }
    return specification.resolve(specification.parse(values | sections, source="test"))


def test_every_option_that_names_the_data_is_replaced_by_the_version() -> None:
    made = bind_version(spec(), "prices.npz", Path("/v/prices.npz"))
    assert made.environment.options["path"] == "/v/prices.npz"
    assert made.reports["backtest"].options["path"] == "/v/prices.npz"
    assert made.environment.options["split"] == "train"
    assert list(made.environment.options["tickers"]) == ["A", "B"]


@pytest.mark.parametrize(
    ("written", "reference", "pinned"),
    [
        ("data/a.npz", "data", "/v/data/a.npz"),
        ("data/a.npz", "data/", "/v/data/a.npz"),
        ("data", "data/", "/v/data"),
        ("./prices.npz", "prices.npz", "/v/data"),
        ("s3://bucket/data/a.npz", "s3://bucket/data", "/v/data/a.npz"),
        ("database", "data", "database"),
        ("", "data", ""),
        ("train", ".", "train"),
    ],
)
def test_files_below_the_reference_are_replaced_by_files_below_the_version(
    written: str, reference: str, pinned: str
) -> None:
    given = spec(environment={"id": "CartPole-v1", "options": {"nested": {"files": [written]}}})
    made = bind_version(given, reference, Path("/v/data"))
    assert made.environment.options["nested"]["files"][0] == pinned


def test_a_version_can_set_its_splits() -> None:
    made = bind_version(spec(), "prices.npz", Path("/v/p"), {"train_end": "2026-01-01"})
    assert made.environment.options["train_end"] == "2026-01-01"
    dated = bind_version(spec(), "prices.npz", Path("/v/p"), {"train_end": date(2026, 1, 1)})
    assert dated == made
    with pytest.raises(InvalidArgument, match=r"options\.toml: "):
        bind_version(spec(), "prices.npz", Path("/v/p"), {"train_end": [date(2026, 1, 1)]})
    assert "train_end" not in spec().environment.options


def test_a_specification_that_does_not_use_the_data_is_refused() -> None:
    check_reference(spec(), "prices.npz", source="s.toml")
    with pytest.raises(InvalidArgument, match=r"s.toml: no option .* environment.options.path = 'other.npz'"):
        check_reference(spec(), "other.npz", source="s.toml")


def test_each_version_has_its_own_seed_and_name_and_starts_from_the_champion() -> None:
    first = spec_of_version(spec(seed=5), tournament_name="s-1f-v1", number=1, ancestor_agent_id="")
    third = spec_of_version(spec(seed=5), tournament_name="s-1f-v3", number=3, ancestor_agent_id="s-1f-v1-abc123-a2")
    assert (first.name, first.seed, first.evolution.HasField("ancestor_agent_id")) == ("s-1f-v1", 5, False)
    assert (third.name, third.seed, third.evolution.ancestor_agent_id) == ("s-1f-v3", 7, "s-1f-v1-abc123-a2")
    assert specification.resolve(third) == third
