"""Lets policies play against the agent in a simulator of games, and counts who won."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentpod.models.messages import network_spec
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.slot_checks import open_policy
from agentpod.seeding import derive_seed
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.checkpoint.v1.checkpoint_pb2 import MatchResult
from podrace.errors import BAD_SPEC, InvalidArgument
from podrace.tensor_transport.plane import Planes
from simulators import Simulator
from simulators.base import AcceptsOpponents


class PolicyOpponent:
    """Plays with one policy. See simulators.base.Opponent."""

    def __init__(self, policy: Policy, seed: int, *, greedy: bool) -> None:
        """Plays from the first question on.

        Args:
            policy: Not recurrent.
            seed: Seed of sampled moves.
            greedy: Whether to take the most likely move instead of sampling one.
        """
        self._policy, self._seed, self._greedy = policy, seed, greedy
        self._generator = torch.Generator(policy.flat.device)

    def act(self, observation: Tensor, turn: int) -> Tensor:
        """See simulators.base.Opponent."""
        policy, lanes = self._policy, len(observation)
        outputs, _ = policy.advance(observation, policy.initial_state(lanes))
        if self._greedy:
            return policy.to_environment(policy.head.mode(outputs))
        self._generator.manual_seed(derive_seed(self._seed, "opponent", turn))
        return policy.to_environment(policy.head.sample(outputs, policy.noise((lanes,), self._generator)))


class OpponentSeats:
    """The opponents in the simulator of a role.

    Keeps the networks of opponents between two calls, and loads their parameters in each of them.
    """

    def __init__(self, simulator: Simulator, environment: str, device: torch.device) -> None:
        """Seats no policy.

        Args:
            simulator: The environments of the role.
            environment: Their id, for error messages.
            device: Device that policies compute on.
        """
        self._simulator, self._environment, self._device = simulator, environment, device
        self._policies: dict[tuple[int, NetworkSpec], Policy] = {}

    def clear(self) -> None:
        """Lets the built-in opponent play, if the simulator is a game."""
        if isinstance(self._simulator, AcceptsOpponents):
            self._simulator.seat_opponents(())

    def seat(self, opponents: Sequence[pb.Opponent], planes: Planes, seed: int, *, greedy: bool) -> None:
        """Replaces all opponents; without any, the built-in opponent of the simulator plays.

        Args:
            opponents: From a request.
            planes: Where their parameters are.
            seed: Seed of sampled moves.
            greedy: Whether opponents take the most likely move.

        Raises:
            InvalidArgument: The simulator is not a game of two players, or an opponent cannot act in it.
        """
        simulator = self._simulator
        if not isinstance(simulator, AcceptsOpponents):
            if opponents:
                raise InvalidArgument(
                    f"environment {self._environment!r}: policies cannot play against the agent there; the settings"
                    " [opponents] need a game of two players (game:...) without wrappers",
                    reason=BAD_SPEC,
                )
            return
        seated: list[PolicyOpponent | None] = []
        for number, one in enumerate(opponents):
            if not one.HasField("policy"):
                seated.append(None)
                continue
            policy = self._policy(number, network_spec(one.policy))
            policy.load(open_policy(planes, one.ref))
            seated.append(PolicyOpponent(policy, derive_seed(seed, "seat", number), greedy=greedy))
        simulator.seat_opponents(seated)

    def _policy(self, number: int, network: NetworkSpec) -> Policy:
        if network.recurrent_size:
            raise InvalidArgument("opponents: a recurrent policy cannot play against the agent")
        if (number, network) not in self._policies:
            # The network at a seat changes rarely, so that only the last one is kept.
            self._policies = {key: policy for key, policy in self._policies.items() if key[0] != number}
            spaces = self._simulator.observation_space, self._simulator.action_space
            self._policies[number, network] = Policy(*spaces, network, device=self._device)
        return self._policies[number, network]


def references(opponents: Sequence[pb.Opponent]) -> list[pb.PolicyRef]:
    """Returns the references to the policies among opponents; the built-in opponent has none."""
    return [one.ref for one in opponents if one.HasField("policy")]


def is_game(simulator: Simulator) -> bool:
    """Returns whether policies can play against the agent in a simulator."""
    return isinstance(simulator, AcceptsOpponents)


def match_results(returns: Tensor, first_episode: int, lanes: int, opponents: Sequence[str]) -> list[MatchResult]:
    """Counts wins, draws and losses against each opponent.

    Args:
        returns: Return of each game, [E], in the order of their numbers.
        first_episode: Number of the first game.
        lanes: Games that are played at the same time; game i is that of lane i mod lanes.
        opponents: Candidate that each seat is; empty: the built-in opponent has all seats.
    """
    names = list(opponents) or [""]
    counts: Mapping[str, list[int]] = {name: [0, 0, 0] for name in names}
    for index, value in enumerate(returns.tolist()):
        seat = (first_episode + index) % lanes % len(names)
        counts[names[seat]][0 if value > 0 else 1 if value == 0 else 2] += 1
    return [
        MatchResult(opponent_candidate_id=name, wins=won, draws=drawn, losses=lost)
        for name, (won, drawn, lost) in counts.items()
        if won + drawn + lost
    ]
