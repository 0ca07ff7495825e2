"""Every JSON output that names an agent or a candidate has its hyperparameters."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import podrace.cli
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1.leaderboard_pb2 import Snapshot

NAME = "cartpole-abc123"
NAMES = {"agent_id", "candidate_id", "best_agent_id", "snapshot_agent_id"}
"""Keys that name an agent or a candidate."""
VALUES = {"hyperparameters", "champion_hyperparameters"}
SHAPES = {
    "commands/store.py:_listed",
    "results/champion_views.py:_member_values",
    "views/json_shapes.py:agent",
    "views/json_shapes.py:candidate",
    "views/json_shapes.py:checkpoint",
    "views/json_shapes.py:pod",
    "views/json_shapes.py:result",
    "curve/output.py:json_values",
    "commands/retrain.py:_show",
    "results/model_card.py:_member",
}
"""Functions that build an entry about an agent or a candidate."""
EXEMPT = {
    # An event is a record of what was decided, and its message is text for a person.
    "views/json_shapes.py:event",
}


def dictionaries() -> Iterator[tuple[str, set[str]]]:
    """Yields the constant keys of every dict display in the sources of the command, with file and function."""
    root = Path(podrace.cli.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Dict):
                        keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
                        yield f"{path.relative_to(root)}:{function.name}", {str(key) for key in keys}


def test_every_shape_that_names_an_agent_has_a_place_for_its_hyperparameters() -> None:
    naming = {where: keys for where, keys in dictionaries() if keys & NAMES}
    assert naming.keys() == SHAPES | EXEMPT, "list new shapes here"
    assert not [where for where in SHAPES if not naming[where] & VALUES]


@pytest.fixture
def raced(mesh: Any) -> Any:
    """The mesh with hyperparameters of all agents, an ensemble as champion, and a snapshot."""
    for number in range(3):
        agent = pb.Agent(agent_id=f"{NAME}-a{number}", tournament_id=NAME, number=number, algorithm="ppo")
        agent.hyperparameters.update({"learning_rate": 0.001 * (number + 1)})
        mesh.known.lineage.append(agent)
    champion = mesh.known.tournaments[0]
    champion.champion_selection.members.add(agent_id=f"{NAME}-a1", manifest_digest="feed" + 60 * "0")
    mesh.known.snapshots = [
        Snapshot(manifest_digest="beef" + 60 * "0", tournament_id=NAME, agent_id=f"{NAME}-a0", number=1, champion=True)
    ]
    mesh.known.evaluation.episodes = 32
    return mesh


def entries(value: Any, key: str = "") -> Iterator[dict[str, Any]]:
    """Yields every object in a JSON value that names an agent, except in lists of events."""
    if isinstance(value, list):
        for item in value:
            yield from entries(item, key)
    elif isinstance(value, dict):
        if value.keys() & NAMES and key != "events":
            yield value
        for name, item in value.items():
            yield from entries(item, name)


@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        (["ls"], 2),
        (["show", "latest"], 3),
        (["show", "latest", "--pareto"], 3),
        (["standings", "latest"], 3),
        (["lineage", "latest"], 3),
        (["lineage", "latest-a2"], 3),
        (["evaluate", "latest"], 2),
        (["ensemble", "latest", "--top", "2"], 2),
        (["curve", "latest"], 1),
        (["stop", "latest"], 2),
        (["update", "latest", "--set", "pool.maximum_pods=3"], 2),
    ],
)
def test_every_entry_about_an_agent_has_the_hyperparameters_of_that_agent(
    type_: Any, raced: Any, arguments: list[str], least: int
) -> None:
    answer = type_(*arguments, "--orchestrator", raced.address, "--json")
    assert answer.code == 0, answer.err
    found = list(entries(answer.json))
    assert len(found) >= least
    for entry in found:
        agent_id = entry.get("snapshot_agent_id") or entry.get("agent_id") or entry["best_agent_id"]
        (values,) = (entry[key] for key in VALUES & entry.keys())
        assert values == {"learning_rate": pytest.approx(0.001 * (int(agent_id[-1]) + 1))}, entry


def test_hyperparameters_that_are_not_known_are_null(type_: Any, mesh: Any) -> None:
    answer = type_("standings", "latest", "--orchestrator", mesh.address, "--json")
    assert [entry["hyperparameters"] for entry in answer.json] == [None, None, None]
