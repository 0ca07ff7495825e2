"""Tests networks of users: their gradients, their weights, their export, and what is said about bad ones."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from experience import OBSERVED, SPACES, Course, make, random_rollout, small

from agentpod.export.network_graph import network_nodes
from agentpod.export.torch_program import traced
from agentpod.models import description
from agentpod.models.description import describe, policy_of
from agentpod.models.messages import network_spec, policy_message
from agentpod.models.policy import NetworkSpec, Policy
from podrace.errors import UNUSABLE_ALGORITHM, InvalidArgument, Unimplemented
from podrace.policy.graph import Member, build
from podrace.policy.metadata import MemberFacts, as_metadata
from podrace.policy.runtime import Policy as Exported
from podrace.spaces.entries import Entry, width
from simulators.base import Space

HERE = "python:user_networks:"
RESIDUAL = NetworkSpec((8,), network_class=f"{HERE}Residual")
IMAGES = Space("continuous", (1, 8, 8), torch.uint8)
ENTRIES = (
    Entry("position", "vector", (2,)),
    Entry("camera", "bytes", (1, 2, 2)),
    Entry("action_mask", "mask", (3,)),
    Entry("kind", "one_hot", (), (2,), (0,)),
    Entry("lamps", "flags", (1,)),
)
ROW = Space("composite", (width(ENTRIES),), torch.float32, entries=ENTRIES)
CASES = [("ppo", "discrete"), ("ppo", "continuous"), ("dqn", "discrete"), ("sac", "continuous"), ("td3", "continuous")]


def made(network: NetworkSpec = RESIDUAL, space: Space = OBSERVED, kind: str = "continuous") -> Policy:
    policy = Policy(space, SPACES[kind], network)
    policy.initialize(torch.Generator().manual_seed(1))
    return policy


@pytest.mark.parametrize("case", CASES)
def test_built_in_algorithms_train_and_resume_with_a_network_of_a_user(case: tuple[str, str]) -> None:
    name, kind = case
    arguments = name, OBSERVED, SPACES[kind], {**small(name), "network_class": f"{HERE}Residual"}, 1
    algorithm, resumed = make(*arguments), make(*arguments)
    before = algorithm.policy.tensors()["actor.first.weight"].clone()
    course = Course(algorithm, kind)
    for _ in range(2):
        algorithm.update(random_rollout(algorithm, kind, 0) if name == "ppo" else course.next())
    assert not torch.equal(before, algorithm.policy.tensors()["actor.first.weight"])
    resumed.policy.load(algorithm.policy.flat)
    resumed.load_state_dict(algorithm.state_dict())
    experience = random_rollout(algorithm, kind, 1) if name == "ppo" else course.next()
    assert algorithm.update(experience) == resumed.update(experience)
    assert torch.equal(algorithm.policy.flat, resumed.policy.flat)


def test_the_gradient_is_that_of_automatic_differentiation_also_for_selected_rows() -> None:
    policy = made(kind="discrete")
    factory = RESIDUAL.network_factory(OBSERVED, SPACES["discrete"])
    into = {name: torch.zeros_like(view) for name, view in policy.tensors().items()}
    network, gradient = factory.make_feedforward("actor", policy.tensors()), factory.make_feedforward("actor", into)
    rows = torch.randn(6, 3)
    with torch.no_grad():
        trace = [tensor[:4] for tensor in network.trace(rows)]
        slope = torch.randn(4, 3)
        network.backward(slope, trace, gradient)
        of_inputs = network.input_gradient(slope, trace)
    module = factory.user_network().bound(policy.tensors(), into)
    seen = rows[:4].clone().requires_grad_()
    wanted = torch.autograd.grad((module(seen) * slope).sum(), [*module.parameters(), seen])
    for (name, _), expected in zip(module.named_parameters(), wanted, strict=False):
        torch.testing.assert_close(into[f"actor.{name}"], expected)
    torch.testing.assert_close(of_inputs, wanted[-1])


def test_the_weights_depend_on_the_seed_alone_and_no_other_generator_is_used() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first = made()
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first.flat, made().flat)
    assert not torch.equal(first.actor_flat, torch.zeros_like(first.actor_flat))


def test_a_description_and_a_message_rebuild_the_policy() -> None:
    policy = made()
    assert policy_of(describe(policy)).network == RESIDUAL
    options = replace(RESIDUAL, network_options=(("atoms", 5.0),))
    assert network_spec(policy_message(options)) == options
    assert description.test_vectors(policy)["outputs"].shape == (8, 2)


def exported(policy: Policy) -> Exported:
    tensors = {name: tensor.numpy() for name, tensor in policy.tensors().items()}
    facts = MemberFacts("d", "t", "a", "ppo", describe(policy), {})
    return Exported(build([Member(describe(policy), tensors, network_nodes(policy))], as_metadata([facts])))


@pytest.fixture(params=["vectors", "pictures", "entries", "returns"])
def case(request: pytest.FixtureRequest) -> Iterator[Policy]:
    if request.param == "vectors":
        yield made()
    elif request.param == "pictures":
        yield made(NetworkSpec((), network_class=f"{HERE}Pictures"), IMAGES, "discrete")
    elif request.param == "entries":
        policy, generator = made(space=ROW, kind="discrete"), torch.Generator().manual_seed(2)
        policy.tensors()["observation_mean"].normal_(generator=generator)
        policy.tensors()["observation_variance"].uniform_(0.5, 2.0, generator=generator)
        yield policy
    else:
        options = (("atoms", 7.0), ("highest", 2.5), ("lowest", -1.0))
        c51 = NetworkSpec((8,), "relu", head="values", network_class="python:c51:ReturnDistribution")
        yield made(replace(c51, network_options=options), kind="discrete")


@pytest.mark.long
def test_exported_files_act_as_the_policy(case: Policy) -> None:
    vectors = description.test_vectors(case)
    exported(case).check({name: tensor.numpy() for name, tensor in vectors.items()})
    action = traced([case]).module()(vectors["observation"], torch.zeros(len(vectors["action"]), 0))[0]
    torch.testing.assert_close(action, vectors["action"])


def test_what_cannot_be_exported_is_reported_in_one_line() -> None:
    policy = made(NetworkSpec((), network_class=f"{HERE}Sorting"))
    with pytest.raises(Unimplemented, match="its operation 'sort' cannot be written as ONNX here; export it with"):
        exported(policy)
    tensors = {name: tensor.numpy() for name, tensor in policy.tensors().items()}
    with pytest.raises(InvalidArgument, match=r"is the class 'python:user_networks:Sorting', which is not imported"):
        build([Member(describe(policy), tensors)], {})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("WrongShape", r"WrongShape.forward \(user_networks.py:\d+\) returned \[2\], expected a tensor \[2, 3\]"),
        ("Raising", r"Raising.forward \(user_networks.py:\d+\) raised RuntimeError: no way"),
        ("Stateful", r"Stateful.__init__ \(user_networks.py:\d+\) keeps state in the buffer count, which no policy"),
        ("NoModule", "has no class 'NoModule' derived from torch.nn.Module"),
        ("Missing", "has no class 'Missing'"),
    ],
)
def test_an_unusable_network_is_reported_in_one_line_with_key_class_and_line(name: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^network_class.*{said}") as caught:
        made(NetworkSpec((), network_class=HERE + name), kind="discrete")
    assert caught.value.reason == UNUSABLE_ALGORITHM
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["python:not_there:Network", "residual"])
def test_a_network_that_is_not_installed_is_reported_in_one_line(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^network_class|network '?residual'?"):
        made(NetworkSpec((), network_class=name))


def test_a_network_replaces_all_layers() -> None:
    with pytest.raises(InvalidArgument, match="replaces all layers: leave out torso"):
        NetworkSpec((8,), torso="small", network_class="mine")
    with pytest.raises(InvalidArgument, match="leave out recurrent_size"):
        NetworkSpec((8,), recurrent_size=4, network_class="mine")
