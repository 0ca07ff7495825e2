"""MADDPG with discrete actions: losses of the paper with the straight-through Gumbel-softmax estimator."""

import itertools
from typing import Any

import pytest
import torch
from exactness import BATCH, assert_gradient, descend, doubled, random_batch, random_noise, scrambled
from experience import SPACES, Course, new_algorithm
from learning import train
from references import ensemble_outputs, layers_of, perceptron, squared_errors
from torch import Tensor
from torch.nn.functional import one_hot

from agentpod.algorithms import make
from agentpod.algorithms.teams.gumbel import chosen, gumbel_noise, straight_through, straight_through_backward
from agentpod.models.actors import PolicyActor
from agentpod.roles.episodes import play
from podrace.errors import InvalidArgument
from podrace.spaces.entries import MASK, VECTOR, Entry
from simulators import make as make_simulator
from simulators.base import Space

AGENTS, STEPS, CHOICES = 2, BATCH // 2, SPACES["discrete"].n
Tensors = dict[str, Tensor]


def values(tensors: Tensors, observation: Tensor, action: Tensor, activation: str) -> Tensor:
    """Q_c,i of every step and agent [C, B A], of one-hot actions [B A, n], step by step and agent by agent."""
    rows = []
    for step, agent in itertools.product(range(len(observation) // AGENTS), range(AGENTS)):
        seen = []
        for ahead in range(AGENTS):
            other = step * AGENTS + (agent + ahead) % AGENTS
            seen += [observation[other], action[other]]
        rows.append(torch.cat((*seen, one_hot(torch.tensor(agent), AGENTS).double())))
    return ensemble_outputs(tensors, torch.stack(rows), activation).squeeze(-1)


def logits_of(tensors: Tensors, observation: Tensor, activation: str) -> Tensor:
    return perceptron(layers_of(tensors, "actor"), observation, activation)


@pytest.mark.parametrize(
    ("activation", "critics", "temperature"), [*itertools.product(("tanh", "relu"), (1, 2), (1.0,)), ("tanh", 1, 0.5)]
)
def test_a_step_follows_the_losses_of_the_paper(activation: str, critics: int, temperature: float) -> None:
    for seed in (0, 1):
        settings = {"activation": activation, "critics": critics, "maximum_gradient_norm": 0.0}
        own = {"softmax_temperature": temperature, "logit_penalty": 0.05}
        algorithm = scrambled("maddpg", "discrete", seed, batch_size=STEPS, **settings, **own)
        batch, noise = random_batch("discrete", seed, STEPS * AGENTS), random_noise(algorithm, seed)
        step, exact = descend(algorithm, batch, noise), doubled(batch)
        taken = one_hot(exact.action, CHOICES).double()

        likely = logits_of(step.target, exact.next_observation, activation).argmax(-1)
        following = one_hot(likely, CHOICES).double()
        # An agent whose step terminated is absent afterwards.
        remains = (exact.discount > 0).unsqueeze(1)
        after = values(step.target, exact.next_observation * remains, following * remains, activation).amin(0)
        leaves = step.leaves("critic")
        judged = values({**step.before, **leaves}, exact.observation, taken, activation)
        loss, errors = squared_errors(judged, exact.reward + exact.discount * after, exact.weight)
        assert_gradient(step, loss, leaves)
        assert step.metrics["value_loss"] == pytest.approx(loss.item(), rel=1e-4)
        torch.testing.assert_close(step.errors.double(), errors.abs().mean(0).detach(), rtol=1e-4, atol=1e-5)

        # The actor follows the first critic after its step, one agent at a time: the others do as they did.
        leaves = step.leaves("actor")
        critic = {key: tensor for key, tensor in step.after.items() if key.startswith("critic.")}
        logits = logits_of({**step.before, **leaves}, exact.observation, activation)
        soft = ((logits + noise.double()) / temperature).softmax(-1)
        hard = one_hot(soft.argmax(-1), CHOICES).double()
        drawn = hard + soft - soft.detach()
        total = torch.zeros((), dtype=torch.float64)
        for agent in range(AGENTS):
            action = taken.clone()
            action[agent::AGENTS] = drawn[agent::AGENTS]
            total = total + values(critic, exact.observation, action, activation)[0, agent::AGENTS].sum()
        loss = -total / len(exact.observation) + 0.05 * logits.square().mean()
        assert_gradient(step, loss, leaves)
        assert step.metrics["policy_loss"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)


def test_the_estimator_propagates_as_the_softmax_and_acts_as_the_choice() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, gradient = torch.randn(2, 50, 4, generator=generator)
    noise = gumbel_noise((50, 4), generator)
    action, soft = straight_through(logits, noise, 0.7)
    leaf = logits.double().requires_grad_()
    relaxed = ((leaf + noise.double()) / 0.7).softmax(-1)
    (expected,) = torch.autograd.grad(relaxed, leaf, gradient.double())
    found = straight_through_backward(gradient, soft, 0.7)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(action, one_hot((logits + noise).argmax(-1), 4).float())
    assert torch.equal(chosen(logits).argmax(-1), logits.argmax(-1))


def test_sampled_choices_have_the_probabilities_of_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0]).expand(20_000, 3)
    action, _ = straight_through(logits, gumbel_noise((20_000, 3), torch.Generator().manual_seed(2)), 1.0)
    torch.testing.assert_close(action.mean(0), logits[0].softmax(0), atol=0.015, rtol=0.0)


MASKED = Space(
    "composite",
    (7,),
    torch.float32,
    entries=(Entry("seen", VECTOR, (4,)), Entry("action_mask", MASK, (3,))),
    agents=("a", "b"),
)


def test_invalid_choices_are_neither_drawn_nor_trained() -> None:
    algorithm: Any = make("maddpg", MASKED, SPACES["discrete"], {"hidden_sizes": [8, 8], "batch_size": 6}, seed=1)
    observation = torch.randn(12, 7, generator=torch.Generator().manual_seed(3))
    observation[:, 4:] = torch.tensor([1.0, 0.0, 1.0])
    algorithm.policy.actor_flat.copy_(torch.randn(algorithm.policy.actor_flat.shape))
    inputs = algorithm._critic_inputs(observation, one_hot(torch.zeros(12, dtype=torch.long), 3).float())
    noise = torch.tensor([0.0, 50.0, 0.0]).expand(12, 3)
    trained = algorithm._trained["actor"]
    loss, norm = algorithm._actor_step(observation, inputs, noise)
    assert loss.isfinite()
    assert norm.isfinite()
    assert not inputs[:, algorithm._own_action][:, 1].any()
    weights = trained.gradient._perceptron.weights[-1]
    assert not weights[1].any()
    assert weights[0].any()
    following = algorithm._next_action(observation, noise)
    assert not following[:, 1].any()


def test_matd3_refuses_discrete_actions() -> None:
    with pytest.raises(InvalidArgument, match="algorithm 'matd3' needs continuous actions"):
        new_algorithm("matd3", "discrete")


def test_agents_explore_by_sampling_and_act_greedily_in_evaluations() -> None:
    policy = new_algorithm("maddpg", "discrete").policy
    observation = torch.zeros(400, 3)
    drawn = policy.act(observation, policy.noise((400,), torch.Generator().manual_seed(5)))
    assert set(drawn.tolist()) == {0, 1, 2}
    assert len(set(policy.act_greedily(observation).tolist())) == 1


def test_updates_are_reproducible_to_the_bit() -> None:
    flats = []
    for _ in range(2):
        algorithm: Any = new_algorithm("maddpg", "discrete", updates_per_step=0.5, batch_size=4)
        course = Course(algorithm, "discrete")
        for _ in range(3):
            algorithm.update(course.next())
        assert algorithm.gradient_steps > 0
        flats.append(algorithm.policy.flat.clone())
    assert torch.equal(*flats)


@pytest.mark.long
def test_the_safe_return_of_the_two_step_game_is_learned() -> None:
    settings: dict[str, object] = {
        "hidden_sizes": [32],
        "shared_reward": True,
        "warmup_steps": 256,
        "batch_size": 64,
        "updates_per_step": 0.2,
        "learning_rate": 3e-3,
    }
    algorithm = train("maddpg", "matrix:two-step", settings, 1, 8_000)
    simulator = make_simulator("matrix:two-step", 16)
    actor = PolicyActor(algorithm.policy, simulator.count, torch.Generator(), greedy=True)
    assert float(play(simulator, actor, 16, 1).returns.mean()) >= 7.0
