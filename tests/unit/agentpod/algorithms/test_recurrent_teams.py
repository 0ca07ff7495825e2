"""Recurrent VDN and QMIX: sequences are what happened, gradients follow the papers, and memory is used."""

from typing import Any

import pytest
import torch
from experience import SPACES, TEAM
from recurrent_references import remembered
from team_references import reference_mix
from team_worlds import TeamRecall
from torch import Tensor

from agentpod.algorithms import make as make_algorithm
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields, replay_rows
from agentpod.experience.rollout import Lanes, collect
from agentpod.experience.sequence_batch import SequenceBatch, sample_sequences
from agentpod.models.actors import PolicyActor
from agentpod.models.mlp import Sequences
from agentpod.roles.episodes import play
from podrace.errors import InvalidArgument
from simulators import Simulator, make

AGENTS, STEPS, ENVIRONMENTS, HORIZON = 2, 5, 3, 4
LANES = AGENTS * ENVIRONMENTS
Tensors = dict[str, Tensor]


def numbered(segments: int, rows: int = 16) -> ReplayBuffer:
    """A memory whose steps are numbered: the action is the number of the step of its lane, times 10, plus the lane."""
    fields = replay_fields(TEAM, SPACES["discrete"], rows, LANES)
    memory = {key: torch.zeros(field.shape, dtype=field.dtype) for key, field in fields.items()}
    replay = ReplayBuffer(memory, HORIZON)
    for segment in range(segments):
        first = replay.grant()
        steps = torch.arange(segment * HORIZON, (segment + 1) * HORIZON)
        part = slice(first, first + HORIZON)
        memory["action"][part] = steps.unsqueeze(1) * 10 + torch.arange(LANES)
        # Environment e ends an episode in its steps 6 + e, 13 + e, ...; its first agent leaves one step earlier.
        place = steps.unsqueeze(1) - torch.arange(LANES) // AGENTS
        memory["terminated"][part] = (place % 7 == 6) | ((place % 7 == 5) & (torch.arange(LANES) % AGENTS == 0))
        replay.receive(first)
    return replay


@pytest.mark.parametrize("segments", [1, 2, 3, 9])
def test_a_sequence_consists_of_consecutive_steps_of_the_agents_of_one_environment(segments: int) -> None:
    replay, generator = numbered(segments), torch.Generator().manual_seed(segments)
    wanted = min(STEPS + 2, segments * HORIZON, 16)
    starts = set()
    for _ in range(20):
        batch = sample_sequences(replay, 4, AGENTS, STEPS, 2, 0.9, generator)
        step, lane = (batch.action // 10).view(-1, 8), (batch.action % 10).view(-1, 8)
        assert len(step) == wanted
        assert torch.equal(step - step[0], torch.arange(wanted).unsqueeze(1).expand(-1, 8))
        assert torch.equal(lane, lane[0].expand(wanted, -1))
        assert torch.equal(lane[0, ::2] + 1, lane[0, 1::2])
        assert (lane[0, ::2] % AGENTS == 0).all()
        starts |= set(step[0].tolist())
    oldest = max(0, segments * HORIZON - 16)
    assert starts == set(range(oldest, segments * HORIZON - wanted + 1))


def test_states_are_reset_and_steps_count_where_an_episode_begins() -> None:
    replay, generator = numbered(4), torch.Generator().manual_seed(3)
    for _ in range(20):
        batch = sample_sequences(replay, 4, AGENTS, STEPS, 2, 0.9, generator)
        step, lane = (batch.action // 10).view(-1, 8), (batch.action % 10).view(-1, 8)
        before = step - 1 - lane // AGENTS
        begins = (step > 0) & (before % 7 == 6)
        left = (step > 0) & (before % 7 == 5) & (lane % AGENTS == 0)
        assert torch.equal(batch.keep.squeeze(-1)[1:] == 0, (begins | left)[1:])
        counted = begins.cumsum(0) > 0
        counted[2:] = True
        assert torch.equal(batch.weight.view(-1, 8) > 0, counted & ~left)
        assert float(batch.weight.view(-1, AGENTS).amax(1).mean()) == pytest.approx(1.0)


def random_sequences(seed: int = 0) -> SequenceBatch:
    generator, lanes = torch.Generator().manual_seed(seed), 2 * AGENTS
    rows = STEPS * lanes
    discount = torch.full((STEPS, lanes), 0.9)
    discount[1, :2] = 0.0
    keep = torch.ones(STEPS, lanes, 1)
    keep[2, :2] = 0.0
    keep[3, 2:] = 0.0
    weight = torch.ones(STEPS, lanes)
    weight[0, 2:] = 0.0
    return SequenceBatch(
        torch.randn(rows, 3, generator=generator),
        torch.randint(3, (rows,), generator=generator),
        torch.randn(rows, generator=generator),
        discount.flatten(),
        torch.randn(rows, 3, generator=generator),
        weight.flatten() / weight.mean(),
        torch.arange(rows),
        keep,
    )


def recurrent_values(tensors: Tensors, batch: SequenceBatch, rows: Tensor) -> Tensor:
    """Values [T L, n] of `rows` [T L, D] that follow the state before each step (the observations) or after it."""
    lanes = batch.keep.shape[1]

    def features(seen: Tensor) -> Tensor:
        return (seen.double() @ tensors["actor.0.weight"].T + tensors["actor.0.bias"]).relu()

    def output(states: Tensor) -> Tensor:
        return states @ tensors["actor.output.0.weight"].T + tensors["actor.output.0.bias"]

    sequences = Sequences(batch.keep, torch.zeros(lanes, 4, dtype=torch.float64))
    states = remembered(tensors, "actor.recurrent", features(batch.observation).view(STEPS, lanes, -1), sequences)
    if rows is batch.observation:
        return output(states.flatten(0, 1))
    # One more step of every lane from every state, as a sequence of one step over T L lanes.
    once = Sequences(torch.ones(1, STEPS * lanes, 1), states.flatten(0, 1))
    return output(remembered(tensors, "actor.recurrent", features(rows).unsqueeze(0), once)[0])


@pytest.mark.parametrize("name", ["vdn", "qmix"])
def test_loss_and_gradient_equal_a_reference_in_float64(name: str) -> None:
    settings = {"hidden_sizes": [6], "recurrent_size": 4}
    algorithm: Any = make_algorithm(name, TEAM, SPACES["discrete"], settings, seed=2)
    batch, networks = random_sequences(), algorithm._trained_networks
    networks.parameters.normal_(std=0.5, generator=torch.Generator().manual_seed(4))
    networks.target.normal_(std=0.5, generator=torch.Generator().manual_seed(5))
    actor = {key: one.double().requires_grad_() for key, one in algorithm.policy.tensors().items() if "actor." in key}
    target, begin = {}, 0
    for key, tensor in actor.items():
        target[key] = networks.target[begin : begin + tensor.numel()].view(tensor.shape).double()
        begin += tensor.numel()
    mixers: list[Tensors] = [
        {key: one.detach().double().requires_grad_() for key, one in modules["mixer"].named_parameters()}
        if modules
        else {}
        for modules in (networks.modules, networks.target_modules)
    ]

    def mix(own: Tensors, values: Tensor, rows: Tensor) -> Tensor:
        return reference_mix(own, values, rows.double().view(len(values), -1)) if own else values.sum(1)

    def pick(values: Tensor, choice: Tensor) -> Tensor:
        return values.gather(1, choice.unsqueeze(1)).view(-1, AGENTS)

    chosen = pick(recurrent_values(actor, batch, batch.observation), batch.action)
    best = recurrent_values(actor, batch, batch.next_observation).argmax(1)
    after = pick(recurrent_values(target, batch, batch.next_observation), best)
    reward, discount = (field.double().view(-1, AGENTS) for field in (batch.reward, batch.discount))
    wanted = reward.sum(1) + discount.amax(1) * mix(mixers[1], after, batch.next_observation)
    error = mix(mixers[0], chosen, batch.observation) - wanted.detach()
    expected = (batch.weight.double().view(-1, AGENTS)[:, 0] * error.square()).mean()
    expected.backward()

    with torch.enable_grad():
        loss, _ = algorithm.loss(batch)
        networks.gradient.zero_()
        loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    parameters = [*actor.values(), *mixers[0].values()]
    gradient = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    found = torch.cat([each.grad.flatten() for each in networks.leaves if each.grad is not None]).double()
    assert int((gradient != 0).sum()) > 0.5 * len(gradient)
    torch.testing.assert_close(found[found != 0], gradient[gradient != 0], rtol=1e-3, atol=1e-5)


SETTINGS: dict[str, Any] = {
    "horizon": HORIZON,
    "updates_per_step": 1 / 16,
    "warmup_steps": 256,
    "replay_capacity": 20_000,
    "learning_rate": 3e-3,
    "hidden_sizes": [32],
    "recurrent_size": 16,
    "sequence_length": 4,
    "burn_in": 2,
    # As in the paper: every joint action is seen equally often.
    "final_exploration": 1.0,
}


def trained_return(name: str, simulator: Simulator, segments: int, **settings: object) -> float:
    spaces = simulator.observation_space, simulator.action_space
    algorithm: Any = make_algorithm(name, *spaces, {**SETTINGS, **settings}, seed=1)
    rows = replay_rows(SETTINGS["replay_capacity"], HORIZON, simulator.count)
    fields = replay_fields(*spaces, rows, simulator.count)
    memory = {key: torch.zeros(field.shape, dtype=field.dtype) for key, field in fields.items()}
    replay, generator = ReplayBuffer(memory, HORIZON), torch.Generator().manual_seed(1)
    lanes = Lanes.start(simulator.reset(1), algorithm.policy.state_size, AGENTS)
    for _ in range(segments):
        first = replay.grant()
        segment = {key: tensor[first : first + HORIZON] for key, tensor in memory.items()}
        lanes = collect(simulator, algorithm.policy, segment, lanes, generator).lanes
        replay.receive(first)
        algorithm.update(replay)
    actor = PolicyActor(algorithm.policy, simulator.count, generator, greedy=True)
    return float(play(simulator, actor, 64, 1).returns.mean())


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "id", "expected"),
    [
        ("vdn", "matrix:two-step", 7.0),
        ("qmix", "matrix:two-step", 8.0),
        pytest.param("vdn", "matrix:nonmonotonic", 0.0, marks=pytest.mark.slow),
        pytest.param("qmix", "matrix:nonmonotonic", 0.0, marks=pytest.mark.slow),
    ],
)
def test_the_games_of_the_papers_end_as_published(name: str, id: str, expected: float) -> None:
    assert trained_return(name, make(id, 16), 220) == expected


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["vdn", "qmix"])
def test_only_a_recurrent_team_remembers(name: str) -> None:
    returns = {size: trained_return(name, TeamRecall(64), 160, recurrent_size=size) for size in (16, 0)}
    assert returns[16] >= 0.95
    # Sixty-four guesses: three standard deviations above one half.
    assert returns[0] <= 0.7


@pytest.mark.parametrize("wrong", [{"prioritized": True}, {"n_step": 3}])
def test_what_sequences_do_not_support_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(
        InvalidArgument, match=f"hyperparameter {next(iter(wrong))} = .*: recurrent networks learn from"
    ):
        make_algorithm("qmix", TEAM, SPACES["discrete"], {"recurrent_size": 4, **wrong}, seed=0)
