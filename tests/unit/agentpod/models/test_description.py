"""A manifest states everything that is needed to act with a policy, and its test vectors are what the policy does."""

import math

import pytest
import torch

from agentpod.models.description import (
    MOST_OBSERVATION_BYTES,
    describe,
    described_space,
    policy_of,
    space_description,
)
from agentpod.models.description import test_vectors as vectors_of
from agentpod.models.policy import NetworkSpec, Policy
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.manifest import manifest_bytes, manifest_from_bytes
from podrace.errors import InvalidArgument
from simulators.base import Space

VECTOR = Space("continuous", (3,), torch.float32, low=(-math.inf,) * 3, high=(1.0, 2.0, math.inf))
PICTURE = Space("continuous", (12, 12, 3), torch.uint8, low=(0.0,) * 432, high=(255.0,) * 432)
CHOICE = Space("discrete", (), torch.int64, n=4)
FORCE = Space("continuous", (2, 1), torch.float32, low=(-2.0, 0.0), high=(2.0, math.inf))

CASES = {
    "ppo": (VECTOR, FORCE, NetworkSpec()),
    "recurrent": (VECTOR, CHOICE, NetworkSpec((8,), recurrent_size=5)),
    "pixels": (PICTURE, CHOICE, NetworkSpec((8,), "relu", head="dueling", torso="small")),
    "plain": (VECTOR, CHOICE, NetworkSpec((), "elu", normalize_observations=False, head="values")),
}


def made(case: str) -> Policy:
    policy = Policy(*CASES[case])
    policy.initialize(torch.Generator().manual_seed(3), output_gain=1.0)
    if policy.normalizes:
        policy.set_statistics(torch.tensor([1.0, -2.0, 0.5]), torch.tensor([4.0, 0.01, 1.0]))
    return policy


@pytest.mark.parametrize("case", CASES)
def test_a_policy_rebuilt_from_its_manifest_acts_as_its_test_vectors_say(case: str) -> None:
    policy = made(case)
    manifest = Manifest(format_version=1, policies={"agent": describe(policy)})
    read = manifest_from_bytes(manifest_bytes(manifest)).policies["agent"]
    rebuilt = policy_of(read)
    assert {name: part.shape for name, part in rebuilt.tensors().items()} == {
        name: part.shape for name, part in policy.tensors().items()
    }
    rebuilt.load(policy.flat)
    vectors = vectors_of(policy)
    state = vectors.get("state", torch.empty(len(vectors["observation"]), 0))
    outputs, following = rebuilt.advance(vectors["observation"], state)
    assert torch.equal(outputs, vectors["outputs"])
    assert torch.equal(rebuilt.to_environment(rebuilt.head.mode(outputs)), vectors["action"])
    if rebuilt.state_size:
        assert torch.equal(following, vectors["next_state"])
        assert state.any()
        assert not state[0].any()


def test_the_scaling_of_actions_is_stated_element_by_element() -> None:
    scaling = describe(made("ppo")).action_scaling
    assert list(scaling.scale) == [2.0, 1.0]
    assert list(scaling.offset) == [0.0]
    assert list(scaling.minimum) == [-1.0, 0.0]
    assert list(scaling.maximum) == [1.0, math.inf]
    assert not describe(made("plain")).HasField("action_scaling")


@pytest.mark.parametrize(("case", "wanted"), [("ppo", "statistics"), ("pixels", "bytes"), ("plain", "none")])
def test_the_normalization_is_named(case: str, wanted: str) -> None:
    assert describe(made(case)).normalization == wanted


@pytest.mark.parametrize("space", [VECTOR, PICTURE, CHOICE, FORCE])
def test_a_space_survives_its_description(space: Space) -> None:
    assert described_space(space_description(space)) == space


def test_test_vectors_of_large_observations_have_few_rows() -> None:
    large = Space("continuous", (84, 84, 4), torch.uint8)
    observation = vectors_of(Policy(large, CHOICE, NetworkSpec((8,), torso="nature")))["observation"]
    assert len(observation) == 2
    assert observation.numel() <= MOST_OBSERVATION_BYTES


def test_steps_and_spaces_of_later_versions_are_refused() -> None:
    later = describe(made("ppo"))
    later.steps_version = 2
    with pytest.raises(InvalidArgument, match="version 2 of the steps: this build knows 1"):
        policy_of(later)
    other = describe(made("ppo"))
    other.action_space.kind = "quaternion"
    with pytest.raises(InvalidArgument, match="'quaternion': this build knows continuous, discrete"):
        policy_of(other)
