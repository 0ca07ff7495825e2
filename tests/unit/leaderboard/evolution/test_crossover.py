"""Only siblings are offered for averaging, never one that ranks above the parent, and every refusal has a reason."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from leaderboard.evolution.agents import make
from leaderboard.evolution.crossover import choose_mate, siblings, why_unrelated
from leaderboard.evolution.proposals import Proposal
from leaderboard.evolution.space import declared_values
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.board import rank_key
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.evolution.v1.evolution_pb2 import ProposeAgentResponse
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_CONTINUATION, ORIGIN_FRESH, ORIGIN_MUTATION, Agent, Candidate
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

START = "c" * 64


class Family:
    """Agents of a tournament and their candidates; the keyword arguments are settings of the evolution."""

    def __init__(
        self, make_spec: Callable[..., TournamentSpec], make_candidate: Callable[..., Candidate], **settings: Any
    ):
        evolution = {"initial_agents": 1, "fresh_probability": 0.0, "crossover_probability": 1.0} | settings
        self.spec = make_spec(evolution=evolution)
        self._make_candidate = make_candidate
        self.agents: dict[str, Agent] = {}
        self.board: list[Candidate] = []

    def add(
        self, number: int, score: float, *, start: str = START, trial: int | None = None, **values: Any
    ) -> Candidate:
        """Adds an agent that started from a checkpoint (empty: fresh), and its candidate."""
        candidate = self._make_candidate(number, score)
        agent = Agent(
            agent_id=candidate.agent_id, tournament_id=candidate.tournament_id, number=number, algorithm="ppo"
        )
        agent.hyperparameters.update(declared_values(self.spec.algorithms["ppo"]) | values)
        agent.origin = ORIGIN_MUTATION if start else ORIGIN_FRESH
        agent.trial = number if trial is None else trial
        if trial is not None:
            agent.origin = ORIGIN_CONTINUATION
        if start:
            agent.starting_checkpoint.CopyFrom(Checkpoint(agent_id="t-a0", manifest_digest=start))
        self.agents[agent.agent_id] = agent
        self.board = sorted([*self.board, candidate], key=rank_key)
        return candidate

    def situation(self, **fields: Any) -> Situation:
        return Situation(self.spec, 9, tuple(self.board), self.agents, {}, **fields)

    def agent_of(self, candidate: Candidate) -> Agent:
        return self.agents[candidate.agent_id]

    def reason(self, one: Candidate, other: Candidate) -> str:
        return why_unrelated(self.agent_of(one), self.agent_of(other), self.situation())


@pytest.fixture
def family(make_spec: Any, make_candidate: Any) -> Family:
    return Family(make_spec, make_candidate)


def test_agents_that_started_from_one_checkpoint_are_siblings(family: Family) -> None:
    parent, best, worse = family.add(1, 9.0), family.add(2, 7.0), family.add(3, 5.0)
    assert siblings(parent, family.situation()) == (best, worse)
    assert siblings(best, family.situation()) == (worse,), "the parent is the better of the two"
    assert siblings(worse, family.situation()) == ()


def test_siblings_are_related_both_ways(family: Family) -> None:
    found = [family.add(1, 9.0), family.add(2, 7.0), family.add(3, 5.0, start="d" * 64), family.add(4, 1.0, start="")]
    for one in found:
        for other in found:
            assert bool(family.reason(one, other)) == bool(family.reason(other, one))


def test_each_relation_that_is_none_has_a_reason_in_one_line(family: Family) -> None:
    own = family.add(1, 9.0)
    cases = {
        "belong to the same trial": family.add(2, 8.0, trial=1),
        "did not start from the same checkpoint": family.add(3, 7.0, start="d" * 64),
        "it is not known what their trials started from": family.add(5, 6.0, trial=4),
        "have other networks or environments: hidden_sizes differs": family.add(6, 5.0, hidden_sizes=[8]),
    }
    for reason, other in cases.items():
        found = family.reason(own, other)
        assert reason in found
        assert "\n" not in found
        assert other not in siblings(own, family.situation())


def test_fresh_agents_are_never_siblings(family: Family) -> None:
    one, other = family.add(1, 9.0, start=""), family.add(2, 8.0, start="")
    assert "did not start from the same checkpoint" in family.reason(one, other)


def test_agents_of_other_algorithms_are_no_siblings(family: Family) -> None:
    one, other = family.add(1, 9.0), family.add(2, 8.0)
    family.agent_of(other).algorithm = "a2c"
    assert "have other algorithms: ppo and a2c" in family.reason(one, other)


def test_a_trial_is_related_by_what_its_first_agent_started_from(family: Family) -> None:
    own = family.add(1, 9.0)
    first, continued = family.add(2, 4.0), family.add(3, 8.0, start="d" * 64, trial=2)
    assert siblings(own, family.situation()) == (continued,), "one for each trial, the best"
    assert first not in siblings(own, family.situation())


def test_without_the_setting_no_child_is_crossed_and_nothing_else_changes(make_spec: Any, make_candidate: Any) -> None:
    crossed, plain = (Family(make_spec, make_candidate, crossover_probability=share) for share in (1.0, 0.0))
    made = []
    for family in (crossed, plain):
        family.add(1, 9.0)
        family.add(2, 7.0)
        agent, _ = make("t", family.spec, 9, tuple(family.board), family.agents, {})
        made.append(agent)
    with_mate, without = made
    assert not without.mates
    (mate,) = with_mate.mates
    assert mate.agent_id == crossed.board[1].agent_id
    assert mate.manifest_digest == crossed.board[1].candidate_id
    assert with_mate.reason == f"{without.reason}; offered the average with its sibling a2 (7 ± 0)"
    with_mate.ClearField("mates")
    with_mate.reason = without.reason
    assert with_mate == without


def test_the_share_of_crossed_children_is_the_probability(make_spec: Any, make_candidate: Any) -> None:
    family = Family(make_spec, make_candidate, crossover_probability=0.3)
    parent = family.add(1, 9.0)
    family.add(2, 7.0)
    crossed = sum(choose_mate(parent, family.situation(), Random(seed)) is not None for seed in range(1000))
    assert 250 < crossed < 350


def test_a_child_that_a_plugin_proposes_is_not_crossed(make_spec: Any, make_candidate: Any) -> None:
    family = Family(make_spec, make_candidate)
    parent = family.add(1, 9.0)
    family.add(2, 7.0)
    answer = ProposeAgentResponse()
    answer.child.candidate_id = parent.candidate_id
    proposed, _ = make("t", family.spec, 9, tuple(family.board), family.agents, {}, proposal=Proposal(answer))
    failed, _ = make("t", family.spec, 9, tuple(family.board), family.agents, {}, proposal=Proposal(None, "g: away"))
    assert not proposed.mates
    assert len(failed.mates) == 1, "the built-in strategy made it"
