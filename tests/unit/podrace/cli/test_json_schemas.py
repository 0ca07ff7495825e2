"""The published schemas of `--json` are valid and belong to commands; outputs in other tests are compared with them."""

import json
from collections.abc import Iterator
from typing import Any

import click
import json_schemas
import jsonschema
import pytest

from podrace.cli.application import COMMANDS, application
from podrace.specification import evolution_settings
from podrace.specification.files import from_values, to_values

SCHEMAS = sorted(json_schemas.FOLDER.glob("*.json"))
ALWAYS_JSON = {"certs-secrets"}
"""Schemas of commands that print JSON without --json."""


def leaves() -> Iterator[str]:
    """Names of all commands that are not groups."""
    for name in COMMANDS:
        command = application.get_command(click.Context(application), name)
        yield from (f"{name} {part}" for part in command.commands) if isinstance(command, click.Group) else [name]


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_every_schema_is_valid_and_names_its_command(path: json_schemas.Path) -> None:
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    option = "" if path.stem in ALWAYS_JSON else " --json"
    assert schema["title"] == f"podrace {path.stem.replace('-', ' ')}{option}"
    names = [name.replace(" ", "-") for name in leaves()]
    assert any(path.stem == name or path.stem.startswith(f"{name}-") for name in names)


def test_every_command_has_a_schema() -> None:
    published = {path.stem for path in SCHEMAS}
    missing = {name for name in leaves() if name.replace(" ", "-") not in published}
    assert missing == set(), "record its output, see tests/fixtures/json_schemas.py"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["ls", "--json"], "ls"),
        (["store", "check", "URI", "--json"], "store-check"),
        (["train", "a.toml", "--check", "--json"], "train-check"),
        (["show", "latest", "--champion", "--json"], "show-champion"),
        (["lineage", "cartpole-abc-a7", "--json"], "lineage-agent"),
        (["migrate", "leaderboard.sqlite", "--undo", "--json"], "migrate-undo"),
    ],
)
def test_options_that_change_the_shape_have_schemas_of_their_own(arguments: list[str], name: str) -> None:
    assert json_schemas.schema_name(arguments) == name


@pytest.mark.parametrize("value", [{"tournament_id": "t"}, {"tournament_id": 3, "deleted": True}, []])
def test_an_output_of_another_shape_is_found(value: object) -> None:
    json_schemas.check(["delete"], {"tournament_id": "t", "deleted": True, "added_later": 1})
    with pytest.raises(jsonschema.ValidationError):
        json_schemas.check(["delete"], value)


def test_a_token_has_its_published_shape(type_: Any) -> None:
    assert type_("token", "alice", "--key", "mesh.key", "--json").json["name"] == "alice"


def test_certificates_have_the_same_published_shape_in_every_command(type_: Any) -> None:
    made = type_("certs", "make", "c", "--json").json
    assert type_("certs", "ls", "c", "--json").json == made
    assert len(type_("certs", "renew", "c", "viewer/dashboard", "--json").json) > 0
    assert type_("certs", "revoke", "c", "viewer/dashboard", "--json").json


@pytest.mark.long
@pytest.mark.parametrize("strategy", evolution_settings.SETTINGS)
@pytest.mark.parametrize("objective", [{"target_return": 475}, {"wall_clock_duration": "5m"}])
def test_specifications_of_every_strategy_have_the_published_shape(strategy: str, objective: dict[str, object]) -> None:
    values = {
        "environment": {"id": "cartpole"},
        "algorithms": {"ppo": {}, "dqn": {}},
        "objective": objective,
        "evolution": {"strategy": strategy},
    }
    specification = to_values(from_values(values, source="test"))
    json_schemas.check(["train", "a.toml", "--print-config"], specification)
    del specification["evolution"]["strategy"]
    with pytest.raises(jsonschema.ValidationError, match="'strategy' is a required property"):
        json_schemas.check(["train", "a.toml", "--print-config"], specification)


def test_the_keys_of_maps_are_open_and_their_values_are_checked() -> None:
    row = {
        "coordinates": {"algorithm": "ppo", "pod.cores": 1.5},
        "states": {"COMPLETED": 2, "FAILED": 1},
        "cells": 3,
        "scored_cells": 2,
        "mean_score": 480.0,
        "interval_low": None,
        "interval_high": None,
        "mean_environment_steps": 1e6,
        "mean_training_seconds": 60.5,
        "mean_wall_seconds": 61,
    }
    grid = {
        "grid": "g",
        "folder": "/g",
        "state": "INCOMPLETE",
        "axes": [{"name": "pod.cores", "key": "pod.cores", "values": [1.5, "2", True]}],
        "confidence": 0.95,
        "resamples": 10_000,
        "combinations": [row],
        "cells": [],
    }
    json_schemas.check(["grid"], grid)
    mistakes: list[dict[str, object]] = [{"states": {"COMPLETED": "two"}}, {"cells": 1.5}, {"coordinates": []}]
    for wrong in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            json_schemas.check(["grid"], grid | {"combinations": [row | wrong]})


def test_numbers_may_be_null_and_keys_of_the_users_choice_are_open() -> None:
    schema = json_schemas.inferred(
        [{"rate": 1.5, "count": 3, "metrics": {"a": 1.0}}, {"rate": 2, "count": 4, "metrics": {}}]
    )
    assert schema["properties"] == {
        "rate": {"type": ["number", "null"]},
        "count": {"type": "integer"},
        "metrics": {"type": "object"},
    }
