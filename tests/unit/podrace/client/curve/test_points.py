import csv
import io
from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.cli.curve.output import csv_text, json_values
from podrace.client.curve import points
from podrace.client.curve.points import CurvePoint
from podrace.leaderboard.v1.leaderboard_pb2 import Snapshot

NAME = "cartpole-abc123"


def snapshot(agent: int, number: int, *, champion: bool = False, steps: int = 0, total: int = 0) -> Snapshot:
    made = Snapshot(
        manifest_digest=f"{agent:02d}{number:02d}",
        tournament_id=NAME,
        agent_id=f"{NAME}-a{agent}",
        algorithm="ppo",
        champion=champion,
        number=number,
        environment_steps=1000 + steps,
        agent_environment_steps=steps,
        tournament_environment_steps=total,
    )
    made.running_duration.FromMilliseconds(2000 * number + 10)
    return made


def order(snapshots: Any) -> list[tuple[str, int]]:
    return [("champion" if one.champion else one.agent_id.rpartition("-")[2], one.number) for one in snapshots]


SNAPSHOTS = [
    snapshot(10, 1),
    snapshot(2, 2),
    snapshot(2, 1),
    snapshot(7, 2, champion=True),
    snapshot(10, 2),
    snapshot(2, 1, champion=True),
]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ("champion", [("champion", 1), ("champion", 2)]),
        ("agents", [("a2", 1), ("a2", 2), ("a10", 1), ("a10", 2)]),
        ("all", [("champion", 1), ("champion", 2), ("a2", 1), ("a2", 2), ("a10", 1), ("a10", 2)]),
    ],
)
def test_the_champions_curve_comes_first_then_agents_by_number_in_order_of_time(of: str, expected: Any) -> None:
    assert order(points.chosen(SNAPSHOTS, of)) == expected


def test_the_champion_at_a_time_is_the_best_agent_at_that_time() -> None:
    drawn = [CurvePoint(one, Evaluation()) for one in points.chosen(SNAPSHOTS, "champion")]
    assert [(point.who, point.snapshot.agent_id) for point in drawn] == [
        ("champion", f"{NAME}-a2"),
        ("champion", f"{NAME}-a7"),
    ]


def test_snapshots_after_the_end_are_not_part_of_the_curve(canned: Any) -> None:
    tournament = canned.tournament(NAME)
    tournament.running_duration.FromMilliseconds(4010)
    taken = [snapshot(1, number) for number in (1, 2, 3)]
    assert order(points.within(taken, tournament)) == [("a1", 1), ("a1", 2)]
    running = canned.tournament(NAME, "RUNNING")
    running.running_duration.FromSeconds(1)
    assert len(points.within(taken, running)) == 3


def test_the_champions_curve_ends_with_the_final_champion(canned: Any) -> None:
    tournament, board = canned.tournament(NAME), [canned.candidate(NAME, number, 1.0) for number in (1, 2)]
    tournament.champion_manifest_digest = board[1].candidate_id
    end = points.final(tournament, board)
    assert end is not None
    assert (end.agent_id, end.champion, end.number) == (f"{NAME}-a2", True, 0)
    assert (end.running_duration.seconds, end.tournament_environment_steps) == (42, 1_234_567)
    assert end.environment_steps == 300_000
    assert points.final(canned.tournament(NAME, "RUNNING"), board) is None
    assert points.final(tournament, board[:1]) is None


def test_the_steps_of_all_agents_are_the_larger_of_two_lower_bounds() -> None:
    taken = [
        snapshot(1, 1, champion=True, total=0),
        snapshot(1, 1, steps=500),
        snapshot(2, 1, steps=300),
        snapshot(2, 2, steps=900),
        snapshot(1, 3, champion=True, total=2000),
        snapshot(2, 3, steps=1000),
    ]
    found = {(one.champion, one.number): one for one in points.with_totals(taken)}
    assert found[True, 1].tournament_environment_steps == 800
    assert found[False, 2].tournament_environment_steps == 1400
    assert found[True, 3].tournament_environment_steps == 2000
    assert taken[0].tournament_environment_steps == 0, "what was given stays"


def test_the_csv_has_the_documented_columns_and_unrounded_numbers() -> None:
    evaluation = Evaluation(mean_return=1 / 3, variance=2.0, episodes=32)
    written = [
        CurvePoint(snapshot(3, 2, steps=7), evaluation),
        CurvePoint(snapshot(3, 2, champion=True, total=99), evaluation),
    ]
    agent, champion = csv.DictReader(io.StringIO(csv_text(written)))
    assert list(agent) == [
        "tournament_id",
        "agent_id",
        "algorithm",
        "seconds",
        "environment_steps",
        "mean",
        "standard_deviation",
        "standard_error",
        "episodes",
    ]
    assert (agent["tournament_id"], agent["agent_id"], agent["algorithm"]) == (NAME, f"{NAME}-a3", "ppo")
    assert (agent["environment_steps"], agent["episodes"]) == ("1007", "32")
    assert float(agent["mean"]) == 1 / 3
    assert float(agent["standard_deviation"]) == 2.0**0.5
    assert float(agent["standard_error"]) == 0.25
    assert float(agent["seconds"]) == 4.01
    assert (champion["agent_id"], champion["environment_steps"]) == ("champion", "99")


def test_deviation_and_error_of_a_single_episode_are_unknown() -> None:
    point = CurvePoint(snapshot(1, 1), Evaluation(mean_return=5.0, episodes=1))
    assert (point.standard_deviation, point.standard_error) == (None, None)
    (written,) = csv.DictReader(io.StringIO(csv_text([point])))
    assert (written["mean"], written["standard_deviation"], written["standard_error"]) == ("5.0", "", "")
    assert json_values([point], {}, {})["points"][0]["standard_error"] is None


def test_seeds_are_fixed_distinct_and_fit_into_a_signed_integer() -> None:
    assert points.curve_seed(0) == 0x732D38075068580E, "or what was evaluated before would not be found"
    seeds = {points.curve_seed(number) for number in range(100)}
    assert len(seeds) == 100
    assert all(2**32 < seed < 2**63 for seed in seeds)
