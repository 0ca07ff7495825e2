"""Policies play against the agent where the simulator is a game, and results are counted by opponent."""

import pytest
import torch

from agentpod.models.messages import policy_message
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.opponents import OpponentSeats, PolicyOpponent, is_game, match_results, references
from agentpod.session.opponents import OpponentPolicy, OpponentSlots
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import InvalidArgument
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Planes
from simulators import Simulator, make

NETWORK = NetworkSpec(hidden_sizes=(8,))


def policy_in(simulator: Simulator, seed: int = 0) -> Policy:
    policy = Policy(simulator.observation_space, simulator.action_space, NETWORK)
    policy.initialize(torch.Generator().manual_seed(seed), output_gain=5.0)
    return policy


def roll(simulator: Simulator, steps: int = 12) -> torch.Tensor:
    observation, seen = simulator.reset(3), []
    for _ in range(steps):
        observation = simulator.step(observation[:, -7:].argmax(1)).observation
        seen.append(observation.clone())
    return torch.stack(seen)


def test_results_are_counted_by_the_seat_of_each_game() -> None:
    returns = torch.tensor([1.0, -1.0, 0.0, 1.0, 1.0, -1.0])
    # Four lanes and three seats: the lanes 0 and 3 play against the first opponent.
    found = {
        one.opponent_candidate_id: (one.wins, one.draws, one.losses) for one in match_results(returns, 0, 4, "abc")
    }
    assert found == {"a": (3, 0, 0), "b": (0, 0, 2), "c": (0, 1, 0)}
    (built_in,) = match_results(returns, 0, 4, [])
    assert (built_in.opponent_candidate_id, built_in.wins, built_in.draws, built_in.losses) == ("", 3, 1, 2)
    (later,) = match_results(torch.tensor([1.0]), 6, 4, "abc")
    assert (later.opponent_candidate_id, later.wins) == ("c", 1)


def test_an_opponent_plays_valid_moves_and_repeats_them_with_its_seed() -> None:
    simulator = make("game:connect-four", 16)
    opponent = PolicyOpponent(policy_in(simulator), 5, greedy=False)
    simulator.seat_opponents([opponent])  # type: ignore[attr-defined]
    first = roll(simulator)
    assert torch.equal(roll(simulator), first)
    simulator.seat_opponents([PolicyOpponent(policy_in(simulator), 6, greedy=False)])  # type: ignore[attr-defined]
    assert not torch.equal(roll(simulator), first)


def test_sampled_moves_depend_on_the_number_of_the_question_and_greedy_ones_do_not() -> None:
    simulator = make("game:connect-four", 64)
    observation, policy = simulator.reset(0).clone(), policy_in(simulator)
    sampled, greedy = PolicyOpponent(policy, 5, greedy=False), PolicyOpponent(policy, 5, greedy=True)
    assert not torch.equal(sampled.act(observation, 1), sampled.act(observation, 2))
    assert torch.equal(sampled.act(observation, 1), sampled.act(observation, 1))
    assert torch.equal(greedy.act(observation, 1), greedy.act(observation, 2))


def test_a_seated_policy_changes_the_games_and_without_any_the_built_in_opponent_plays() -> None:
    simulator, plane = make("game:connect-four", 8), MemoryPlane()
    seats = OpponentSeats(simulator, "game:connect-four", torch.device("cpu"))
    alone = roll(simulator)
    slots = OpponentSlots(plane, "s", [OpponentPolicy(NETWORK, policy_in(simulator).flat, 1, "c")])
    with slots.reading() as messages:
        seats.seat(messages, Planes(plane), 3, greedy=True)
    assert not torch.equal(roll(simulator), alone)
    seats.clear()
    assert torch.equal(roll(simulator), alone)


@pytest.mark.parametrize(
    ("id", "network", "message"),
    [
        ("cartpole", NETWORK, r"environment 'cartpole': policies cannot play .* need a game of two players"),
        ("game:connect-four", NetworkSpec(hidden_sizes=(4,), recurrent_size=4), "a recurrent policy cannot play"),
    ],
)
def test_opponents_that_cannot_play_are_refused(id: str, network: NetworkSpec, message: str) -> None:
    seats = OpponentSeats(make(id, 2), id, torch.device("cpu"))
    with pytest.raises(InvalidArgument, match=message):
        seats.seat([pb.Opponent(policy=policy_message(network))], Planes(MemoryPlane()), 0, greedy=True)


def test_simulators_that_are_no_games_play_without_opponents() -> None:
    simulator = make("cartpole", 2)
    seats = OpponentSeats(simulator, "cartpole", torch.device("cpu"))
    seats.seat((), Planes(MemoryPlane()), 0, greedy=True)
    seats.clear()
    assert not is_game(simulator)
    assert is_game(make("game:tic-tac-toe", 1))


def test_a_seat_of_the_built_in_opponent_needs_no_policy() -> None:
    simulator, plane = make("game:connect-four", 8), MemoryPlane()
    seats = OpponentSeats(simulator, "game:connect-four", torch.device("cpu"))
    alone = roll(simulator)
    slots = OpponentSlots(plane, "s", [None, OpponentPolicy(NETWORK, policy_in(simulator).flat)])
    with slots.reading() as messages:
        assert [one.plane_uri for one in (ref.tensor for ref in references(messages))] == [
            messages[1].ref.tensor.plane_uri
        ]
        seats.seat(messages, Planes(plane), 3, greedy=True)
    mixed = simulator.reset(3)
    assert mixed.shape == (8, 91)
    together = roll(simulator)
    assert not torch.equal(together[:, 1::2], alone[:, 1::2])
