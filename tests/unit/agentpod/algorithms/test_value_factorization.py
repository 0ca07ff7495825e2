"""VDN adds the values of the agents, QMIX mixes them monotonically; both solve what they can represent and no more."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from experience import SPACES, TEAM
from team_references import reference_mix
from torch import Tensor

from agentpod.algorithms import make as make_algorithm
from agentpod.algorithms.teams.qmix import Mixer
from agentpod.algorithms.teams.team_replay import TeamReplay
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields, replay_rows
from agentpod.experience.rollout import Lanes, collect
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.actors import PolicyActor
from agentpod.roles.episodes import play
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from simulators import make

AGENTS, OBSERVED, STEPS = 2, 3, 5


def new(name: str, **settings: Any) -> Any:
    return make_algorithm(name, TEAM, SPACES["discrete"], {"hidden_sizes": [8], **settings}, seed=2)


def random_batch(seed: int = 0) -> TransitionBatch:
    generator = torch.Generator().manual_seed(seed)
    rows = STEPS * AGENTS
    return TransitionBatch(
        torch.randn(rows, OBSERVED, generator=generator),
        torch.randint(3, (rows,), generator=generator),
        torch.randn(rows, generator=generator),
        # The environment of the second step has ended, and one agent of the third has left.
        torch.tensor([0.9, 0.9, 0.0, 0.0, 0.9, 0.0, 0.9, 0.9, 0.9, 0.9]),
        torch.randn(rows, OBSERVED, generator=generator),
        torch.rand(STEPS, generator=generator).repeat_interleave(AGENTS),
        torch.arange(rows),
    )


def test_the_value_of_a_joint_action_is_the_sum_for_vdn() -> None:
    values = torch.randn(STEPS, AGENTS, dtype=torch.float64, requires_grad=True)
    total = new("vdn").mix(values, torch.randn(STEPS, AGENTS * OBSERVED))
    assert torch.equal(total, values[:, 0] + values[:, 1])
    (gradient,) = torch.autograd.grad(total.sum(), values)
    assert torch.equal(gradient, torch.ones_like(values))


def test_the_value_of_a_joint_action_increases_with_each_value_for_qmix() -> None:
    torch.manual_seed(0)
    mixer = Mixer(AGENTS, OBSERVED, 16).double()
    for scale in (0.1, 1.0, 10.0):
        values = (scale * torch.randn(200, AGENTS, dtype=torch.float64)).requires_grad_()
        (gradient,) = torch.autograd.grad(mixer(values, torch.randn(200, OBSERVED).double()).sum(), values)
        assert (gradient >= 0).all()
        assert (gradient > 0).float().mean() > 0.9


def test_so_the_best_joint_action_consists_of_the_best_own_actions() -> None:
    torch.manual_seed(1)
    mixer, state = Mixer(AGENTS, OBSERVED, 16), torch.randn(50, OBSERVED)
    own = torch.randn(50, AGENTS, 3)
    joint = torch.stack(
        [mixer(torch.stack((own[:, 0, i], own[:, 1, j]), 1), state) for i in range(3) for j in range(3)], 1
    )
    best = own.argmax(-1)
    assert torch.equal(joint.argmax(1), 3 * best[:, 0] + best[:, 1])


def test_a_network_that_mixes_values_refuses_images_and_a_sum_does_not() -> None:
    images = replace(TEAM, shape=(1, 8, 8), dtype=torch.uint8)
    settings = {"torso": "small", "hidden_sizes": [8]}
    make_algorithm("vdn", images, SPACES["discrete"], settings, seed=0)
    with pytest.raises(InvalidArgument, match="algorithm 'qmix' needs observations that are vectors") as caught:
        make_algorithm("qmix", images, SPACES["discrete"], settings, seed=0)
    assert caught.value.reason == UNSUITABLE_SPACE


def perceptron(tensors: dict[str, Tensor], rows: Tensor) -> Tensor:
    hidden = (rows @ tensors["actor.0.weight"].T + tensors["actor.0.bias"]).relu()
    return hidden @ tensors["actor.1.weight"].T + tensors["actor.1.bias"]


@pytest.mark.parametrize("name", ["vdn", "qmix"])
def test_loss_and_gradient_equal_a_reference_in_float64(name: str) -> None:
    algorithm, batch = new(name), random_batch()
    networks = algorithm._trained_networks
    networks.target.normal_(std=0.3, generator=torch.Generator().manual_seed(5))
    actor = {key: one.double().requires_grad_() for key, one in algorithm.policy.tensors().items() if "actor." in key}
    target, begin = {}, 0
    for key, tensor in actor.items():
        target[key] = networks.target[begin : begin + tensor.numel()].view(tensor.shape).double()
        begin += tensor.numel()
    mixers = [
        {key: one.detach().double().requires_grad_() for key, one in modules["mixer"].named_parameters()}
        if modules
        else {}
        for modules in (networks.modules, networks.target_modules)
    ]

    def mix(own: dict[str, Tensor], values: Tensor, rows: Tensor) -> Tensor:
        return reference_mix(own, values, rows.view(STEPS, -1)) if own else values.sum(1)

    seen, following = batch.observation.double(), batch.next_observation.double()
    chosen = torch.stack([perceptron(actor, seen)[row, batch.action[row]] for row in range(len(seen))]).view(
        STEPS, AGENTS
    )
    best = perceptron(actor, following).argmax(1)
    valued = perceptron(target, following)
    after = torch.stack([valued[row, best[row]] for row in range(len(seen))]).view(STEPS, AGENTS)
    after = after * (batch.discount.view(STEPS, AGENTS) > 0)
    reward = batch.reward.double().view(STEPS, AGENTS).sum(1)
    # The state has zeros in place of an agent that has left. The discount is 0 only where both agents have ended.
    following = following * (batch.discount > 0).unsqueeze(1)
    discount = torch.tensor([0.9, 0.0, 0.9, 0.9, 0.9], dtype=torch.float64)
    wanted = (reward + discount * mix(mixers[1], after, following)).detach()
    error = mix(mixers[0], chosen, seen) - wanted
    expected = (batch.weight.double()[::AGENTS] * error.square()).mean()
    expected.backward()

    with torch.enable_grad():
        loss, errors = algorithm.loss(batch)
        networks.gradient.zero_()
        loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    torch.testing.assert_close(errors.double(), error.detach().repeat_interleave(AGENTS), rtol=1e-3, atol=1e-4)
    parameters = [*actor.values(), *mixers[0].values()]
    gradient = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    found = torch.cat([each.grad.flatten() for each in networks.leaves if each.grad is not None]).double()
    # The actor's buffer ends with the exploration rate, which has no gradient.
    assert len(found) - len(gradient) in (0, 1)
    torch.testing.assert_close(found[found != 0], gradient[gradient != 0], rtol=1e-3, atol=1e-5)


def test_a_sampled_step_has_a_row_for_each_agent_of_one_environment() -> None:
    lanes, horizon = 6, 4
    rows = replay_rows(96, horizon, lanes)
    fields = replay_fields(TEAM, SPACES["discrete"], rows, lanes)
    memory = {key: torch.zeros(field.shape, dtype=field.dtype) for key, field in fields.items()}
    replay = ReplayBuffer(memory, horizon)
    memory["action"].copy_(torch.arange(rows * lanes).view(rows, lanes))
    replay.receive(replay.grant())
    team = TeamReplay(replay, AGENTS)
    assert (team.steps, team.segment_steps) == (12, 12)
    drawn = team.sample(64, 1, 0.9, torch.Generator().manual_seed(1)).action.view(64, AGENTS)
    assert torch.equal(drawn[:, 0] + 1, drawn[:, 1])
    assert set(drawn[:, 0].tolist()) == set(range(0, horizon * lanes, AGENTS))


SETTINGS: dict[str, Any] = {
    "horizon": 4,
    "updates_per_step": 1 / 16,
    "warmup_steps": 256,
    "replay_capacity": 20_000,
    "learning_rate": 3e-3,
    "hidden_sizes": [32],
    # As in the paper: every joint action is seen equally often.
    "final_exploration": 1.0,
}


def trained_return(name: str, id: str) -> float:
    simulator = make(id, 16)
    spaces = simulator.observation_space, simulator.action_space
    algorithm: Any = make_algorithm(name, *spaces, SETTINGS, seed=1)
    rows = replay_rows(SETTINGS["replay_capacity"], 4, simulator.count)
    fields = replay_fields(*spaces, rows, simulator.count)
    memory = {key: torch.zeros(field.shape, dtype=field.dtype) for key, field in fields.items()}
    replay, generator = ReplayBuffer(memory, 4), torch.Generator().manual_seed(1)
    lanes = Lanes.start(simulator.reset(1), 0, AGENTS)
    for _ in range(220):
        first = replay.grant()
        segment = {key: tensor[first : first + 4] for key, tensor in memory.items()}
        lanes = collect(simulator, algorithm.policy, segment, lanes, generator).lanes
        replay.receive(first)
        algorithm.update(replay)
    actor = PolicyActor(algorithm.policy, simulator.count, generator, greedy=True)
    return float(play(simulator, actor, 16, 1).returns.mean())


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "id", "expected"),
    [
        ("vdn", "matrix:two-step", 7.0),
        ("qmix", "matrix:two-step", 8.0),
        ("vdn", "matrix:nonmonotonic", 0.0),
        ("qmix", "matrix:nonmonotonic", 0.0),
    ],
)
def test_the_games_of_the_papers_end_as_published(name: str, id: str, expected: float) -> None:
    assert trained_return(name, id) == expected
