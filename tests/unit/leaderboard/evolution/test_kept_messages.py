"""A trial reads its scores and its agents in the same way whether they are kept as messages or as bytes."""

import pytest

from leaderboard.evolution.trials import KeptAgents, KeptScores
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate


def scores(count: int, kept: int = 1000) -> KeptScores:
    found = KeptScores()
    for number in range(count):
        found.add(Candidate(candidate_id=f"c{number}", score=number, episode_returns=[number, number + 0.5]), kept)
    return found


@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_scores_are_read_by_arrival(count: int) -> None:
    found, expected = scores(count), [float(number) for number in range(count)]
    assert len(found) == count
    assert [one.score for one in found] == expected
    assert [one.score for one in found[-3:]] == expected[-3:]
    assert [one.score for one in found[-2:-1]] == expected[-2:-1]
    assert [found[index].score for index in range(-count, 0)] == expected
    assert all(list(one.episode_returns) == [one.score, one.score + 0.5] for one in found)
    with pytest.raises(IndexError):
        found[count]


def test_only_the_newest_are_kept() -> None:
    found = scores(20, kept=8)
    assert [one.score for one in found] == [12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0]
    assert found == scores(20, kept=8)
    assert found != scores(20, kept=9)


def test_agents_are_read_by_number() -> None:
    found, other = KeptAgents(), KeptAgents()
    for number in range(3):
        for kept in (found, other):
            kept.add(Agent(agent_id=f"t-a{number}", number=number))
    assert [agent.number for agent in found] == [0, 1, 2]
    assert [agent.number for agent in reversed(found)] == [2, 1, 0]
    assert [agent.number for agent in found[1:]] == [1, 2]
    assert (found[-1].agent_id, len(found), found) == ("t-a2", 3, other)
    other.add(Agent(number=3))
    assert found != other
