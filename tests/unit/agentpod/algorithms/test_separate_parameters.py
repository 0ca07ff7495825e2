"""Separate parameters of agents: each agent has its own networks, computed together, and learns from its own steps."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from team_training import made, rollout_of
from team_worlds import Leaving, OwnNumber
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from agentpod.algorithms.ppo import PPOHyperparameters, policy_gradient, value_gradient
from agentpod.algorithms.teams.presence import absences
from agentpod.experience.rollout_batch import RolloutBatch
from agentpod.models.actor_critic import ActorCritic
from agentpod.models.actors import PolicyActor
from agentpod.models.agent_networks import places, with_agents
from agentpod.models.policy import NetworkSpec, Policy
from agentpod.roles.episodes import play
from podrace.errors import InvalidArgument
from podrace.spaces.entries import MASK, VECTOR, Entry
from simulators import make
from simulators.base import Space

AGENTS, BATCH = 3, 41
NAMES = ("a", "b", "c")
SEEN = Space("continuous", (5,), torch.float32, agents=NAMES)
MASKED = Space(
    "composite",
    (9,),
    torch.float32,
    entries=(Entry("seen", VECTOR, (5,)), Entry("action_mask", MASK, (4,))),
    agents=NAMES,
)
ACTIONS = {
    "continuous": Space("continuous", (3,), torch.float32),
    "discrete": Space("discrete", (), torch.int64, n=4),
}
SETTINGS = PPOHyperparameters(entropy_coefficient=0.05, value_coefficient=0.7)


def mlp(tensors: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    for layer in range(3):
        inputs = inputs @ tensors[f"{name}.{layer}.weight"].t() + tensors[f"{name}.{layer}.bias"]
        inputs = inputs.tanh() if layer < 2 else inputs
    return inputs


def doubled(batch: RolloutBatch) -> RolloutBatch:
    return RolloutBatch.of(*(one.double() if one.is_floating_point() else one for one in batch.tensors()))


def networks_of(kind: str, seed: int, *, shared: bool, space: Space = SEEN) -> ActorCritic:
    spec = NetworkSpec((8, 6), share_parameters=shared)
    networks = ActorCritic(space, ACTIONS[kind], spec)
    networks.parameters.copy_(torch.randn(networks.parameters.shape, generator=torch.Generator().manual_seed(seed)))
    networks.parameters.mul_(0.4)
    return networks


def random_batch(kind: str, seed: int) -> tuple[RolloutBatch, Tensor]:
    """Steps in a random order, in which agents have different numbers of rows; and the agent of each."""
    generator = torch.Generator().manual_seed(100 + seed)
    agent = torch.randint(AGENTS, (BATCH,), generator=generator)
    agent[0] = agent[1]
    observation = torch.randn(BATCH, 5, generator=generator)
    advantage, value, target, jitter = torch.randn(4, BATCH, generator=generator)
    action = torch.randn(BATCH, 3, generator=generator)
    log_prob = -4.0 + jitter
    if kind == "discrete":
        action, log_prob = torch.randint(4, (BATCH,), generator=generator), -math.log(4) + 0.3 * jitter
    return RolloutBatch(observation, action, log_prob, advantage, value, target), agent


def numbered(batch: RolloutBatch, agent: Tensor) -> RolloutBatch:
    return batch._replace(observation=torch.cat((batch.observation, agent.unsqueeze(1).float()), 1))


def reference_loss(tensors: Mapping[str, Tensor], batch: RolloutBatch, agent: Tensor) -> Tensor:
    """PPO's loss (equation 9 of the paper), one step at a time, with the parameters of the agent of the step."""
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std(correction=0) + 1e-8)
    loss = torch.zeros((), dtype=torch.float64)
    for row, number in enumerate(agent.tolist()):
        own = {name: tensor[number] for name, tensor in tensors.items()}
        outputs = mlp(own, "actor", batch.observation[row])
        policy: Any = Categorical(logits=outputs)
        if "log_std" in own:
            policy = Independent(Normal(outputs, own["log_std"].exp()), 1)
        ratio = (policy.log_prob(batch.action[row]) - batch.log_prob[row]).exp()
        surrogate = torch.minimum(ratio * advantage[row], ratio.clamp(0.8, 1.2) * advantage[row])
        error = (mlp(own, "critic", batch.observation[row])[0] - batch.target[row]) ** 2
        loss = loss - surrogate + 0.7 * error - 0.05 * policy.entropy()
    return loss / len(agent)


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_gradient_of_each_agent_is_that_of_its_own_steps(kind: str) -> None:
    for seed in range(3):
        networks, (batch, agent) = networks_of(kind, seed, shared=False), random_batch(kind, seed)
        networks.gradient.fill_(math.nan)
        own = numbered(batch, agent)
        losses = (*policy_gradient(own, networks, SETTINGS)[:2], value_gradient(own, networks, SETTINGS))
        tensors = networks.policy.tensors() | networks.critic_tensors
        leaves = {
            name: tensor.double().requires_grad_() for name, tensor in tensors.items() if "observation" not in name
        }
        expected = reference_loss(leaves, doubled(batch), agent)
        loss = losses[0] - 0.05 * losses[1] + 0.7 * losses[2]
        torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-5, atol=1e-6)
        for name, leaf in zip(leaves, torch.autograd.grad(expected, list(leaves.values())), strict=True):
            torch.testing.assert_close(networks.gradients[name].double(), leaf, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_gradient_of_a_shared_network_is_the_sum_of_those_of_equal_separate_ones(kind: str) -> None:
    shared, separate = networks_of(kind, 1, shared=True), networks_of(kind, 2, shared=False)
    for name, tensor in (separate.policy.tensors() | separate.critic_tensors).items():
        tensor.copy_((shared.policy.tensors() | shared.critic_tensors)[name].expand_as(tensor))
    batch, agent = random_batch(kind, 5)
    for networks, steps in ((shared, batch), (separate, numbered(batch, agent))):
        policy_gradient(steps, networks, SETTINGS)
        value_gradient(steps, networks, SETTINGS)
    for name, gradient in separate.gradients.items():
        torch.testing.assert_close(gradient.sum(0), shared.gradients[name], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(separate.gradients["actor.0.weight"][0], separate.gradients["actor.0.weight"][1])


def test_an_agent_without_steps_has_no_gradient() -> None:
    networks, (batch, _) = networks_of("continuous", 0, shared=False), random_batch("continuous", 0)
    networks.gradient.fill_(math.nan)
    own = numbered(batch, torch.full((BATCH,), 2))
    policy_gradient(own, networks, SETTINGS)
    value_gradient(own, networks, SETTINGS)
    for name, gradient in networks.gradients.items():
        if not name.startswith("observation_"):
            assert not gradient[:2].any()
            assert gradient[2].any()


def test_places_leave_room_for_every_row_and_share_none() -> None:
    place, width = places(torch.tensor([2, 0, 2, 2, 0]), 4)
    assert width == 3
    assert place.tolist() == [6, 0, 7, 8, 1]


@pytest.mark.parametrize(("kind", "space"), [*itertools.product(ACTIONS, [SEEN]), ("discrete", MASKED)])
def test_each_agent_acts_as_its_own_policy_alone(kind: str, space: Space) -> None:
    spec = NetworkSpec((8, 6), share_parameters=False)
    policy = Policy(space, ACTIONS[kind], spec)
    policy.initialize(torch.Generator().manual_seed(0), 1.0)
    policy.set_head_parameter("log_std", -0.5)
    mean, variance = torch.randn(2, AGENTS, *space.shape, generator=torch.Generator().manual_seed(1))
    policy.set_statistics(mean, variance.square())
    observation = torch.rand(4 * AGENTS, *space.shape, generator=torch.Generator().manual_seed(2)).round(decimals=1)
    outputs, _ = policy.advance(observation, policy.initial_state(4 * AGENTS))
    torch.testing.assert_close(policy.outputs(observation), outputs)
    for number in range(AGENTS):
        alone = Policy(space, ACTIONS[kind], NetworkSpec((8, 6)))
        alone.load(torch.cat([tensor[number].flatten() for tensor in policy.tensors().values()]))
        rows = slice(number, None, AGENTS)
        torch.testing.assert_close(outputs[rows, : alone.head.output_count], alone.outputs(observation[rows]))
        torch.testing.assert_close(policy.act_greedily(observation)[rows], alone.act_greedily(observation[rows]))
        noise = policy.noise((4 * AGENTS,), torch.Generator().manual_seed(3))
        torch.testing.assert_close(policy.act(observation, noise)[rows], alone.act(observation[rows], noise[rows]))


def test_rows_are_numbered_in_the_order_of_lanes() -> None:
    assert with_agents(torch.zeros(4, 1), 2).tolist() == [[0, 0], [0, 1], [0, 0], [0, 1]]


def reference_values(algorithm: Any, observation: Tensor) -> Tensor:
    """V of each agent's own centralised critic in float64, from raw observations [N A, D]."""
    policy, critic = algorithm.policy.tensors(), algorithm._networks.critic_tensors
    mean, variance = (policy[f"observation_{name}"].double() for name in ("mean", "variance"))
    agents, values = len(mean), []
    for lane in range(len(observation)):
        begin, number = lane // agents * agents, lane % agents
        seen = [
            ((observation[begin + other].double() - mean[other]) / (variance[other] + 1e-8).sqrt()).clamp(-10, 10)
            for other in range(agents)
        ]
        hidden = torch.cat((*seen, torch.nn.functional.one_hot(torch.tensor(number), agents).double()))
        for layer in range(2):
            weight, bias = (critic[f"critic.{layer}.{kind}"][number].double() for kind in ("weight", "bias"))
            hidden = weight @ hidden + bias
            hidden = hidden.tanh() if layer < 1 else hidden
        values.append(hidden)
    return torch.cat(values)


def test_values_are_those_of_each_agents_own_critic_also_after_truncations() -> None:
    simulator = make("spread", 3, {"max_episode_steps": 4})
    algorithm = made("mappo", simulator, share_parameters=False)
    algorithm.update(rollout_of(algorithm, simulator))
    found = rollout_of(algorithm, simulator)
    inputs = algorithm._critic_inputs(algorithm.policy.normalize(found["observation"].flatten(0, 1)))
    value, next_value, _ = algorithm._estimate_values(found, inputs)
    for t in range(6):
        expected = reference_values(algorithm, found["observation"][t])
        torch.testing.assert_close(value[t].double(), expected, atol=1e-5, rtol=1e-4)
    assert found["truncated"][3].all()
    expected = reference_values(algorithm, found["final_observation"][3])
    torch.testing.assert_close(next_value[3].double(), expected, atol=1e-5, rtol=1e-4)


def test_ippo_bootstraps_truncated_episodes_with_the_critic_of_their_agent() -> None:
    simulator = make("spread", 3, {"max_episode_steps": 4})
    algorithm = made("ippo", simulator, share_parameters=False)
    algorithm.update(rollout_of(algorithm, simulator))
    found = rollout_of(algorithm, simulator)
    inputs = algorithm.policy.normalize(found["observation"].flatten(0, 1))
    _, next_value, _ = algorithm._estimate_values(found, inputs)
    final = algorithm.policy.normalize(found["final_observation"][3])
    torch.testing.assert_close(next_value[3], algorithm._networks.critic.forward(final)[:, 0])


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_what_an_absent_agent_did_does_not_matter(name: str) -> None:
    def trained(noise: float) -> Tensor:
        simulator = Leaving(4)
        algorithm = made(name, simulator, shared_reward=False, minibatch_size=20, share_parameters=False)
        found = rollout_of(algorithm, simulator)
        absent = absences(found["terminated"], torch.zeros(12, dtype=torch.bool), 3)[0]
        found["action"][absent] = int(noise > 0)
        found["log_prob"][absent] = -noise
        algorithm.update(found)
        flat: Tensor = algorithm.policy.flat
        return flat.clone()

    assert torch.equal(trained(0.0), trained(5.0))


def test_statistics_are_those_of_each_agent_in_steps_in_which_all_are_present() -> None:
    simulator = make("spread", 8, {})
    algorithm = made("ippo", simulator, share_parameters=False)
    found = rollout_of(algorithm, simulator)
    algorithm.update(found)
    seen = found["observation"][:-1].view(-1, AGENTS, 18).double()
    tensors = algorithm.policy.tensors()
    torch.testing.assert_close(tensors["observation_mean"].double(), seen.mean(0), atol=1e-5, rtol=1e-4)
    expected = seen.var(0, correction=0)
    torch.testing.assert_close(tensors["observation_variance"].double(), expected, atol=1e-5, rtol=1e-4)
    leaving = Leaving(2)
    algorithm = made("ippo", leaving, share_parameters=False)
    algorithm.update(rollout_of(algorithm, leaving))
    # All three are present in the first of three steps only.
    assert algorithm.policy.tensors()["observation_mean"].flatten().tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_agents_that_see_the_same_learn_to_act_differently_only_with_separate_parameters(name: str) -> None:
    found = {}
    for shared in (False, True):
        simulator = OwnNumber(16)
        settings = {"horizon": 16, "minibatch_size": 128, "learning_rate": 1e-2}
        algorithm = made(name, simulator, **settings, share_parameters=shared)
        for _ in range(15):
            algorithm.update(rollout_of(algorithm, simulator, 16))
        actor = PolicyActor(algorithm.policy, simulator.count, torch.Generator(), greedy=True)
        found[shared] = float(play(simulator, actor, 16, 1).returns.mean())
    assert found[False] == 2.0
    # A shared policy acts alike for both.
    assert found[True] == 1.0


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_training_continues_from_a_checkpoint_to_the_bit(name: str) -> None:
    simulator = Leaving(4)
    settings = {"share_parameters": False, "minibatch_size": 20}
    first, second = (made(name, simulator, **settings) for _ in range(2))
    first.update(rollout_of(first, simulator))
    second.policy.load(first.policy.flat.clone())
    second.load_state_dict(first.state_dict())
    found = rollout_of(first, simulator)
    for algorithm in (first, second):
        algorithm.update(found)
    assert torch.equal(first.policy.flat, second.policy.flat)


@pytest.mark.parametrize(("name", "value"), [("recurrent_size", 4), ("torso", "small")])
def test_other_networks_than_layers_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"share_parameters = false: .* leave out {name}"):
        made("ippo", Leaving(2), share_parameters=False, **{name: value})


def test_updates_are_not_captured() -> None:
    assert "share_parameters" in made("ippo", Leaving(2), share_parameters=False).capture()
