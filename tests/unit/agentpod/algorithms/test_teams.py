"""Teams: what an absent agent does is not trained on, and a centralised critic sees every agent."""

import itertools
import math

import pytest
import torch
from team_training import made, rollout_of
from team_worlds import Leaving
from torch import Tensor

from agentpod.algorithms.teams.mappo import MAPPO, joint_observations
from agentpod.algorithms.teams.presence import absences, team_rewards
from agentpod.experience.rollout import Lanes, collect, rollout_fields
from agentpod.models.actors import PolicyActor
from agentpod.roles.episodes import play
from podrace.errors import InvalidArgument
from simulators import make


def test_an_agent_is_absent_from_the_step_after_it_left_until_its_environment_ends() -> None:
    generator = torch.Generator().manual_seed(0)
    steps, environments, agents = 40, 5, 3
    done = torch.rand(steps, environments * agents, generator=generator) < 0.2
    expected = torch.zeros_like(done)
    left = torch.zeros(environments, agents, dtype=torch.bool)
    for t, n in itertools.product(range(steps), range(environments)):
        lanes = slice(n * agents, (n + 1) * agents)
        # The lane of an absent agent ends in every step.
        done[t, lanes] |= left[n]
        expected[t, lanes] = left[n]
        left[n] = done[t, lanes].clone()
        if left[n].all():
            left[n] = False
    carry = torch.zeros(environments * agents, dtype=torch.bool)
    parts = []
    for part in done.split(7):
        found, carry = absences(part, carry, agents)
        parts.append(found)
    assert torch.equal(torch.cat(parts), expected)
    assert expected.any()
    assert torch.equal(carry, left.flatten())


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_what_an_absent_agent_did_does_not_matter(name: str) -> None:
    def trained(noise: float) -> Tensor:
        simulator = Leaving(4)
        algorithm = made(name, simulator, shared_reward=False, minibatch_size=20)
        found = rollout_of(algorithm, simulator)
        absent = absences(found["terminated"], torch.zeros(12, dtype=torch.bool), 3)[0]
        found["action"][absent] = int(noise > 0)
        found["log_prob"][absent] = -noise
        algorithm.update(found)
        return algorithm.policy.flat.clone()

    assert torch.equal(trained(0.0), trained(5.0))


class CountedAverages:
    """Counts the averages that a learner takes part in; all learners must make the same number."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, tensor: Tensor) -> None:
        assert tensor.isfinite().all()
        self.count += 1

    def finish(self) -> None:
        pass


@pytest.mark.parametrize("share_parameters", [True, False])
@pytest.mark.parametrize("minibatch_size", [1, 20])
@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_learners_make_equally_many_steps_whenever_their_agents_leave(
    name: str, minibatch_size: int, share_parameters: bool
) -> None:
    counts = []
    for leave in (True, False):
        simulator = Leaving(4)
        settings = {"minibatch_size": minibatch_size, "share_parameters": share_parameters}
        algorithm = made(name, simulator, epochs=2, **settings)
        found = rollout_of(algorithm, simulator)
        if not leave:
            found["terminated"] = found["terminated"].view(-1, 4, 3)[..., 2].repeat_interleave(3, 1)
        algorithm.share_gradients(averages := CountedAverages())
        metrics = algorithm.update(found)
        assert all(math.isfinite(value) for value in metrics.values())
        counts.append(averages.count)
    steps = found["reward"].numel()
    assert counts == [2 * math.ceil(steps / minibatch_size)] * 2


def test_absent_agents_do_not_count_in_the_statistics_of_observations() -> None:
    simulator = Leaving(2)
    algorithm = made("ippo", simulator)
    algorithm.update(rollout_of(algorithm, simulator))
    # Present: step 1 of three agents, step 2 of two, step 3 of one, all equally often.
    assert float(algorithm.policy.tensors()["observation_mean"]) == pytest.approx((3 * 1 + 2 * 2 + 3) / 6, rel=1e-3)


@pytest.mark.parametrize("shared_reward", [False, True])
@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_absent_agents_do_not_count_in_the_scale_of_rewards(name: str, shared_reward: bool) -> None:
    simulator = Leaving(2)
    algorithm = made(name, simulator, shared_reward=shared_reward, discount=0.5)
    algorithm.update(rollout_of(algorithm, simulator))
    # The running returns of the agents that leave after one, two and three steps.
    if shared_reward:
        returns = [111.0, 111.0, 110 + 55.5, 111.0, 110 + 55.5, 100 + 55 + 27.75]
    else:
        returns = [1.0, 10.0, 10 + 5.0, 100.0, 100 + 50.0, 100 + 50 + 25.0]
    moments = algorithm._returns.total
    assert float(moments.count) == 2 * 2 * len(returns)
    assert float(moments.variance) == pytest.approx(float(torch.tensor(returns).var(correction=0)))


def test_the_critic_sees_all_agents_and_knows_its_own() -> None:
    observation = torch.arange(12.0).view(6, 2)
    assert joint_observations(observation, 3).tolist() == [
        [0, 1, 2, 3, 4, 5, 1, 0, 0],
        [0, 1, 2, 3, 4, 5, 0, 1, 0],
        [0, 1, 2, 3, 4, 5, 0, 0, 1],
        [6, 7, 8, 9, 10, 11, 1, 0, 0],
        [6, 7, 8, 9, 10, 11, 0, 1, 0],
        [6, 7, 8, 9, 10, 11, 0, 0, 1],
    ]


def test_each_agent_receives_what_the_team_receives() -> None:
    reward = torch.tensor([[1.0, 2.0, 10.0, 20.0], [0.0, -1.0, 5.0, 5.0]])
    assert team_rewards(reward, 2).tolist() == [[3, 3, 30, 30], [-1, -1, 10, 10]]


def reference_values(algorithm: MAPPO, observation: Tensor, agents: int) -> Tensor:
    """V of MAPPO's critic in float64, computed environment by environment from raw observations [N A, D]."""
    policy, critic = algorithm.policy.tensors(), algorithm._networks.critic_tensors
    mean, variance = (policy[f"observation_{name}"].double() for name in ("mean", "variance"))
    values = []
    for lane in range(len(observation)):
        begin = lane // agents * agents
        seen = [
            ((observation[other].double() - mean) / (variance + 1e-8).sqrt()).clamp(-10, 10)
            for other in range(begin, begin + agents)
        ]
        own = torch.nn.functional.one_hot(torch.tensor(lane - begin), agents).double()
        hidden = torch.cat((*seen, own))
        layers = len(critic) // 2
        for layer in range(layers):
            hidden = critic[f"critic.{layer}.weight"].double() @ hidden + critic[f"critic.{layer}.bias"].double()
            hidden = hidden.tanh() if layer < layers - 1 else hidden
        values.append(hidden)
    return torch.cat(values)


def test_values_of_mappo_are_those_of_the_joint_observations_also_after_truncations() -> None:
    simulator = make("spread", 3, {"max_episode_steps": 4})
    algorithm = made("mappo", simulator)
    found = rollout_of(algorithm, simulator)
    inputs = algorithm._critic_inputs(algorithm.policy.normalize(found["observation"].flatten(0, 1)))
    value, next_value, _ = algorithm._estimate_values(found, inputs)
    for t in range(6):
        torch.testing.assert_close(
            value[t].double(), reference_values(algorithm, found["observation"][t], 3), atol=1e-5, rtol=1e-4
        )
    assert found["truncated"][3].all()
    expected = reference_values(algorithm, found["final_observation"][3], 3)
    torch.testing.assert_close(next_value[3].double(), expected, atol=1e-5, rtol=1e-4)


def test_the_gradient_of_the_centralised_critic_is_that_of_the_squared_error() -> None:
    simulator = make("spread", 3, {"max_episode_steps": 4})
    algorithm = made("mappo", simulator)
    batch = algorithm._prepare(found := rollout_of(algorithm, simulator), found["reward"])
    algorithm._gradient_step(batch)
    inputs, target = batch.seen_by_critic.double(), batch.target.double()
    # The step has changed the parameters, so a second instance has those that the gradient was computed with.
    critic = made("mappo", simulator)._networks.critic_tensors
    parameters = {name: tensor.double().requires_grad_() for name, tensor in critic.items()}
    hidden = (inputs @ parameters["critic.0.weight"].T + parameters["critic.0.bias"]).tanh()
    value = (hidden @ parameters["critic.1.weight"].T + parameters["critic.1.bias"]).squeeze(1)
    (0.5 * (value - target).square().mean()).backward()
    scale = None
    for name, parameter in parameters.items():
        ours = algorithm._networks.gradients[name].double()
        wanted = parameter.grad
        assert wanted is not None
        # Gradients may have been scaled down to the maximum norm, all by one factor.
        scale = scale or float(ours.norm() / wanted.norm())
        torch.testing.assert_close(ours, wanted * scale, atol=1e-5, rtol=1e-3)
    assert scale is not None
    assert scale <= 1.0 + 1e-4


@pytest.mark.long
@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_the_two_step_game_is_solved(name: str) -> None:
    simulator = make("matrix:two-step", 16)
    settings = {"horizon": 16, "minibatch_size": 128, "learning_rate": 3e-3, "hidden_sizes": [16]}
    algorithm = made(name, simulator, **settings, shared_reward=True, entropy_coefficient=0.03)
    for _ in range(60):
        algorithm.update(rollout_of(algorithm, simulator, 16))
    actor = PolicyActor(algorithm.policy, simulator.count, torch.Generator(), greedy=True)
    assert float(play(simulator, actor, 16, 1).returns.mean()) == 8.0


def test_a_team_without_an_algorithm_for_teams_is_refused_and_the_reverse() -> None:
    with pytest.raises(InvalidArgument) as caught:
        made("ppo", make("matrix:two-step", 1))
    assert caught.value.message == (
        "algorithm 'ppo' trains one agent, but the environment has the agents agent_0, agent_1: choose one of ippo, "
        "mappo, vdn, qmix, maddpg, matd3"
    )
    with pytest.raises(InvalidArgument) as caught:
        made("mappo", make("cartpole", 1))
    assert caught.value.message == (
        "algorithm 'mappo' trains teams, but the environment has a single agent: choose an algorithm for one agent, "
        "for instance ppo"
    )


def test_recurrent_policies_of_teams_whose_agents_leave_are_refused() -> None:
    simulator = Leaving(2)
    algorithm = made("ippo", simulator, recurrent_size=4)
    fields = rollout_fields(simulator.observation_space, simulator.action_space, 6, 6, 4)
    found = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
    collect(simulator, algorithm.policy, found, Lanes.start(simulator.reset(1), 4, 3), torch.Generator())
    with pytest.raises(InvalidArgument) as caught:
        algorithm.update(found)
    assert "hyperparameter recurrent_size: agents leave this environment before it ends" in caught.value.message
