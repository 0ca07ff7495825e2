"""Copies the state of an agent at one policy version, encodes it as checkpoint files, and restores it from them.

A checkpoint has three parts. `policy` is exactly what the evaluator scored. `test_vectors` has inputs and outputs of
the policy, by which other implementations check themselves. `learner` is everything else that an exact resume needs,
except the state of the environments, which cannot be saved. The checkpoints of an off-policy agent also have the
optional parts of agentpod.learner.replay_files. No part holds random-number states: every stream is derived from the
agent's seed and the counters in the manifest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from google.protobuf.timestamp_pb2 import Timestamp
from torch import Tensor

from agentpod.algorithms.base import Algorithm
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_view import ReplayView
from agentpod.models.description import POLICY_PART, TEST_VECTORS_PART, describe_all, test_vectors
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest, Part
from podrace.checkpoint.v1.policy_pb2 import PolicyDescription
from podrace.errors import BAD_DIGEST, DataLoss
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.tensor_transport.codec import decode, digest, encode

LEARNER_PART = "learner"


@dataclass(frozen=True)
class Counters:
    """Progress of an agent."""

    environment_steps: int = 0
    """Environment steps of the agent itself, over all environments."""
    inherited_steps: int = 0
    """Environment steps behind the checkpoint that the agent started from."""
    rollouts: int = 0
    """Rollouts collected."""
    policy_version: int = 0
    """Updates of the policy."""
    training_seconds: float = 0.0
    """Wall-clock time of training in seconds."""
    core_seconds: float = 0.0
    """Training time multiplied by the number of processor cores."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Counters":
        """Returns the counters of an agent that continues from its own checkpoint."""
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
        """Returns the counters of a new agent that starts from the checkpoint of a parent."""
        return cls(inherited_steps=parent.lineage_environment_steps)

    @classmethod
    def continuing(cls, parent: Manifest) -> "Counters":
        """Returns the counters of an agent that continues a trial: random streams continue where they were."""
        return cls(
            inherited_steps=parent.lineage_environment_steps,
            rollouts=parent.rollouts,
            policy_version=parent.policy_version,
        )

    def after(self, *, steps: int, seconds: float, cores: float) -> "Counters":
        """Returns the counters after one more rollout and update."""
        return replace(
            self,
            environment_steps=self.environment_steps + steps,
            rollouts=self.rollouts + 1,
            policy_version=self.policy_version + 1,
            training_seconds=self.training_seconds + seconds,
            core_seconds=self.core_seconds + seconds * cores,
        )


@dataclass(frozen=True)
class Mate:
    """The checkpoint of a sibling of an agent's parent, which the agent's start may be averaged with."""

    parts: Mapping[str, bytes]
    """Checkpoint files by name."""
    note: str
    """Which checkpoint it is, for the log."""


@dataclass(frozen=True)
class StartingState:
    """The state that an agent starts from under one lease."""

    counters: Counters = field(default_factory=Counters)
    parts: dict[str, bytes] = field(default_factory=dict)
    """Checkpoint files by name; empty for new networks."""
    replay: tuple[Part, ...] = ()
    """Stored pieces of the replay memory; none if it starts empty."""
    mates: tuple[Mate, ...] = ()
    """Siblings of the parent, whose average with it may be the start instead."""
    scored: bool = False
    """Whether this very policy of the agent was published with its score."""
    note: str = "new networks"
    """Where the state comes from, for the log."""


@dataclass(frozen=True)
class PolicyCopy:
    """A copy of one policy version; later updates do not change it."""

    counters: Counters
    policy: Mapping[str, Tensor]
    descriptions: Mapping[str, PolicyDescription]
    """Of each policy, by the name of its agent; see Manifest.policies."""

    def encoded(self) -> bytes:
        """Returns the `policy` part, the only one of a snapshot."""
        return encode(self.policy, {})


@dataclass(frozen=True)
class FrozenState:
    """A copy of one policy version and the learner state that belongs to it; later updates do not change it."""

    counters: Counters
    policy: Mapping[str, Tensor]
    descriptions: Mapping[str, PolicyDescription]
    test_vectors: Mapping[str, Tensor]
    learner: Mapping[str, Tensor]
    replay: ReplayView | None = None
    """The replay memory as it was: a view of its segments, not a copy. What is overwritten before it is stored is
    missing from the checkpoint."""

    def parts(self) -> dict[str, bytes]:
        """Returns the encoded parts of the checkpoint by name."""
        return {
            POLICY_PART: encode(self.policy, {}),
            TEST_VECTORS_PART: encode(self.test_vectors, {}),
            LEARNER_PART: encode(self.learner, {}),
        }

    def manifest(
        self, agent: Agent, *, previous_manifest_digest: str, evaluation: Evaluation | None, now: float
    ) -> Manifest:
        """Returns the manifest to publish. The store adds the parts, the agent id and the lease epoch.

        Args:
            agent: The agent.
            previous_manifest_digest: Digest of the agent's previous manifest; empty if there is none.
            evaluation: Score of this policy, if it was evaluated.
            now: Wall-clock time in seconds since 1970.

        Raises:
            DataLoss: The evaluation scored another policy than this one.
        """
        if evaluation and evaluation.policy_digest != digest(encode(self.policy, {})):
            raise DataLoss(
                f"agent {agent.agent_id}: policy version {self.counters.policy_version} was sent to the evaluator, but"
                " another policy was scored: the plane between learner and evaluator corrupted it",
                reason=BAD_DIGEST,
            )
        manifest = manifest_of(agent, self.counters, self.descriptions, now)
        manifest.previous_manifest_digest = previous_manifest_digest
        if evaluation:
            manifest.evaluation.CopyFrom(evaluation)
        return manifest


def manifest_of(
    agent: Agent, counters: Counters, descriptions: Mapping[str, PolicyDescription], now: float
) -> Manifest:
    """Returns a manifest with the facts about the agent, its policies and its counters; `now` is in s since 1970."""
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
        policies=descriptions,
    )


def copy_policy(algorithm: Algorithm, counters: Counters) -> PolicyCopy:
    """Copies the policy, and nothing else of the algorithm."""
    tensors = algorithm.policy.tensors()
    descriptions = describe_all(algorithm.policy)
    for description in descriptions.values():
        description.ClearField("test_vectors_part")
    return PolicyCopy(counters, {name: tensor.detach().clone() for name, tensor in tensors.items()}, descriptions)


def freeze(
    algorithm: Algorithm,
    counters: Counters,
    replay: ReplayBuffer | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> FrozenState:
    """Copies the state of an algorithm.

    Args:
        algorithm: The algorithm.
        counters: Progress of its agent.
        replay: Replay memory to publish with the copy; nothing may be granted or received meanwhile.
        extra: More tensors to copy into the `learner` part.
    """
    policy, own = copy_policy(algorithm, counters).policy, algorithm.policy
    copies = {name: tensor.detach().clone() for name, tensor in (extra or {}).items()}
    view = ReplayView.of(replay) if replay else None
    learner = algorithm.state_dict() | copies
    return FrozenState(counters, policy, describe_all(own), test_vectors(own), learner, view)


def restore(algorithm: Algorithm, parts: Mapping[str, bytes]) -> Mapping[str, Tensor]:
    """Loads checkpoint files into an algorithm. The hyperparameters of the algorithm do not change.

    Returns:
        The tensors of the `learner` part, including those that are not the algorithm's.

    Raises:
        DataLoss: A part is missing, cannot be read, or belongs to a policy of another shape.
        InvalidArgument: The state belongs to networks of another shape.
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
    """Copies tensors into those of the same name.

    Raises:
        DataLoss: Names or shapes differ.
    """
    if {name: tensor.shape for name, tensor in target.items()} != {
        name: tensor.shape for name, tensor in source.items()
    }:
        raise DataLoss(
            "the policy in the checkpoint has other tensors than the one of this environment: spaces or layers differ"
        )
    for name, tensor in target.items():
        tensor.copy_(source[name])
