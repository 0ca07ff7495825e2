"""An agent trains against itself, its past, or the candidates of the board, drawn again after every few rollouts."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import torch

from agentpod.learner.evaluation_job import PublishedPolicy
from agentpod.learner.opponents.candidates import opponents_of
from agentpod.learner.opponents.training import Past, TrainingOpponents
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.session.opponents import OpponentPolicy
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Manifest
from podrace.leaderboard.v1.leaderboard_pb2 import PlanEvaluationResponse
from podrace.tournament.v1.tournament_pb2 import OpponentsSpec, TournamentSpec
from simulators import make

NETWORK = NetworkSpec(hidden_sizes=(4,))
SIMULATOR = make("game:tic-tac-toe", 1)
SPACES = SIMULATOR.observation_space, SIMULATOR.action_space
PARAMETERS = Policy(*SPACES, NETWORK).flat.numel()


def published(name: str, network: NetworkSpec = NETWORK) -> PublishedPolicy:
    manifest = Manifest(agent_id=name, policy_version=3)
    return PublishedPolicy(name, manifest, network, Policy(*SPACES, network).tensors())


class Pod:
    """Roles, checkpoints and lease of an agent; remembers the opponents."""

    def __init__(self, *candidates: str) -> None:
        self.spaces, self.seated = SPACES, list[Sequence[OpponentPolicy]]()
        self.evaluation_epoch, self._candidates = 0, candidates

    def seat_opponents(self, policies: Sequence[OpponentPolicy]) -> None:
        self.seated.append(policies)

    async def plan_evaluation(self, epoch: int) -> PlanEvaluationResponse:
        checkpoints = [Checkpoint(agent_id=name, manifest_digest=name) for name in self._candidates]
        return PlanEvaluationResponse(training_opponents=checkpoints)

    async def read_opponents(self, checkpoints: Sequence[Checkpoint]) -> list[PublishedPolicy]:
        return [published(one.manifest_digest) for one in checkpoints]


def opponents(pod: Any, training: str, **settings: int) -> TrainingOpponents:
    section = OpponentsSpec(training=training, **{"count": 3, "every_rollouts": 2, **settings})
    return TrainingOpponents(pod, pod, pod, TournamentSpec(opponents=section), seed=1)


def draw(drawn: TrainingOpponents, rollouts: int) -> None:
    drawn.draw_if_due(NETWORK, torch.full((PARAMETERS,), float(rollouts)), rollouts, rollouts)


def test_self_play_is_against_every_current_policy() -> None:
    pod = Pod()
    drawn = opponents(pod, "self")
    for rollouts in range(3):
        draw(drawn, rollouts)
    assert [[one.version for one in seated] for seated in pod.seated] == [[0], [1], [2]]
    assert [float(seated[0].flat[0]) for seated in pod.seated] == [0.0, 1.0, 2.0]


def test_the_past_is_drawn_again_after_every_few_rollouts() -> None:
    pod = Pod()
    drawn = opponents(pod, "past")
    for rollouts in range(60):
        draw(drawn, rollouts)
    assert len(pod.seated) == 30
    assert all(len(seated) == 3 for seated in pod.seated)
    versions = [one.version for one in pod.seated[-1]]
    assert set(versions) <= set(range(0, 60, 2))


def test_all_past_policies_are_kept_with_equal_probability() -> None:
    counts: Counter[int] = Counter()
    for seed in range(400):
        random, past = Random(seed), Past(capacity=4)
        for version in range(12):
            past.add(OpponentPolicy(NETWORK, torch.zeros(1), version), random)
        counts.update(one.version for one in past.draw(4, random))
    # 1,600 draws of 12 versions.
    assert all(80 < counts[version] < 190 for version in range(12))


async def test_the_board_is_read_in_the_background_and_until_then_the_agent_plays_against_itself() -> None:
    pod = Pod("c0", "c1", "c2", "c3", "c4")
    drawn = opponents(pod, "board")
    draw(drawn, 0)
    assert [one.candidate_id for one in pod.seated[0]] == [""]
    for _ in range(10):
        await asyncio.sleep(0)
    draw(drawn, 2)
    names = [one.candidate_id for one in pod.seated[1]]
    assert len(set(names)) == 3
    assert set(names) <= {"c0", "c1", "c2", "c3", "c4"}
    await drawn.close()


async def test_an_empty_board_leaves_the_agent_itself_as_opponent() -> None:
    pod = Pod()
    drawn = opponents(pod, "board")
    for rollouts in (0, 2, 4):
        draw(drawn, rollouts)
        for _ in range(10):
            await asyncio.sleep(0)
    assert [[one.version for one in seated] for seated in pod.seated] == [[0], [2], [4]]
    await drawn.close()


def test_candidates_that_cannot_play_are_left_out_and_named(log_lines: Any) -> None:
    recurrent = published("r", NetworkSpec(hidden_sizes=(4, 4), recurrent_size=4))
    code = SimpleNamespace(**vars(published("u")))
    code.network = NetworkSpec(network_class="python:a:B")
    wide = published("w")
    wide = PublishedPolicy("w", wide.manifest, NetworkSpec(hidden_sizes=(5,)), wide.tensors)
    found = opponents_of([recurrent, code, wide, published("ok")], SPACES, TournamentSpec())  # type: ignore[list-item]
    assert [one.candidate_id for one in found] == ["ok"]


def test_the_built_in_opponent_takes_its_seats_and_the_other_seats_are_shared_equally() -> None:
    pod = Pod()
    drawn = opponents(pod, "self", count=4, built_in=1)
    draw(drawn, 0)
    assert [one and one.version for one in pod.seated[0]] == [0, 0, 0, None]
