import tomllib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.cli.results.champion import ChampionMember, champion_member
from podrace.cli.results.champion_toml import champion_toml, specification_of
from podrace.errors import NotFound
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.specification import catalog, evolution_settings, resolve
from podrace.specification.files import load, to_values
from podrace.tournament.v1.tournament_pb2 import Tournament, TournamentSpec

NAME = "cartpole-abc123"
DISCRETE = [name for name, entry in catalog.ALGORITHMS.items() if "discrete" in entry.action_kinds]


def specification(algorithm: str = "ppo", **sections: Any) -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1", "options": {"max_episode_steps": 200}},
        "algorithms": {algorithm: {}},
        "objective": {"target_return": 475.0, "wall_clock_duration": "3m"},
    }
    return resolve.resolve(resolve.parse(values | sections, source="test"))


def values_of(spec: TournamentSpec, algorithm: str = "ppo", **changed: Any) -> dict[str, Any]:
    """Returns a value for every hyperparameter, as an agent has them."""
    declared = spec.algorithms[algorithm].hyperparameters
    return {name: json_format.MessageToDict(declared[name].value) for name in declared} | changed


def agent(number: int, values: dict[str, Any], parent: int | None = None, algorithm: str = "ppo") -> pb.Agent:
    made = pb.Agent(agent_id=f"{NAME}-a{number}", tournament_id=NAME, number=number, algorithm=algorithm)
    made.hyperparameters.update(values)
    if parent is not None:
        made.parent_agent_ids.append(f"{NAME}-a{parent}")
        made.starting_checkpoint.manifest_digest = f"digest{parent}"
    return made


def submission(number: int, steps: int) -> pb.Candidate:
    return pb.Candidate(
        candidate_id=f"digest{number}", tournament_id=NAME, agent_id=f"{NAME}-a{number}", environment_steps=steps
    )


def member_of(agents: list[pb.Agent], submissions: list[pb.Candidate]) -> ChampionMember:
    last = agents[-1]
    checkpoint = Checkpoint(agent_id=last.agent_id, manifest_digest=f"digest{last.number}")
    return champion_member(checkpoint, agents[::-1], submissions)


def tournament(spec: TournamentSpec) -> Tournament:
    return Tournament(tournament_id=NAME, spec=spec, best_agent_id=f"{NAME}-a0", champion_manifest_digest="digest0")


def loaded(text: str, folder: Path) -> TournamentSpec:
    """Returns what `podrace train FILE` would train."""
    path = folder / "champion.toml"
    path.write_text(text)
    return load(path)


@pytest.mark.parametrize("algorithm", DISCRETE)
def test_the_file_trains_with_exactly_the_values_of_the_champion(tmp_path: Path, algorithm: str) -> None:
    spec = specification(algorithm)
    values = values_of(spec, algorithm, learning_rate=0.00123456789)
    again = loaded(
        champion_toml(tournament(spec), [member_of([agent(0, values, algorithm=algorithm)], [submission(0, 5000)])]),
        tmp_path,
    )
    made = again.algorithms[algorithm].hyperparameters
    assert {name: json_format.MessageToDict(made[name].value) for name in made} == values
    assert not [name for name in made if made[name].HasField("low") or made[name].choices]


@pytest.mark.parametrize("strategy", evolution_settings.SETTINGS)
@pytest.mark.parametrize("search", ["declared", "wide"])
def test_all_settings_except_the_algorithms_are_kept(tmp_path: Path, strategy: str, search: str) -> None:
    spec = specification(
        search=search,
        seed=7,
        pod={"cores": 3.0, "workers": 2},
        evaluation={"episodes": 24, "options": {"max_episode_steps": 100}},
        evolution={"strategy": strategy, "allocation": "halving"},
        reports={"test": {"episodes": 5}},
    )
    again = loaded(
        champion_toml(tournament(spec), [member_of([agent(0, values_of(spec))], [submission(0, 1)])]), tmp_path
    )
    before, after = to_values(spec), to_values(again)
    for section in before.keys() - {"algorithms", "search"}:
        assert after[section] == before[section], section


def test_options_of_the_environment_that_were_searched_keep_the_value_of_the_champion(tmp_path: Path) -> None:
    spec = specification(
        environment={
            "id": "CartPole-v1",
            "search": {"count": {"choices": [16, 64]}, "options.max_episode_steps": {"choices": [100, 200]}},
            "search_in_evaluation": ["options.max_episode_steps"],
        }
    )
    values = values_of(spec) | {"environment.count": 64, "environment.options.max_episode_steps": 200}
    again = loaded(champion_toml(tournament(spec), [member_of([agent(0, values)], [submission(0, 1)])]), tmp_path)
    made = again.algorithms["ppo"].hyperparameters
    assert made["environment.count"].value.number_value == 64
    assert made["environment.options.max_episode_steps"].value.number_value == 200
    assert not again.environment.search
    assert list(again.environment.search_in_evaluation) == ["options.max_episode_steps"]


def test_a_hyperparameter_that_an_older_agent_does_not_have_is_not_searched() -> None:
    spec = specification()
    values = values_of(spec)
    del values["clip_range"]
    made = specification_of(spec, member_of([agent(0, values)], []))
    clip_range = made.algorithms["ppo"].hyperparameters["clip_range"]
    assert clip_range.HasField("value")
    assert not clip_range.HasField("low")
    assert resolve.resolve(made) == made


def test_the_tournament_of_the_file_starts_from_no_ancestor() -> None:
    spec = specification(evolution={"ancestor_agent_id": "pole-abc123-a7"})
    assert not specification_of(spec, member_of([agent(0, values_of(spec))], [])).evolution.ancestor_agent_id


def test_a_stage_lasts_as_long_as_no_value_changes() -> None:
    spec = specification()
    slow, fast = values_of(spec, learning_rate=0.001), values_of(spec, learning_rate=0.002)
    line = [agent(0, slow), agent(1, slow, 0), agent(2, fast, 1), agent(3, slow, 2)]
    submissions = [submission(0, 1000), submission(1, 3000), submission(2, 4000), submission(3, 9000)]
    member = member_of(line, submissions)
    assert [(stage.begin_steps, stage.end_steps, len(stage.agent_ids)) for stage in member.stages] == [
        (0, 3000, 2),
        (3000, 4000, 1),
        (4000, 9000, 1),
    ]
    assert member.hyperparameters["learning_rate"] == 0.001
    assert member.environment_steps == 9000


def test_the_schedule_is_toml_without_the_comment_marks() -> None:
    spec = specification()
    line = [agent(0, values_of(spec, learning_rate=0.001)), agent(1, values_of(spec, learning_rate=0.002), 0)]
    text = champion_toml(tournament(spec), [member_of(line, [submission(0, 1000), submission(1, 3000)])])
    lines = text.splitlines()
    begin = lines.index("# schedule = [")
    commented = lines[begin : lines.index("# ]") + 1]
    assert tomllib.loads("\n".join(line.removeprefix("# ") for line in commented)) == {
        "schedule": [
            {"from": 0, "to": 1000, "agents": ["a0"], "hyperparameters": {"learning_rate": 0.001}},
            {"from": 1000, "to": 3000, "agents": ["a1"], "hyperparameters": {"learning_rate": 0.002}},
        ]
    }


def test_a_file_without_a_schedule_says_that_nothing_changed() -> None:
    spec = specification()
    text = champion_toml(tournament(spec), [member_of([agent(0, values_of(spec))], [submission(0, 3000)])])
    assert "# They did not change over its 3.0k environment steps." in text


def test_the_other_members_of_an_ensemble_are_comments_that_can_replace_the_first(tmp_path: Path) -> None:
    spec = specification(algorithms={"ppo": {}, "a2c": {}})
    first = member_of([agent(0, values_of(spec, learning_rate=0.001))], [submission(0, 1)])
    second_values = values_of(spec, "a2c", learning_rate=0.002)
    second = member_of([agent(1, second_values, algorithm="a2c")], [submission(1, 1)])
    text = champion_toml(tournament(spec), [first, second])
    assert list(loaded(text, tmp_path).algorithms) == ["ppo"]
    _, _, after = text.partition("# Member 2 of the ensemble: a1.")
    section = tomllib.loads("\n".join(line.removeprefix("# ") for line in after.splitlines()[1:]))
    written = tomllib.loads(text) | section
    again = resolve.resolve(resolve.parse(written, source="test"))
    made = again.algorithms["a2c"].hyperparameters
    assert {name: json_format.MessageToDict(made[name].value) for name in made} == second_values


def test_text_of_the_mesh_cannot_leave_its_comment(tmp_path: Path) -> None:
    spec = specification()
    known = tournament(spec)
    known.tournament_id = "x\nseed = 9"
    text = champion_toml(known, [member_of([agent(0, values_of(spec))], [submission(0, 1)])])
    assert loaded(text, tmp_path).seed == 0


def test_an_agent_that_the_leaderboard_does_not_know_is_refused() -> None:
    with pytest.raises(NotFound, match=f"{NAME}-a9"):
        champion_member(Checkpoint(agent_id=f"{NAME}-a9", manifest_digest="d"), [], [])
