from typing import Any

import pytest
from google.protobuf import json_format

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.orchestrator.v1.orchestrator_pb2 import EvaluationEntry, Event
from podrace.specification import resolve


def test_show_contains_pods_events_and_statistics(type_: Any, mesh: Any) -> None:
    shown = type_("show", "latest", "--orchestrator", mesh.address, "--json").json
    assert shown["pods"][0]["activity"] == "training"
    assert shown["events"][0]["message"] == "2 cores are free"
    assert shown["algorithms"][0]["submissions"] == 5
    assert shown["episode_correlation"] == {"correlation": 0.81, "pairs": 228}
    assert shown["spec"]["objective"] == {"target_return": 475.0}
    out = type_("show", "latest", "--orchestrator", mesh.address).out
    assert "correlation 0.81 over 228 pairs of agents; compared one by one" in out
    for expected in (
        "cartpole-abc123",
        "CartPole-v1",
        "training",
        "2 cores are free",
        "480.0 ± 2.5 of 475.0",
    ):
        assert expected in out


@pytest.fixture
def spent(mesh: Any) -> Any:
    """The mesh with statistics of its compute, and two agents that were stopped early."""
    mesh.known.compute = pb.ComputeStatistics(
        champion_environment_steps=300_000, pod_seconds=80.0, evaluation_seconds=10.0
    )
    mesh.known.tournaments[0].stopped_agents = 2
    mesh.known.evaluations = [EvaluationEntry(evaluation=Evaluation(wall_seconds=42.0), done=True)]
    for number, score in (4, 7), (5, 9):
        reason = f"a{number} ({score} ± 1) is behind the incumbent a0 (480 ± 2.5) by 470"
        message = f"cartpole-abc123-a{number} stopped early after 1000 steps: {reason}"
        mesh.known.events.append(Event(sequence=number, kind="agent_stopped", message=message))
    return mesh


def test_show_says_what_the_compute_was_used_for(type_: Any, spent: Any) -> None:
    out = " ".join(type_("show", "latest", "--orchestrator", spent.address).out.split())
    assert "champion lineage 300k of 1.2M steps (24.3 %)" in out
    assert "evaluation time 12.5 % of the time of training pods, and 0:42 of pod time outside of training" in out
    assert "stopped early 2 agents 2, for instance: a5 (9 ± 1) is behind the incumbent" in out
    request = spent.known.statistics_requests[0]
    assert list(request.champion_candidate_ids) == [spent.known.tournaments[0].champion_manifest_digest]
    shown = type_("show", "latest", "--orchestrator", spent.address, "--json").json
    assert shown["compute"] == {
        "environment_steps": 1_234_567,
        "champion_environment_steps": 300_000,
        "champion_step_share": pytest.approx(300_000 / 1_234_567),
        "pod_seconds": 80.0,
        "evaluation_seconds": 10.0,
        "evaluation_share": 0.125,
        "separate_evaluation_seconds": 42.0,
    }
    (kind,) = shown["early_stops"]["kinds"]
    assert (shown["early_stops"]["agents"], kind["agents"]) == (2, 2)
    assert kind["kind"] == "… is behind the incumbent … by …"


def test_show_omits_what_an_older_leaderboard_does_not_know(type_: Any, mesh: Any) -> None:
    answer = type_("show", "latest", "--orchestrator", mesh.address)
    assert answer.code == 0
    assert not any(word in answer.out for word in ("champion lineage", "evaluation time", "stopped early"))


def test_show_and_ls_have_the_reported_score_and_the_selection_score(type_: Any, mesh: Any) -> None:
    selection = mesh.known.tournaments[0].champion_selection
    selection.selection_score, selection.selection_standard_error, selection.selection_episodes = 495.0, 1.5, 64
    selection.reported_episodes, selection.reason = 128, "a2 is best of 4"
    for made in (
        type_("show", "latest", "--orchestrator", mesh.address, "--json").json,
        type_("ls", "--orchestrator", mesh.address, "--json").json[0],
    ):
        assert (made["best_score"], made["reported_episodes"]) == (480.0, 128)
        assert (made["selection_score"], made["selection_score_standard_error"]) == (495.0, 1.5)
        assert made["champion_reason"] == "a2 is best of 4"
    out = " ".join(type_("show", "latest", "--orchestrator", mesh.address).out.split())
    assert "480.0 ± 2.5 on 128 new episodes that were not used for selection; selected by 495.0 ± 1.5" in out


def test_show_says_if_the_score_is_the_one_that_selected_the_champion(type_: Any, mesh: Any) -> None:
    mesh.known.tournaments[0].champion_selection.reason = "the leaderboard did not respond"
    out = " ".join(type_("show", "latest", "--orchestrator", mesh.address).out.split())
    assert "480.0 ± 2.5 the score by which it was selected, which is too high on average" in out


def test_show_explains_how_algorithms_are_chosen(type_: Any, mesh: Any) -> None:
    spec = mesh.known.tournaments[0].spec
    spec.algorithms["a2c"].ratio = 1.0
    spec.evolution.allocation, spec.evolution.halving_agents = "halving", 4
    mesh.known.statistics = [
        pb.AlgorithmStatistics(
            algorithm="a2c",
            agents=7,
            submissions=8,
            best_score=77.0,
            core_seconds=18.0,
            left_draw_reason="halving: is behind",
        ),
        pb.AlgorithmStatistics(
            algorithm="ppo",
            agents=9,
            submissions=21,
            best_score=480.0,
            mean_best_score=123.0,
            best_score_variance=2601.0,
            learning_speed=0.00057,
            environment_steps=3_400_000,
            core_seconds=62.0,
            hyperparameter_score_covariance={"learning_rate": -1.25, "gae_lambda": 0.5},
            hyperparameter_speed_covariance={"learning_rate": 2e-6},
        ),
    ]
    out = type_("show", "latest", "--orchestrator", mesh.address).out
    assert "halving: after 4 scored agents of each algorithm, the worse half gets no new agents" in out
    assert "a2c gets no new agents: halving: is behind" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["ppo", "9", "21", "480.0", "123.0", "2601.0", "570.0", "3.4M", "1:02", "77.5", "%"] in rows
    assert ["ppo", "learning_rate", "-1.25", "+2"] in rows
    assert ["ppo", "gae_lambda", "+0.5", "-"] in rows
    assert max(map(len, out.splitlines())) <= 100
    a2c, ppo = type_("show", "latest", "--orchestrator", mesh.address, "--json").json["algorithms"]
    assert (a2c["left_draw_reason"], ppo["left_draw_reason"]) == ("halving: is behind", None)
    assert (ppo["best_score_variance"], ppo["learning_speed"]) == (2601.0, 0.00057)
    assert ppo["hyperparameter_speed_covariance"] == {"learning_rate": 2e-6}


def test_a_tournament_with_one_algorithm_shows_no_allocation(type_: Any, mesh: Any) -> None:
    out = type_("show", "latest", "--orchestrator", mesh.address).out
    assert "allocation" not in out
    assert "covariance" not in out


def test_brackets_in_a_message_are_shown_literally(type_: Any, mesh: Any) -> None:
    mesh.known.events[0].message = "see [pool] and :smile:"
    assert "see [pool] and :smile:" in type_("show", "latest", "--orchestrator", mesh.address).out


@pytest.fixture
def champion(known: Any, canned: Any) -> Any:
    """A champion a2 that descends from a1, with another learning rate."""
    values = {"environment": {"id": "cartpole"}, "algorithms": {"ppo": {}}, "objective": {"target_return": 475.0}}
    tournament = known.tournaments[0]
    tournament.spec.CopyFrom(resolve.resolve(resolve.parse(values, source="test")))
    tournament.champion_manifest_digest = known.submissions[2].candidate_id
    declared = tournament.spec.algorithms["ppo"].hyperparameters
    parent, child = (
        pb.Agent(agent_id=f"cartpole-abc123-a{number}", tournament_id="cartpole-abc123", number=number, algorithm="ppo")
        for number in (1, 2)
    )
    for agent, rate in (parent, 0.001), (child, 0.002):
        agent.hyperparameters.update({name: json_format.MessageToDict(declared[name].value) for name in declared})
        agent.hyperparameters.update({"learning_rate": rate})
    child.parent_agent_ids.append(parent.agent_id)
    child.starting_checkpoint.manifest_digest = known.submissions[1].candidate_id
    known.families[child.agent_id] = [child, parent]
    return child


def test_the_champion_is_written_as_a_specification_that_train_accepts(
    type_: Any, mesh: Any, champion: Any, tmp_path: Any
) -> None:
    written = type_("show", "latest", "--champion", "--toml", "--orchestrator", mesh.address)
    assert written.code == 0
    (tmp_path / "champion.toml").write_text(written.out)
    printed = type_("train", "champion.toml", "--print-config", "--json").json
    assert printed["algorithms"]["ppo"]["hyperparameters"]["learning_rate"] == 0.002
    assert printed["objective"] == {"target_return": 475.0}
    assert '{ from = 0, to = 200000, agents = ["a1"], hyperparameters = { learning_rate = 0.001 } }' in written.out


def test_the_champion_as_json_has_its_schedule(type_: Any, mesh: Any, champion: Any) -> None:
    shown = type_("show", "latest", "--champion", "--orchestrator", mesh.address, "--json").json
    (member,) = shown["members"]
    assert (member["agent_id"], member["algorithm"]) == ("cartpole-abc123-a2", "ppo")
    assert member["hyperparameters"]["learning_rate"] == 0.002
    stages = [(stage["begin_environment_steps"], stage["end_environment_steps"]) for stage in member["schedule"]]
    assert stages == [(0, 200_000), (200_000, 300_000)]
    assert shown["specification"]["algorithms"]["ppo"]["hyperparameters"] == member["hyperparameters"]


def test_the_champion_as_text_has_its_values_and_what_changed(type_: Any, mesh: Any, champion: Any) -> None:
    rows = [
        line.split() for line in type_("show", "latest", "--champion", "--orchestrator", mesh.address).out.split("\n")
    ]
    assert ["learning_rate", "0.002"] in rows
    assert ["0", "to", "200k", "steps", "a1", "learning_rate", "0.001"] in rows
    assert ["200k", "to", "300k", "steps", "a2", "learning_rate", "0.002"] in rows


def test_a_tournament_without_a_champion_is_refused_in_one_line(type_: Any, mesh: Any) -> None:
    mesh.known.tournaments[0].champion_manifest_digest = ""
    answer = type_("show", "latest", "--champion", "--toml", "--orchestrator", mesh.address)
    assert (answer.code, answer.out) == (2, "")
    assert "has no candidate yet" in answer.err


@pytest.mark.parametrize("options", [("--toml",), ("--champion", "--toml", "--json")])
def test_options_of_the_champion_that_contradict_each_other_are_refused(type_: Any, options: tuple[str, ...]) -> None:
    answer = type_("show", "latest", *options)
    assert answer.code == 2
    assert "--toml" in answer.err


@pytest.fixture
def trials(mesh: Any, canned: Any) -> Any:
    """The mesh with twelve trials, whose score is the rank of their learning rate; one of them was continued."""
    mesh.known.submissions = []
    for number in range(13):
        trial = 0 if number == 12 else number
        agent = pb.Agent(agent_id=f"cartpole-abc123-a{number}", number=number, algorithm="ppo")
        agent.hyperparameters.update({"learning_rate": 0.001 * (trial + 1), "epochs": 4 + trial % 2, "horizon": 32})
        mesh.known.lineage.append(agent)
        candidate = canned.candidate("cartpole-abc123", number, float(trial))
        candidate.trial = trial
        mesh.known.submissions.append(candidate)
    return mesh


def test_importance_shows_the_shares_and_the_scores_by_slices(type_: Any, trials: Any) -> None:
    rows = [
        line.split()
        for line in type_("show", "latest", "--importance", "--orchestrator", trials.address).out.split("\n")
    ]
    assert ["ppo:", "12", "trials"] in rows
    names = [row[0] for row in rows if len(row) >= 4 and row[1] == "12"]
    assert names[:2] == ["learning_rate", "epochs"]
    assert ["learning_rate", "0.001", "to", "0.004", "4", "1.5", "±", "0.65"] in [
        [cell if cell != "1.50" else "1.5" for cell in row] for row in rows
    ]
    assert not any("horizon" in row for row in rows)


def test_importance_as_json_has_all_slices(type_: Any, trials: Any) -> None:
    (ppo,) = type_("show", "latest", "--importance", "--orchestrator", trials.address, "--json").json
    assert (ppo["algorithm"], ppo["trials"]) == ("ppo", 12)
    rate, epochs = ppo["hyperparameters"]
    assert rate["name"] == "learning_rate"
    assert rate["share"] > 0.8 > 0.5 > epochs["share"]
    assert rate["p_value"] < 0.05 < epochs["p_value"]
    assert [part["trials"] for part in rate["slices"]] == [4, 4, 4]
    assert [part["low"] for part in epochs["slices"]] == [4, 5]
    assert ppo["environment_steps"]["trials"] == 12


@pytest.mark.long
def test_importance_can_be_drawn(type_: Any, trials: Any, tmp_path: Any) -> None:
    answer = type_("show", "latest", "--importance", "--plot", "i.png", "--orchestrator", trials.address)
    assert answer.err == "wrote i.png\n"
    assert (tmp_path / "i.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--champion", "--importance"], "give only one"),
        (["--plot", "x.png"], "give --importance too"),
        (["--importance", "--plot", "missing/x.png"], "missing"),
    ],
)
def test_options_of_importance_that_contradict_each_other_are_refused(
    type_: Any, trials: Any, options: list[str], line: str
) -> None:
    answer = type_("show", "latest", *options, "--orchestrator", trials.address)
    assert answer.code == 2
    assert line in answer.err


def test_importance_without_scores_is_refused(type_: Any, mesh: Any) -> None:
    mesh.known.submissions = []
    answer = type_("show", "latest", "--importance", "--orchestrator", mesh.address)
    assert answer.code == 2
    assert "has no candidate yet" in answer.err


def test_pareto_lists_the_candidates_that_are_best_for_their_steps(type_: Any, mesh: Any) -> None:
    out = type_("show", "latest", "--pareto", "--orchestrator", mesh.address).out
    assert "3 of 3 candidates are not dominated in score (higher is better), environment_steps (lower is better)" in out
    rows = [line.split()[:5] for line in out.splitlines()]
    assert rows[3] == ["1", "a2", "ppo", "480", "300000"]
    assert "not on the board" not in out
    mesh.known.submissions[1].score = 100.0
    mesh.known.submissions[2].rank = 0
    out = type_("show", "latest", "--pareto", "--orchestrator", mesh.address).out
    assert "2 of 3 candidates" in out
    assert "rank -: not on the board, so its checkpoint may have been deleted" in out


def test_pareto_compares_recorded_measures_in_the_stated_direction(type_: Any, mesh: Any) -> None:
    for candidate, risk in zip(mesh.known.submissions, (0.3, 0.1, 0.2), strict=True):
        candidate.episode_metrics["annual_volatility"] = risk
    arguments = "show", "latest", "--pareto", "--orchestrator", mesh.address, "--json"
    shown = type_(*arguments, "--measure", "annual_volatility").json
    assert shown["measures"] == [
        {"name": "score", "direction": "max"},
        {"name": "annual_volatility", "direction": "min"},
    ]
    assert [entry["measures"] for entry in shown["candidates"]] == [
        {"score": 480.0, "annual_volatility": 0.2},
        {"score": 300.0, "annual_volatility": 0.1},
    ]
    assert (shown["compared"], shown["left_out"]) == (3, 0)
    worst = type_(*arguments, "--measure", "annual_volatility=max").json
    assert [entry["measures"]["annual_volatility"] for entry in worst["candidates"]] == [0.2, 0.3]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--pareto", "--importance"], "give only one"),
        (["--measure", "environment_steps"], "is for --pareto; give that too"),
        (["--pareto", "--measure", "sharpe_ratio"], "unknown measure 'sharpe_ratio'"),
    ],
)
def test_options_of_pareto_that_cannot_be_used_are_refused(
    type_: Any, mesh: Any, options: list[str], line: str
) -> None:
    answer = type_("show", "latest", *options, "--orchestrator", mesh.address)
    assert answer.code == 2
    assert line in answer.err
