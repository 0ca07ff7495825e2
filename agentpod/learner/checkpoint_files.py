"""The training files of an agent: frozen in memory at one policy version, encoded, and restored.

A checkpoint has two parts: `policy` (exactly what the evaluator scored) and `learner` (everything else an exact resume
needs but the environments, which nobody can freeze), and where an assignment ends those of
agentpod.learner.replay_files.
Random states are in none: every stream is derived from the agent's seed and the counters in the manifest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from google.protobuf.timestamp_pb2 import Timestamp
from torch import Tensor

from agentpod.algorithms.base import Algorithm
from agentpod.experience.replay_buffer import ReplayBuffer
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest
from podrace.errors import DataLoss
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.tensor_transport.codec import decode, digest, encode

POLICY_PART = "policy"
LEARNER_PART = "learner"


@dataclass(frozen=True)
class Counters:
    """How far an agent has come."""

    environment_steps: int = 0
    """Its own, over all environments."""
    inherited_steps: int = 0
    """Those behind the checkpoint it started from."""
    rollouts: int = 0
    """Rollouts collected."""
    policy_version: int = 0
    """Updates."""
    training_seconds: float = 0.0
    """Wall clock."""
    core_seconds: float = 0.0
    """Processor cores times wall clock."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Counters":
        """Where a checkpoint of the agent itself left off."""
        return cls(
            environment_steps=manifest.environment_steps,
            inherited_steps=manifest.lineage_environment_steps - manifest.environment_steps,
            rollouts=manifest.rollouts,
            policy_version=manifest.policy_version,
            training_seconds=manifest.training_seconds,
            core_seconds=manifest.core_seconds,
        )

    @classmethod
    def inheriting(cls, parent: Manifest) -> "Counters":
        """Where a child of the parent's checkpoint begins."""
        return cls(inherited_steps=parent.lineage_environment_steps)

    def after(self, *, steps: int, seconds: float, cores: float) -> "Counters":
        """One rollout and one update later."""
        return replace(
            self,
            environment_steps=self.environment_steps + steps,
            rollouts=self.rollouts + 1,
            policy_version=self.policy_version + 1,
            training_seconds=self.training_seconds + seconds,
            core_seconds=self.core_seconds + seconds * cores,
        )


@dataclass(frozen=True)
class PolicyCopy:
    """A policy version alone; later updates do not touch it."""

    counters: Counters
    policy: Mapping[str, Tensor]

    def encoded(self) -> bytes:
        """The part that a snapshot has."""
        return encode(self.policy, {})


@dataclass(frozen=True)
class FrozenState:
    """One policy version with everything that belongs to it; later updates do not touch it."""

    counters: Counters
    policy: Mapping[str, Tensor]
    learner: Mapping[str, Tensor]
    replay: ReplayBuffer | None = None
    """The memory itself, not a copy: only where nothing writes into it until it is published."""

    def parts(self) -> dict[str, bytes]:
        """The training files."""
        return {POLICY_PART: encode(self.policy, {}), LEARNER_PART: encode(self.learner, {})}

    def manifest(
        self, agent: Agent, *, previous_manifest_digest: str, evaluation: Evaluation | None, now: float
    ) -> Manifest:
        """What is to be published; the store fills in parts, agent and epoch.

        Raises:
            DataLoss: The evaluation was earned by another policy than the one frozen here.
        """
        if evaluation and evaluation.policy_digest != digest(encode(self.policy, {})):
            raise DataLoss(
                f"agent {agent.agent_id}: policy version {self.counters.policy_version} was sent to the evaluator, and"
                " it scored another one: the plane between them is damaged",
                reason="ERROR_REASON_BAD_DIGEST",
            )
        manifest = manifest_of(agent, self.counters, now)
        manifest.previous_manifest_digest = previous_manifest_digest
        if evaluation:
            manifest.evaluation.CopyFrom(evaluation)
        return manifest


def manifest_of(agent: Agent, counters: Counters, now: float) -> Manifest:
    """What can be said of an agent that has come so far, at a wall time in seconds since 1970."""
    publish_time = Timestamp()
    publish_time.FromNanoseconds(int(now * 1e9))
    return Manifest(
        tournament_id=agent.tournament_id,
        algorithm=agent.algorithm,
        hyperparameters=agent.hyperparameters,
        environment_steps=counters.environment_steps,
        lineage_environment_steps=counters.inherited_steps + counters.environment_steps,
        policy_version=counters.policy_version,
        rollouts=counters.rollouts,
        seed=agent.seed,
        training_seconds=counters.training_seconds,
        core_seconds=counters.core_seconds,
        publish_time=publish_time,
    )


def copy_policy(algorithm: Algorithm, counters: Counters) -> PolicyCopy:
    """Copies what acts."""
    tensors = algorithm.policy.tensors()
    return PolicyCopy(counters, {name: tensor.detach().clone() for name, tensor in tensors.items()})


def freeze(
    algorithm: Algorithm,
    counters: Counters,
    replay: ReplayBuffer | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> FrozenState:
    """Copies everything the algorithm knows, and live tensors `beside` it; a replay memory is referred to."""
    policy = copy_policy(algorithm, counters).policy
    copies = {name: tensor.detach().clone() for name, tensor in (beside or {}).items()}
    return FrozenState(counters, policy, algorithm.state_dict() | copies, replay)


def restore(algorithm: Algorithm, parts: Mapping[str, bytes]) -> Mapping[str, Tensor]:
    """Puts training files back into an algorithm; its hyperparameters stay its own.

    Returns:
        The state of the learner, with whatever lay beside the algorithm's.

    Raises:
        DataLoss: A part is missing or cannot be read.
        InvalidArgument: The files belong to a network of another shape.
    """
    for name in (POLICY_PART, LEARNER_PART):
        if name not in parts:
            raise DataLoss(f"the checkpoint has no part {name!r}, only {', '.join(sorted(parts))}")
    load_policy(algorithm.policy.tensors(), decode(parts[POLICY_PART])[0])
    algorithm.policy.load(algorithm.policy.flat.clone())
    state, _ = decode(parts[LEARNER_PART])
    algorithm.load_state_dict(state)
    algorithm.begin_episodes()
    return state


def load_policy(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Copies named tensors into a policy's views.

    Raises:
        DataLoss: Names or shapes differ.
    """
    if {name: tensor.shape for name, tensor in target.items()} != {
        name: tensor.shape for name, tensor in source.items()
    }:
        raise DataLoss(
            "the policy in the checkpoint has other tensors than the one that is to act: spaces or layers differ"
        )
    for name, tensor in target.items():
        tensor.copy_(source[name])
