import math
from collections.abc import Callable
from typing import Any

import pytest

from leaderboard.evolution.agents import make
from leaderboard.evolution.fresh import draw
from leaderboard.evolution.proposals import Proposal, adopted
from leaderboard.evolution.space import declared_values
from leaderboard.evolution.strategy import Child, Fresh, Situation
from podrace.errors import InvalidArgument
from podrace.evolution.v1.evolution_pb2 import ChildProposal, FreshProposal, ProposeAgentResponse
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_MUTATION, Agent, Candidate
from podrace.printable import one_line
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MakeSpec = Callable[..., TournamentSpec]
MakeCandidate = Callable[..., Candidate]
GENERATOR = "python:mine:propose"


@pytest.fixture
def situation(make_spec: MakeSpec, make_candidate: MakeCandidate) -> Situation:
    """Agent 7 is due; a3 and a4 stand on the board; PPO and A2C take part, PPO with a range and a choice."""
    spec = make_spec(
        algorithms={
            "ppo": {
                "hyperparameters": {
                    "learning_rate": {"low": 1e-4, "high": 1e-2, "value": 1e-3},
                    "epochs": {"choices": [2, 4]},
                    "hidden_sizes": [16, 16],
                }
            },
            "a2c": {"ratio": 0},
        },
        evolution={"generator": GENERATOR, "initial_agents": 1, "fresh_probability": 0.0},
    )
    board = (make_candidate(3, 9.0), make_candidate(4, 5.0))
    agents = {}
    for candidate in board:
        agents[candidate.agent_id] = Agent(agent_id=candidate.agent_id, algorithm="ppo", number=candidate.agent_number)
        agents[candidate.agent_id].hyperparameters.update(declared_values(spec.algorithms["ppo"]))
    return Situation(spec, 7, board, agents, {})


def child_of(situation: Situation, place: int = 0, algorithm: str = "", **values: Any) -> ProposeAgentResponse:
    child = ChildProposal(candidate_id=situation.board[place].candidate_id, algorithm=algorithm)
    child.hyperparameters.update(values)
    return ProposeAgentResponse(child=child, reason="because")


def fresh(algorithm: str = "", **values: Any) -> ProposeAgentResponse:
    proposal = FreshProposal(algorithm=algorithm)
    proposal.hyperparameters.update(values)
    return ProposeAgentResponse(fresh=proposal, reason="because")


def test_a_child_has_its_parents_values_except_the_given_ones(situation: Situation) -> None:
    answer = adopted(child_of(situation, 1, learning_rate=0.002), situation)
    assert isinstance(answer, Child)
    assert answer.parent == situation.board[1]
    assert answer.hyperparameters == situation.values_of(answer.parent) | {"learning_rate": 0.002}
    assert answer.reason == "because; child of a4 (5 ± 0); learning_rate 0.001 -> 0.002"


def test_all_values_may_be_given_where_the_structural_ones_are_the_parents(situation: Situation) -> None:
    inherited = situation.values_of(situation.board[0])
    answer = adopted(child_of(situation, 0, "ppo", **inherited | {"epochs": 4}), situation)
    assert isinstance(answer, Child)
    assert answer.hyperparameters == inherited | {"epochs": 4.0}


def test_a_fresh_agent_may_have_structural_values_of_its_own(situation: Situation) -> None:
    answer = adopted(fresh("a2c", hidden_sizes=[8], discount=0.5), situation)
    assert isinstance(answer, Fresh)
    assert (answer.algorithm, answer.hyperparameters) == ("a2c", {"hidden_sizes": [8.0], "discount": 0.5})


def test_a_fresh_agent_without_an_algorithm_gets_that_of_its_number(situation: Situation) -> None:
    answer = adopted(fresh(), situation)
    assert isinstance(answer, Fresh)
    assert (answer.algorithm, answer.hyperparameters) == ("ppo", {})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"learning_rat": 0.002}, "learning_rat: unknown hyperparameter 'learning_rat'; did you mean 'learning_ra"),
        ({"learning_rate": 0.02}, "learning_rate = 0.02: expected 0.0001 to 0.01, the range of the specification"),
        ({"learning_rate": math.nan}, "learning_rate: holds a number that is not finite"),
        ({"learning_rate": math.inf}, "learning_rate: holds a number that is not finite"),
        ({"learning_rate": "fast"}, "learning_rate = 'fast': expected a number from 1e-07 to 1"),
        ({"learning_rate": None}, "learning_rate = None: expected a number"),
        ({"discount": 1.5}, "discount = 1.5: expected a number from 0 to 1"),
        ({"epochs": 3}, "epochs = 3.0: expected one of 2.0, 4.0"),
        ({"epochs": 2.5}, "epochs = 2.5: expected a whole number from 1 to 100"),
        ({"minibatch_size": 64.5}, "minibatch_size = 64.5: expected a whole number"),
        ({"normalize_advantages": 1}, "normalize_advantages = 1.0: expected true or false"),
        (
            {"hidden_sizes": [16]},
            "hidden_sizes = [16.0]: must not change in a child; expected the parent's [16.0",
        ),
        ({"hidden_sizes": [[math.nan]]}, "hidden_sizes: holds a number that is not finite"),
        ({"activation": "relu"}, "activation = 'relu': must not change in a child; expected the parent's 'tanh'"),
    ],
)
def test_an_invalid_value_is_refused_by_name(situation: Situation, values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        adopted(child_of(situation, **values), situation)
    assert refusal.value.message.startswith("child.hyperparameters.")
    assert words in refusal.value.message


def test_an_invalid_proposal_is_refused(situation: Situation) -> None:
    elsewhere = ProposeAgentResponse(child=ChildProposal(candidate_id="f" * 64))
    for answer, words in [
        (ProposeAgentResponse(reason="no idea"), "proposal: neither fresh nor child is set"),
        (elsewhere, f"child.candidate_id = '{'f' * 64}': is not on the board"),
        (child_of(situation, 0, "a2c"), "child.algorithm = 'a2c': a3 (9 ± 0) was trained by 'ppo'"),
        (fresh("sac"), "fresh.algorithm: unknown algorithm 'sac'; did you mean 'a2c'?"),
        (fresh("a2c", clip_range=0.2), "fresh.hyperparameters.clip_range: unknown hyperparameter 'clip_range'"),
    ]:
        with pytest.raises(InvalidArgument) as refusal:
            adopted(answer, situation)
        assert words in refusal.value.message


def test_the_reason_of_a_plugin_is_reported_in_one_line_of_bounded_length() -> None:
    assert one_line("a\nb\t\x1b[31mc\u2028d\u202e ") == r"a b \x1b[31mc d\u202e"
    assert one_line(one_line("\x1b\x07")) == one_line("\x1b\x07") == r"\x1b\x07"
    assert len(one_line("x" * 10_000)) == 303


def agent_of(situation: Situation, proposal: Proposal | None) -> Agent:
    return make("t", situation.spec, 7, situation.board, situation.agents, {}, proposal=proposal)[0]


def test_an_agent_is_made_as_proposed_and_names_the_plugin(situation: Situation) -> None:
    agent = agent_of(situation, Proposal(child_of(situation, 0, learning_rate=0.002)))
    assert (agent.origin, list(agent.parent_agent_ids)) == (ORIGIN_MUTATION, [situation.board[0].agent_id])
    assert agent.reason == f"{GENERATOR}: because; child of a3 (9 ± 0); learning_rate 0.001 -> 0.002"


def test_a_fresh_agent_has_the_draw_of_its_number_except_for_given_values(situation: Situation) -> None:
    agent = agent_of(situation, Proposal(fresh(discount=0.5)))
    drawn = draw(situation.spec, 7)[1]
    assert dict(agent.hyperparameters.items()) == drawn | {"discount": 0.5}
    assert agent.reason == f"fresh, {GENERATOR}: because; searched values drawn except discount 0.99 -> 0.5"


def test_after_a_failure_the_built_in_strategy_decides_as_without_a_plugin(situation: Situation) -> None:
    house, instead = agent_of(situation, None), agent_of(situation, Proposal(None, "the generator broke off"))
    assert instead.reason == f"the generator broke off; built-in strategy tournament instead: {house.reason}"
    assert instead.generator_fault == "the generator broke off"
    instead.reason, instead.generator_fault = house.reason, ""
    assert instead == house


def test_a_proposal_whose_parent_left_the_board_meanwhile_is_reported_as_outdated(situation: Situation) -> None:
    proposal = Proposal(child_of(situation, 1, learning_rate=0.002))
    agent, _ = make("t", situation.spec, 7, situation.board[:1], situation.agents, {}, proposal=proposal)
    assert agent.reason.startswith(f"generator {GENERATOR}: its proposal is no longer valid: child.candidate_id = ")
    assert "is not on the board; built-in strategy tournament instead: best of 1" in agent.reason
