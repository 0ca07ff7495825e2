"""The ONNX graph of every kind of policy acts as the torch policy does, and the package onnx reads its file."""

import numpy as np
import onnx
import pytest
import torch
from policies import CASES, published

from agentpod.models.actors import EnsembleActor, PolicyActor
from agentpod.models.cnn import TORSOS
from agentpod.models.description import random_observations
from podrace.errors import DataLoss, InvalidArgument
from podrace.policy.graph import STRIDES
from podrace.policy.loading import onnx_file, policy_of
from podrace.policy.runtime import ACTION_TOLERANCE, Policy, difference
from podrace.policy.tensor_file import read_tensors

LANES, STEPS = 32, 100


@pytest.mark.parametrize("case", CASES)
def test_a_graph_acts_as_the_torch_policy_over_many_steps(case: str) -> None:
    made = published(case)
    policy = Policy(onnx_file([made.checkpoint]))
    generator = torch.Generator().manual_seed(1)
    state, carried = made.policy.initial_state(LANES), np.zeros((LANES, policy.state_size), np.float32)
    for _ in range(STEPS if policy.state_size else 2):
        observation = random_observations(made.policy, LANES, generator)
        outputs, state = made.policy.advance(observation, state)
        wanted = made.policy.to_environment(made.policy.head.mode(outputs))
        found = policy.run(observation.numpy(), carried)
        carried = found.get("next_state", carried)
        assert np.abs(found["outputs"] - outputs.numpy()).max() < 1e-4
        assert found["action"].shape == wanted.shape
        assert difference(policy.members[0], found["action"], wanted.numpy(), outputs.numpy()) <= ACTION_TOLERANCE


@pytest.mark.parametrize(
    "case", ["gaussian", "recurrent", "pixels-first", "dict", "dict-pair", "dict-dueling", "flags"]
)
def test_the_file_is_valid_onnx(case: str) -> None:
    model = onnx.load_from_string(onnx_file([published(case).checkpoint]))
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 17


def test_strides_are_those_of_the_torsos() -> None:
    assert {name: tuple(layer.stride for layer in layers) for name, layers in TORSOS.items()} == dict(STRIDES)


@pytest.mark.parametrize(
    "case", ["gaussian", "recurrent", "recurrent-force", "logits", "dict", "dict-pair", "grid", "flags"]
)
def test_an_ensemble_acts_as_the_evaluator_does(case: str) -> None:
    members = [published(case, seed) for seed in range(3)]
    policy = policy_of([member.checkpoint for member in members])
    generator = torch.Generator()
    actors = [PolicyActor(member.policy, LANES, generator, greedy=True) for member in members]
    space = members[0].policy.action_space
    together = EnsembleActor(actors, space.most_choices)
    for _ in range(4):
        observation = random_observations(members[0].policy, LANES, generator)
        wanted = together.act(observation).numpy()
        found = policy.act(observation.numpy())
        if space.kind != "continuous":
            assert (found == wanted).all()
        else:
            assert np.abs(found - wanted).max() < 1e-5


def test_a_changed_parameter_is_found_by_the_test_vectors() -> None:
    made = published("gaussian")
    policy_of([made.checkpoint])
    tensors = made.policy.tensors()
    tensors["actor.2.bias"] += 0.01
    other = published("gaussian")
    vectors = read_tensors(other.checkpoint.parts["test_vectors"]) | {"action": np.zeros((8, 2, 1), np.float32)}
    with pytest.raises(DataLoss, match="does not act as its test vectors say"):
        Policy(onnx_file([other.checkpoint])).check(vectors)


def test_members_with_other_spaces_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="different observations or actions"):
        onnx_file([published("gaussian").checkpoint, published("logits").checkpoint])


def test_an_unknown_head_is_refused() -> None:
    made = published("gaussian").checkpoint
    made.manifest.policies["agent"].head = "quantiles"
    with pytest.raises(InvalidArgument, match="head 'quantiles'"):
        onnx_file([made])


def test_a_policy_file_without_a_tensor_is_refused() -> None:
    made = published("gaussian").checkpoint
    made.manifest.policies["agent"].normalization = "none"
    made.manifest.policies["agent"].recurrent_size = 4
    with pytest.raises(DataLoss, match=r"has no tensor 'actor\.recurrent\.state_weight'"):
        onnx_file([made])
