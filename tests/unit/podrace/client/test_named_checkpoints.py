import asyncio
from typing import cast

import pytest

from podrace.client import Client
from podrace.client.named_checkpoints import find_checkpoints
from podrace.errors import NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import Candidate
from podrace.tournament.v1.tournament_pb2 import Tournament


class ScriptedMesh:
    """Answers with one tournament and its submissions."""

    def __init__(self, *submissions: Candidate) -> None:
        self.submissions = list(submissions)

    async def list_tournaments(self) -> list[Tournament]:
        return [Tournament(tournament_id="t")]

    async def list_submissions(self, tournament: Tournament) -> list[Candidate]:
        return self.submissions


def submission(name: str, *, score: float, sequence: int, rank: int = 0, agent: str = "t-a1") -> Candidate:
    return Candidate(candidate_id=name, agent_id=agent, score=score, sequence=sequence, rank=rank)


def chosen(*submissions: Candidate) -> str:
    client = cast(Client, ScriptedMesh(*submissions))
    _, (checkpoint,) = asyncio.run(find_checkpoints(client, "t-a1", where="home"))
    return checkpoint.manifest_digest


def test_the_best_candidate_of_an_agent_is_the_first_of_it_on_the_board() -> None:
    assert (
        chosen(
            submission("lucky", score=9.0, sequence=1),
            submission("third", score=5.0, sequence=2, rank=3),
            submission("second", score=4.0, sequence=3, rank=2),
            submission("last", score=1.0, sequence=4),
            submission("foreign", score=9.0, sequence=5, rank=1, agent="t-a2"),
        )
        == "second"
    )


def test_off_the_board_an_agent_has_its_last_submission() -> None:
    assert chosen(submission("lucky", score=9.0, sequence=1), submission("last", score=1.0, sequence=2)) == "last"


def test_an_agent_without_a_submission_has_no_candidate() -> None:
    with pytest.raises(NotFound, match="agent t-a1 has no candidate"):
        chosen()
