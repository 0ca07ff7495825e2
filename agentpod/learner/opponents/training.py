"""Chooses the policies that an agent trains against (`opponents.training`).

`self` is self-play. `past` is fictitious self-play: a uniform sample of all versions that were current when opponents
were drawn (reservoir sampling, Vitter 1985, algorithm R). `board` is population play: candidates of all agents.
"""

import asyncio
from collections.abc import Sequence
from random import Random

import structlog
from torch import Tensor

from agentpod.learner.interfaces import CheckpointAccess, LeaseStatus
from agentpod.learner.opponents.candidates import opponents_of
from agentpod.models.policy import NetworkSpec
from agentpod.seeding import derive_seed
from agentpod.session.opponents import OpponentPolicy
from agentpod.session.session import Roles
from podrace.specification.known.opponents import BOARD, PAST, SELF
from podrace.tasks import cancel_all
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

_log = structlog.get_logger(__name__)
MOST_PAST = 32
"""Policies of its own past that an agent keeps."""


class Past:
    """A uniform sample of the policies that were added."""

    def __init__(self, capacity: int = MOST_PAST) -> None:
        self._kept: list[OpponentPolicy] = []
        self._capacity, self._added = capacity, 0

    def add(self, policy: OpponentPolicy, random: Random) -> None:
        """Adds a policy, which may take the place of an earlier one."""
        self._added += 1
        if len(self._kept) < self._capacity:
            self._kept.append(policy)
        elif (place := random.randrange(self._added)) < self._capacity:
            self._kept[place] = policy

    def draw(self, count: int, random: Random) -> list[OpponentPolicy]:
        """Returns policies, each drawn with equal probability from those that are kept."""
        return random.choices(self._kept, k=count)


class TrainingOpponents:
    """Draws the opponents of an agent again after every few rollouts.

    opponents = TrainingOpponents(roles, checkpoints, lease, spec, seed)
    opponents.draw_if_due(network, flat, version, rollouts)      # before the first rollout and after each update
    await opponents.close()
    """

    def __init__(
        self, roles: Roles, checkpoints: CheckpointAccess, lease: LeaseStatus, spec: TournamentSpec, seed: int
    ) -> None:
        """Draws nothing yet.

        Args:
            roles: Whose workers play against the opponents.
            checkpoints: Where the policies of candidates come from.
            lease: Of the agent.
            spec: Resolved specification of the tournament, with `opponents.training` other than `built-in`.
            seed: Seed of the agent.
        """
        self._roles, self._checkpoints, self._lease, self._spec, self._seed = roles, checkpoints, lease, spec, seed
        self._past = Past()
        self._due = 0
        self._candidates: list[OpponentPolicy] = []
        self._reading: asyncio.Task[list[OpponentPolicy]] | None = None

    def draw_if_due(self, network: NetworkSpec, flat: Tensor, version: int, rollouts: int) -> None:
        """Draws opponents if enough rollouts were collected since the last time.

        Args:
            network: Network of the agent's policy.
            flat: Its current parameters, which are copied.
            version: Its policy version.
            rollouts: Rollouts of the agent so far.
        """
        settings = self._spec.opponents
        # Self-play is against the current policy, so each of its versions is played against.
        if rollouts < self._due and settings.training != SELF:
            return
        self._due = rollouts + settings.every_rollouts
        random = Random(derive_seed(self._seed, "opponents", rollouts))
        current = OpponentPolicy(network, flat.detach().clone(), version)
        policies = settings.count - settings.built_in
        drawn = list(self._drawn(current, settings.training, policies, random))
        # Each seat has as many environments as the others, so a policy that is drawn alone takes several seats.
        seated = [drawn[index % len(drawn)] for index in range(policies if settings.built_in else len(drawn))]
        self._roles.seat_opponents([*seated, *[None] * settings.built_in])

    def _drawn(self, current: OpponentPolicy, training: str, count: int, random: Random) -> Sequence[OpponentPolicy]:
        if training == PAST:
            self._past.add(current, random)
            return self._past.draw(count, random)
        if training == BOARD:
            self._take_candidates()
            self._reading = self._reading or asyncio.create_task(self._read(Random(random.random())))
            return self._candidates or [current]
        return [current]

    def _take_candidates(self) -> None:
        """Takes the candidates that were read since the last call; training never waits for the store."""
        if self._reading and self._reading.done():
            reading, self._reading = self._reading, None
            # What cannot be read is not an error of the training; other errors are defects and surface here.
            self._candidates = reading.result() or self._candidates

    async def _read(self, random: Random) -> list[OpponentPolicy]:
        plan = await self._checkpoints.plan_evaluation(self._lease.evaluation_epoch)
        possible = list(plan.training_opponents) if plan else []
        chosen = random.sample(possible, min(self._spec.opponents.count - self._spec.opponents.built_in, len(possible)))
        published = await self._checkpoints.read_opponents(chosen)
        return opponents_of(published, self._roles.spaces, self._spec)

    async def close(self) -> None:
        """Stops reading."""
        if self._reading:
            await cancel_all(self._reading)
