"""Tests convolutional networks against torch.nn and autograd in float64."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from exactness import one_thread as one_thread
from experience import CASES, FOR_TEAMS, SPACES, small
from learning import evaluate, train
from torch import Tensor, nn

from agentpod.models import cnn
from agentpod.models.cnn import TORSOS, image_layout
from agentpod.models.factory import NetworkFactory
from agentpod.models.messages import network_spec, policy_message
from agentpod.models.mlp import FeedForward, element_count, flat_views
from agentpod.models.policy import NetworkSpec, Policy, policy_shapes
from podrace.errors import InvalidArgument
from simulators.base import Space
from simulators.messages import space_message, space_of

MODULES = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}
SHAPES = {"small": (2, 9, 10), "nature": (3, 40, 36)}
PICTURES = [(name, last) for name in SHAPES for last in (False, True)]
EXTRA, OUTPUTS, BATCH, MEMBERS = 2, 3, 5, 3
SEEING: dict[str, dict[str, object]] = {
    "ppo": {
        "hidden_sizes": [32],
        "activation": "relu",
        "horizon": 32,
        "minibatch_size": 256,
        "learning_rate": 2e-3,
    },
    "dqn": {
        "hidden_sizes": [32],
        "horizon": 4,
        "batch_size": 64,
        "updates_per_step": 0.0625,
        "learning_rate": 1e-3,
        "discount": 0.5,
        "exploration_steps": 5000,
        "replay_capacity": 20_000,
    },
}


def pictures(shape: tuple[int, ...], *, channels_last: bool = False) -> Space:
    return Space("continuous", (*shape[1:], shape[0]) if channels_last else shape, torch.uint8)


def network_factory(torso: str, activation: str = "tanh", *, channels_last: bool = False) -> NetworkFactory:
    return NetworkFactory(pictures(SHAPES[torso], channels_last=channels_last), (6,), activation, torso)


def new_network(
    plan: NetworkFactory, *, extra: int = 0, members: int = 0
) -> tuple[FeedForward, FeedForward, dict[str, Tensor], dict[str, Tensor]]:
    """Returns a random float64 network, the same network over a gradient buffer, and both networks' tensors by name."""
    shapes = plan.shapes("net", OUTPUTS, extra=extra, members=members)
    flat = torch.randn(element_count(shapes), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.2
    tensors, gradients = flat_views(flat, shapes), flat_views(torch.full_like(flat, math.nan), shapes)
    return plan.make_feedforward("net", tensors), plan.make_feedforward("net", gradients), tensors, gradients


def random_inputs(plan: NetworkFactory, extra: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    seen = torch.randint(256, (BATCH, math.prod(plan.observation_space.shape)), generator=generator).double()
    return torch.cat((seen, torch.randn(BATCH, extra, dtype=torch.float64, generator=generator)), 1)


def reference(plan: NetworkFactory, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Returns [B, outputs] of a single network, computed as PolicySpec in the protos describes it."""
    shape, activate = plan.observation_space.shape, MODULES[plan.activation]()
    picture, extra = inputs[:, : math.prod(shape)].view(-1, *shape), inputs[:, math.prod(shape) :]
    hidden = picture.permute(0, 3, 1, 2) / 255 if shape[2] < shape[0] else picture / 255
    for i, (_, _, stride) in enumerate(TORSOS[plan.torso]):
        hidden = nn.functional.conv2d(
            hidden, tensors[f"net.torso.{i}.weight"], tensors[f"net.torso.{i}.bias"], stride=stride
        )
        hidden = activate(hidden)
    hidden = torch.cat((hidden.reshape(len(inputs), -1), extra), 1)
    hidden = activate(nn.functional.linear(hidden, tensors["net.0.weight"], tensors["net.0.bias"]))
    return nn.functional.linear(hidden, tensors["net.1.weight"], tensors["net.1.bias"])


def leaves(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("activation", MODULES)
@pytest.mark.parametrize(("torso", "channels_last"), PICTURES)
def test_outputs_and_gradients_are_those_of_torch(torso: str, channels_last: bool, activation: str) -> None:
    plan = network_factory(torso, activation, channels_last=channels_last)
    network, twin, tensors, gradients = new_network(plan, extra=EXTRA)
    inputs, parameters = random_inputs(plan, EXTRA).requires_grad_(), leaves(tensors)
    expected = reference(plan, parameters, inputs)
    direction = torch.randn(BATCH, OUTPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    input_gradient, *found = torch.autograd.grad((expected * direction).sum(), [inputs, *parameters.values()])
    with torch.no_grad():
        trace = network.trace(inputs)
        assert_close(trace[-1], expected)
        assert_close(network.forward(inputs), expected)
        network.backward(direction.clone(), trace, twin)
        for name, gradient in zip(parameters, found, strict=True):
            assert_close(gradients[name], gradient)
        pixels = inputs.shape[1] - EXTRA
        for part in (slice(None), slice(pixels, None), slice(pixels + 1, pixels + 2), slice(3, pixels + 1)):
            assert_close(network.input_gradient(direction.clone(), trace, part), input_gradient[:, part])


@pytest.mark.parametrize("extra", [0, EXTRA])
def test_every_member_of_an_ensemble_has_its_own_convolutions(extra: int) -> None:
    plan = network_factory("small")
    network, twin, tensors, gradients = new_network(plan, extra=extra, members=MEMBERS)
    inputs = random_inputs(plan, extra)
    direction = torch.randn(MEMBERS, BATCH, OUTPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    trace = network.trace(inputs)
    assert trace[-1].shape == (MEMBERS, BATCH, OUTPUTS)
    network.backward(direction.clone(), trace, twin)
    whole = network.input_gradient(direction.clone(), trace)
    beyond = network.input_gradient(direction.clone(), trace, slice(inputs.shape[1] - extra, None))
    for member in range(MEMBERS):
        parameters, seen = leaves({name: tensor[member] for name, tensor in tensors.items()}), inputs.clone()
        expected = reference(plan, parameters, seen.requires_grad_())
        assert_close(trace[-1][member], expected)
        assert_close(network.member(member).forward(inputs), expected)
        input_gradient, *found = torch.autograd.grad((expected * direction[member]).sum(), [seen, *parameters.values()])
        for name, gradient in zip(parameters, found, strict=True):
            assert_close(gradients[name][member], gradient)
        assert_close(whole[member], input_gradient)
        assert_close(beyond[member], input_gradient[:, inputs.shape[1] - extra :])


def test_a_member_shares_the_memory_of_its_ensemble() -> None:
    network, _, tensors, _ = new_network(network_factory("small"), members=MEMBERS)
    inputs = random_inputs(network_factory("small"))
    before = network.member(1).forward(inputs)
    tensors["net.torso.0.weight"][1].zero_()
    assert not torch.equal(network.member(1).forward(inputs), before)


def test_uint8_inputs_give_the_same_outputs_as_floats() -> None:
    plan = network_factory("small")
    network, inputs = new_network(plan)[0], random_inputs(plan)
    assert torch.equal(network.forward(inputs.to(torch.uint8)), network.forward(inputs))


@pytest.mark.parametrize("members", [0, MEMBERS])
def test_large_batches_are_computed_in_pieces(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = network_factory("small")
    network, inputs = new_network(plan, members=members)[0], random_inputs(plan)
    together = network.forward(inputs)
    monkeypatch.setattr(cnn, "FORWARD_ROWS", 2)
    assert_close(network.forward(inputs), together)


def test_filters_are_initialized_orthogonally_with_the_hidden_gain() -> None:
    network, _, tensors, _ = new_network(network_factory("nature"), members=2)
    network.initialize(torch.Generator().manual_seed(0), 0.01)
    for name, tensor in tensors.items():
        if name.endswith("bias"):
            assert not tensor.any()
            continue
        gain = 0.01 if name == "net.1.weight" else math.sqrt(2)
        assert not torch.equal(tensor[0], tensor[1])
        for member in tensor.flatten(2):
            rows = member if len(member) <= member.shape[1] else member.t()
            assert_close(rows @ rows.t(), torch.eye(len(rows), dtype=torch.float64) * gain**2)


@pytest.mark.parametrize(
    ("shape", "channels", "channels_last"),
    [((1, 12, 12), 1, False), ((12, 12, 1), 1, True), ((3, 210, 160), 3, False), ((210, 160, 3), 3, True)],
)
def test_the_smallest_dimension_is_taken_as_channels(
    shape: tuple[int, ...], channels: int, channels_last: bool
) -> None:
    found = image_layout(Space("continuous", shape, torch.uint8), "small")
    assert (found.channels, found.channels_last) == (channels, channels_last)
    assert found.elements == math.prod(shape)


@pytest.mark.parametrize(
    ("shape", "dtype", "line"),
    [
        ((12, 12, 12), torch.uint8, r"torso 'small' cannot determine the channel dimension of \[12, 12, 12\]"),
        ((16, 12, 12), torch.uint8, "cannot determine the channel"),
        (
            (144,),
            torch.uint8,
            r"needs images of dtype uint8 with three dimensions, but observations are torch.uint8 \[144\]",
        ),
        ((1, 12, 12), torch.float32, "needs images of dtype uint8 with three dimensions"),
        ((1, 7, 12), torch.uint8, "needs larger images than 7 x 12 pixels; or set torso = 'none'"),
    ],
)
def test_unsuitable_observations_are_refused(shape: tuple[int, ...], dtype: torch.dtype, line: str) -> None:
    with pytest.raises(InvalidArgument, match=line):
        policy_shapes(Space("continuous", shape, dtype), SPACES["discrete"], NetworkSpec(torso="small"))


@pytest.mark.parametrize(("torso", "side"), [("small", 8), ("nature", 36)])
def test_the_minimum_image_size_is_the_documented_one(torso: str, side: int) -> None:
    image_layout(Space("continuous", (1, side, side), torch.uint8), torso)
    with pytest.raises(InvalidArgument, match="needs larger images"):
        image_layout(Space("continuous", (1, side - 1, side), torch.uint8), torso)


@pytest.mark.parametrize("torso", ["none", "small"])
def test_uint8_observations_are_scaled_and_never_normalized(torso: str) -> None:
    space = pictures((1, 12, 12))
    policy = Policy(space, SPACES["discrete"], NetworkSpec((4,), torso=torso, normalize_observations=True))
    policy.initialize(torch.Generator().manual_seed(0))
    assert not policy.normalizes
    assert not [name for name in policy.tensors() if name.startswith("observation_")]
    seen = policy.normalize(torch.full((2, 1, 12, 12), 255, dtype=torch.uint8))
    if torso == "none":
        assert torch.equal(seen, torch.ones(2, 144))
    else:
        assert torch.equal(policy.actor.trace(seen)[0], torch.ones(2, 1, 12, 12))  # type: ignore[attr-defined]


def test_a_policy_with_a_torso_survives_its_message() -> None:
    network = NetworkSpec((4,), "relu", head="values", torso="nature", recurrent_size=3)
    assert network_spec(policy_message(network)) == network
    plain = policy_message(NetworkSpec())
    plain.ClearField("torso")
    assert network_spec(plain) == NetworkSpec()


def test_bounds_shared_by_all_elements_are_sent_as_one_number() -> None:
    elements = 4 * 400 * 400
    screen = Space("continuous", (4, 400, 400), torch.uint8, (0.0,) * elements, (255.0,) * elements)
    message = space_message(screen)
    assert message.ByteSize() < 100
    assert space_of(message) == screen
    mixed = Space("continuous", (3,), torch.float32, low=(-math.inf, 0.0, 1.0), high=(2.0, 2.0, 2.0))
    assert list(space_message(mixed).low) == [-math.inf, 0.0, 1.0]
    assert list(space_message(mixed).high) == [2.0]
    for space in (mixed, Space("continuous", (2,), torch.float32), Space("discrete", (), torch.int64, n=3)):
        assert space_of(space_message(space)) == space


def eyes(algorithm: Any) -> dict[str, Tensor]:
    """Returns the filters of the first convolution of the actor and of all critics."""
    found = {"actor": algorithm.policy.tensors()["actor.torso.0.weight"]}
    if "critic.torso.0.weight" in algorithm.state_dict():
        found["critic"] = algorithm.state_dict()["critic.torso.0.weight"]
    elif "critic" in getattr(algorithm, "_trained", {}):
        found |= {"critic": algorithm._trained["critic"].network._weights[0]}
        found |= {"target": algorithm._trained["critic"].target._weights[0]}
    return found


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] not in FOR_TEAMS])
def test_every_algorithm_trains_its_convolutions(name: str, kind: str) -> None:
    world = "python:small_worlds:" + ("Dot" if kind == "discrete" else "SignedDot")
    settings = {**small(name), "torso": "small"}
    new, old = (eyes(train(name, world, settings, seed=1, steps=steps)) for steps in (1, 500))
    only_values = {"dqn", "double-dqn", "dueling-dqn", "d3qn"}
    assert ("critic" in old) == (name not in only_values)
    for network, filters in old.items():
        assert not torch.equal(new[network], filters), network


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SEEING)
def test_an_agent_learns_to_locate_a_dot_in_an_image(name: str, seed: int) -> None:
    algorithm = train(name, "python:small_worlds:Dot", {**SEEING[name], "torso": "small"}, seed, steps=20_000)
    assert evaluate("python:small_worlds:Dot", algorithm.policy) >= 0.9 * 8
