import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import podrace
from podrace.api import records, specifications, translation
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.client.curve.points import CurvePoint
from podrace.errors import InvalidArgument, Unimplemented
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.orchestrator.v1.orchestrator_pb2 import Event
from podrace.tournament.v1 import tournament_pb2

EXAMPLE = Path(__file__).parents[4] / "examples/cartpole.toml"


def test_a_frame_has_a_row_for_each_record_and_a_column_for_each_field() -> None:
    pytest.importorskip("pandas")
    events = [Event(sequence=number, kind="pod_started", message=f"pod p{number}") for number in (1, 2)]
    frame = records.Rows(translation.event_of(one) for one in events).to_frame()
    assert list(frame.columns) == ["sequence", "time", "kind", "message", "pod_id", "agent_id"]
    assert frame["message"].tolist() == ["pod p1", "pod p2"]


def test_an_empty_frame_has_the_columns_of_its_kind(mesh: Any, known: Any) -> None:
    pytest.importorskip("pandas")
    known.events, known.lineage, known.board = [], [], []
    with podrace.connect(mesh.address) as opened:
        tournament = opened.tournament()
        for rows, column in (
            (tournament.events(), "message"),
            (tournament.agents(), "seed"),
            (tournament.candidates(), "rank"),
        ):
            frame = rows.to_frame()
            assert (len(frame), column in frame.columns) == (0, True)
    assert list(records.Rows[Any]().to_frame().columns) == []


def test_a_frame_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Unimplemented, match="pip install pandas"):
        records.Rows[records.Event]().to_frame()


def test_what_is_not_known_is_none() -> None:
    status = translation.status_of(tournament_pb2.Tournament(tournament_id="t"))
    assert (status.best_score, status.best_score_standard_error, status.state) == (None, None, "running")
    candidate = translation.candidate_of(board_pb.Candidate(score=0.0))
    assert (candidate.rank, candidate.estimate, candidate.verdict) == (None, None, "unspecified")
    snapshot = board_pb.Snapshot(agent_id="t-a1", champion=True)
    point = translation.point_of(CurvePoint(snapshot, Evaluation(episodes=1, mean_return=3.0)))
    assert (point.curve, point.mean, point.standard_error) == ("champion", 3.0, None)


def test_times_have_a_time_zone_and_hyperparameters_are_whole_numbers_again() -> None:
    agent = board_pb.Agent(agent_id="t-a0", origin=board_pb.ORIGIN_MUTATION, parent_agent_ids=["t-a1"])
    agent.create_time.FromSeconds(1_000_000)
    agent.hyperparameters.update({"horizon": 32, "discount": 0.98})
    found = translation.agent_of(agent)
    assert found.create_time == datetime(1970, 1, 12, 13, 46, 40, tzinfo=UTC)
    assert (found.origin, found.parent_agent_ids) == ("mutation", ("t-a1",))
    assert found.hyperparameters == {"horizon": 32, "discount": 0.98}
    assert isinstance(found.hyperparameters["horizon"], int)


def test_the_champion_names_all_members_of_an_ensemble() -> None:
    tournament = tournament_pb2.Tournament(best_score=480.0)
    members = [Checkpoint(agent_id=f"t-a{number}", manifest_digest=f"d{number}") for number in (3, 1)]
    agents = {one.agent_id: board_pb.Agent(agent_id=one.agent_id, algorithm="ppo") for one in members}
    champion = translation.champion_of(tournament, members, agents)
    assert (champion.agent_id, champion.candidate_id, len(champion.members)) == ("t-a3", "d3", 2)


VALUES = {
    "environment": {"id": "cartpole"},
    "algorithms": {"ppo": {}},
    "objective": {"target_return": 475.0},
}


@pytest.mark.parametrize("given", [EXAMPLE, str(EXAMPLE), VALUES, specifications.resolved(EXAMPLE)])
def test_a_specification_is_a_file_or_values_or_a_message(given: Any) -> None:
    spec = specifications.resolved(given, {"pool.maximum_pods": 3, "objective.wall_clock_duration": "7s"})
    assert (spec.environment.id, spec.pool.maximum_pods) == ("cartpole", 3)
    assert spec.objective.wall_clock_duration.seconds == 7
    assert spec.evaluation.episodes, "defaults are filled in"


def test_the_values_of_the_caller_are_not_changed() -> None:
    specifications.resolved(VALUES, {"objective.target_return": 1.0})
    assert VALUES["objective"] == {"target_return": 475.0}


def test_a_wrong_value_is_reported_with_its_key_and_where_it_is_from() -> None:
    with pytest.raises(InvalidArgument, match=r"specification: .*pool.maximum_pod"):
        specifications.resolved(VALUES, {"pool.maximum_pod": 3})
    with pytest.raises(InvalidArgument, match=r"missing\.toml: cannot be read"):
        specifications.resolved("missing.toml")
