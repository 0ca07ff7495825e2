"""A model card states task, score, descent, hyperparameters and digests, and claims no score that was not measured."""

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest, Part
from podrace.cli.results.model_card import ExportedMember, card, card_text
from podrace.tournament.v1.tournament_pb2 import ChampionSelection, EnvironmentSpec, Tournament, TournamentSpec

RESULT = {
    "files": {"policy.onnx": {"sha256": "ab12", "random": {"actions": 1600, "worst": 2e-7}}},
    "not_recorded": "the simulator is missing",
}


def member() -> ExportedMember:
    manifest = Manifest(
        agent_id="race-a7",
        algorithm="ppo",
        lineage_environment_steps=123456,
        parts=[Part(name="policy", digest="c" * 64)],
        evaluation=Evaluation(mean_return=500.0, variance=4.0, episodes=4),
        versions={"torch": "2.13.0"},
    )
    manifest.hyperparameters.update({"learning_rate": 0.001, "hidden_sizes": [64.0, 64.0], "epochs": 4})
    return ExportedMember("d" * 64, manifest, ["race-a3", "race-a0"])


def tournament(reported_episodes: int) -> Tournament:
    spec = TournamentSpec(environment=EnvironmentSpec(id="stocks"))
    spec.environment.options.update({"path": "prices:daily.csv", "folds": 3})
    spec.evaluation.options.update({"split": "validation"})
    return Tournament(
        tournament_id="race-1",
        spec=spec,
        best_score=480.0,
        best_score_standard_error=2.0,
        champion_manifest_digest="d" * 64,
        champion_selection=ChampionSelection(reported_episodes=reported_episodes),
    )


def test_a_champion_has_the_score_of_fresh_episodes() -> None:
    facts = card(tournament(64), [member()], RESULT)
    text = card_text(facts)
    assert "fresh episodes: 480 ± 2 over 64 episodes" in text
    assert "Score on the board: 500 ± 1 over 4 episodes" in text
    assert "Ancestors: race-a3, race-a0." in text
    assert "| `learning_rate` | 0.001 |" in text
    # A Struct holds whole numbers as doubles.
    assert "| `hidden_sizes` | [64, 64] |" in text
    assert "| `epochs` | 4 |" in text
    assert facts["task"]["options"] == {"path": "prices:daily.csv", "folds": 3}
    assert "`stocks`, options `{'folds': 3, 'path': 'prices:daily.csv'}`; evaluated with the options" in text
    assert "`{'split': 'validation'}`." in text
    assert f"Manifest `{'d' * 64}`, policy `{'c' * 64}`" in text
    assert "| `policy.onnx` | `ab12` | 1600 actions on random observations, difference 2.0e-07 |" in text
    assert "Not compared on recorded observations: the simulator is missing" in text


def test_no_score_is_claimed_for_another_candidate_or_without_fresh_episodes() -> None:
    other = ExportedMember("e" * 64, member().manifest, [])
    assert card(tournament(64), [other], RESULT)["score_on_fresh_episodes"] is None
    facts = card(tournament(0), [member()], RESULT)
    assert facts["score_on_fresh_episodes"] is None
    assert "fresh episodes: not measured" in card_text(facts)


def test_the_score_of_a_single_episode_has_no_error() -> None:
    once = member()
    once.manifest.evaluation.episodes = 1
    assert "Score on the board: 500 in one episode." in card_text(card(tournament(64), [once], RESULT))
