"""Tests recurrent policies from worker to learner: the state is carried, reset, trained through time and saved."""

import itertools
import math
from collections.abc import Mapping

import pytest
import torch
from exactness import one_thread as one_thread
from experience import FOR_TEAMS, OBSERVED, SPACES
from learning import evaluate, train
from recurrent_references import leaves, reference, remembered
from safetensors.torch import load, save
from small_worlds import Recall
from torch import Tensor, nn

from agentpod.algorithms import ALGORITHMS, Algorithm, make
from agentpod.experience.rollout import CollectResult, Lanes, collect, rollout_fields
from agentpod.experience.rollout_batch import RecurrentStates, RolloutBatch
from agentpod.models.actors import PolicyActor
from agentpod.models.distributions import require_distribution
from agentpod.models.factory import NetworkFactory
from agentpod.models.mlp import Sequences
from agentpod.models.policy import Policy
from agentpod.roles.evaluator import play
from podrace.errors import DataLoss, InvalidArgument

LANES, SIZE = 3, 4
HORIZON = 10
SETTINGS: dict[str, object] = {
    "hidden_sizes": [8],
    "horizon": HORIZON,
    "minibatch_size": 2 * HORIZON,
    "epochs": 2,
    "recurrent_size": SIZE,
}


def new_algorithm(name: str = "ppo", seed: int = 1, **hyperparameters: object) -> Algorithm:
    """Returns an algorithm with random networks, whose outputs depend on the recurrent state from the start."""
    settings = {key: value for key, value in SETTINGS.items() if key in _names(name)}
    algorithm = make(name, Recall.observation_space, Recall.action_space, {**settings, **hyperparameters}, seed)
    parameters = algorithm._networks.parameters  # type: ignore[attr-defined]
    parameters.copy_(torch.randn(parameters.shape, generator=torch.Generator().manual_seed(seed)) * 0.6)
    return algorithm


def _names(name: str) -> set[str]:
    return set(vars(ALGORITHMS[name].settings_type()))


class Walk:
    """Collects consecutive rollouts of one environment with the algorithm's present policy."""

    def __init__(self, algorithm: Algorithm, lanes: int = LANES, horizon: int = HORIZON) -> None:
        self.simulator, self.policy, self.horizon = Recall(lanes), algorithm.policy, horizon
        self.lanes = Lanes.start(self.simulator.reset(5), SIZE)
        self.generator = torch.Generator().manual_seed(0)
        self.results: list[CollectResult] = []

    def next(self) -> dict[str, Tensor]:
        simulator = self.simulator
        fields = rollout_fields(
            simulator.observation_space, simulator.action_space, self.horizon, simulator.count, SIZE
        )
        rollout = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
        rollout["final_observation"].fill_(-77)
        self.results.append(collect(simulator, self.policy, rollout, self.lanes, self.generator))
        self.lanes = self.results[-1].lanes
        return rollout


def keep_of(rollout: Mapping[str, Tensor]) -> Tensor:
    """Returns [T + 1, N, 1]: 0 in the row after the end of an episode, else 1."""
    done = rollout["terminated"] | rollout["truncated"]
    return torch.cat((torch.ones(1, done.shape[1]), (~done).float())).unsqueeze(-1)


def test_the_learners_unrolled_outputs_equal_the_workers_step_by_step_outputs() -> None:
    algorithm = new_algorithm()
    walk = Walk(algorithm)
    for _ in range(3):
        rollout = walk.next()
        assert (rollout["terminated"] | rollout["truncated"]).any()
        unrolled = algorithm.policy.actor.unrolled(Sequences(keep_of(rollout)[:-1], rollout["state"][0]))
        seen = algorithm.policy.normalize(rollout["observation"][:-1].flatten(0, 1))
        log_prob = require_distribution(algorithm.policy.head).log_prob(
            unrolled.trace(seen)[-1], rollout["action"].flatten(0, 1)
        )
        torch.testing.assert_close(log_prob, rollout["log_prob"].flatten(), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(
            log_prob,
            require_distribution(algorithm.policy.head).log_prob(
                algorithm.policy.outputs(rollout["observation"][:-1].flatten(0, 1)), rollout["action"].flatten(0, 1)
            ),
        )


def test_the_recurrent_state_is_carried_across_rollouts() -> None:
    algorithm = new_algorithm()
    long, short = Walk(algorithm, horizon=4 * HORIZON), Walk(algorithm)
    noise_of = long.generator.get_state()
    whole = long.next()
    short.generator.set_state(noise_of)
    noise = algorithm.policy.noise((4 * HORIZON, LANES), short.generator)
    pieces = []
    for k in range(4):
        short.policy = _Scripted(algorithm.policy, noise[k * HORIZON : (k + 1) * HORIZON])
        pieces.append(short.next())
    assert torch.equal(torch.cat([piece["action"] for piece in pieces]), whole["action"])
    torch.testing.assert_close(torch.cat([piece["log_prob"] for piece in pieces]), whole["log_prob"])
    assert not pieces[0]["state"].any()
    assert all(piece["state"].shape == (1, LANES, SIZE) for piece in pieces)
    ends = [keep_of(piece)[-1] for piece in pieces]
    # Episodes have six steps, rollouts ten: of all rollouts only the third ends with an episode.
    assert [bool(end.all()) for end in ends] == [True, True, False, True]
    assert [bool(piece["state"].any()) for piece in pieces] == [False, True, True, False]


class _Scripted:
    """A policy with noise drawn in advance."""

    def __init__(self, policy: Policy, noise: Tensor) -> None:
        self._policy, self._noise = policy, noise

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def noise(self, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
        assert leading == self._noise.shape[:2]
        return self._noise


@pytest.mark.parametrize("greedy", [True, False])
def test_an_evaluation_resets_the_recurrent_state_between_episodes(greedy: bool) -> None:
    policy = new_algorithm().policy
    states: list[Tensor] = []
    advance = policy.advance

    def watched(observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        states.append(state.clone())
        return advance(observation, state)

    policy.advance = watched  # type: ignore[method-assign]
    play(Recall(2), PolicyActor(policy, 2, torch.Generator(), greedy=greedy), 4, 0)
    assert [bool(state.any()) for state in states] == [False, *[True] * 5, False, *[True] * 5]


def paper_loss(
    tensors: Mapping[str, Tensor], settings: Mapping[str, float], rollout: Mapping[str, Tensor], critic_state: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the loss of the first minibatch of an update with all lanes, lane by lane and step by step.

    Equations 7 and 9 of Schulman et al. 2017 and generalized advantages; only the advantages are normalized.
    Returns policy loss, value loss, entropy, and the state of the critic at the end [N, H].
    """
    plan = NetworkFactory(Recall.observation_space, (8,), "tanh", recurrent_size=SIZE)
    keep, steps = keep_of(rollout).double(), len(rollout["reward"])
    rows = rollout["observation"].double()

    def outputs(name: str, inputs: Tensor, sequences: Sequences) -> Tensor:
        own = {f"net{key.removeprefix(name)}": tensor for key, tensor in tensors.items() if key.startswith(name)}
        return reference(plan, own, inputs.flatten(0, 1), sequences).view(*inputs.shape[:2], -1)

    values = outputs("critic", rows, Sequences(keep, critic_state))[..., 0]
    advantage = torch.zeros(values[:-1].shape, dtype=torch.float64)
    for lane, t in itertools.product(range(values.shape[1]), reversed(range(steps))):
        following = values[t + 1, lane].detach()
        if rollout["terminated"][t, lane]:
            following = torch.zeros(())
        elif rollout["truncated"][t, lane]:
            # Truncated: the value after the episode's rows so far and the final observation.
            one = slice(lane, lane + 1)
            episode = torch.cat((rows[: t + 1, one], rollout["final_observation"][t : t + 1, one].double()))
            unbroken = torch.cat((keep[: t + 1, one], torch.ones(1, 1, 1, dtype=torch.float64)))
            following = outputs("critic", episode, Sequences(unbroken, critic_state[one]))[-1, 0, 0].detach()
        residual = rollout["reward"][t, lane] + settings["discount"] * following - values[t, lane].detach()
        advantage[t, lane] = residual
        if not rollout["terminated"][t, lane] and not rollout["truncated"][t, lane] and t + 1 < steps:
            advantage[t, lane] += settings["discount"] * settings["gae_lambda"] * advantage[t + 1, lane]
    target = advantage + values[:-1].detach()
    logits = outputs("actor", rows[:-1], Sequences(keep[:-1], rollout["state"][0].double()))
    policy = torch.distributions.Categorical(logits=logits)
    ratio = (policy.log_prob(rollout["action"]) - rollout["log_prob"].double()).exp()
    advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    clipped = ratio.clamp(1 - settings["clip_range"], 1 + settings["clip_range"])
    surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
    critic = {f"net{key.removeprefix('critic')}": value for key, value in tensors.items() if key.startswith("critic")}
    hidden = nn.functional.linear(rows, critic["net.0.weight"], critic["net.0.bias"]).tanh()
    states = remembered(critic, "net.recurrent", hidden, Sequences(keep, critic_state))
    return -surrogate, (values[:-1] - target).square().mean(), policy.entropy().mean(), states[-2] * keep[-1]


def test_a_whole_update_follows_the_paper_through_time() -> None:
    settings = {"discount": 0.9, "gae_lambda": 0.8, "clip_range": 0.2}
    algorithm = new_algorithm(
        **settings,
        epochs=1,
        minibatch_size=LANES * HORIZON,
        normalize_observations=False,
        normalize_rewards=False,
        entropy_coefficient=0.03,
    )
    walk, critic_state = Walk(algorithm), torch.zeros(LANES, SIZE, dtype=torch.float64)
    for _ in range(3):
        rollout = walk.next()
        assert rollout["truncated"].any()
        assert rollout["terminated"].any()
        # As if an older policy had acted, so that ratios differ from 1 and some are clipped.
        rollout["log_prob"] += 0.3 * torch.randn(HORIZON, LANES, generator=torch.Generator().manual_seed(1))
        state = {key: value for key, value in algorithm.state_dict().items() if key.startswith("critic.")}
        tensors = leaves({**algorithm.policy.tensors(), **state})
        policy_loss, value_loss, entropy, critic_state = paper_loss(tensors, settings, rollout, critic_state)
        loss = policy_loss + 0.5 * value_loss - 0.03 * entropy
        gradients = torch.autograd.grad(loss, list(tensors.values()))
        metrics = algorithm.update(rollout)
        assert metrics["policy_loss"] == pytest.approx(policy_loss.item(), rel=1e-4, abs=1e-6)
        assert metrics["value_loss"] == pytest.approx(value_loss.item(), rel=1e-4)
        assert metrics["entropy"] == pytest.approx(entropy.item(), rel=1e-4)
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        assert metrics["gradient_norm"] == pytest.approx(float(norm), rel=1e-4)
        critic_state = critic_state.detach()
        torch.testing.assert_close(algorithm.state_dict()["critic_state"].double(), critic_state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_resumed_algorithm_continues_bitwise_equal(name: str) -> None:
    straight = new_algorithm(name)
    walk = Walk(straight)
    for _ in range(3):
        straight.update(walk.next())
    resumed = new_algorithm(name, seed=2)
    resumed._seed = 1  # type: ignore[attr-defined]
    resumed.policy.load(straight.policy.flat)
    resumed.load_state_dict(load(save(straight.state_dict())))
    for _ in range(2):
        rollout = walk.next()
        assert straight.update(rollout) == resumed.update(rollout)
    for key, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[key]), key
    assert torch.equal(straight.policy.flat, resumed.policy.flat)


def test_the_critics_state_is_used_until_begin_episodes() -> None:
    rollout, metrics = Walk(new_algorithm()).next(), []
    for forgets in (False, True):
        algorithm = new_algorithm()
        algorithm.update(Walk(algorithm).next())
        assert algorithm.state_dict()["critic_state"].any()
        if forgets:
            algorithm.begin_episodes()
            assert algorithm.state_dict()["critic_state"].shape == (0, SIZE)
        metrics.append(algorithm.update(rollout))
    assert metrics[0]["value_loss"] != metrics[1]["value_loss"]


def test_a_changed_number_of_lanes_resets_the_critics_state() -> None:
    algorithm = new_algorithm()
    algorithm.update(Walk(algorithm).next())
    algorithm.update(Walk(algorithm, lanes=5).next())
    assert algorithm.state_dict()["critic_state"].shape == (5, SIZE)


def test_an_undone_update_keeps_the_critics_state() -> None:
    algorithm = new_algorithm()
    walk = Walk(algorithm)
    algorithm.update(walk.next())
    before, rollout = algorithm.state_dict(), walk.next()
    rollout["reward"][3, 1] = math.inf
    with pytest.raises(DataLoss):
        algorithm.update(rollout)
    for key, tensor in algorithm.state_dict().items():
        assert torch.equal(tensor, before[key]), key


def numbered_batch(steps: int, lanes: int) -> RolloutBatch:
    rows = torch.arange(float(steps * lanes))
    state = torch.arange(float(lanes)).unsqueeze(1)
    states = RecurrentStates(rows.view(steps, lanes, 1), state, state + 10, state + 20)
    return RolloutBatch(rows.unsqueeze(1), rows, rows, rows, rows, rows, states)


def test_minibatches_consist_of_whole_lanes() -> None:
    steps, lanes = 3, 5
    rows, batch = torch.arange(float(steps * lanes)), numbered_batch(steps, lanes)
    assert batch.units == lanes
    pieces = list(batch.minibatches(torch.randperm(lanes), minibatch_size=8))
    assert sorted(piece.units for piece in pieces) == [1, 2, 2]
    assert sorted(torch.cat([piece.value for piece in pieces]).tolist()) == rows.tolist()
    for piece in pieces:
        assert piece.recurrent_states is not None
        assert torch.equal(piece.value, piece.recurrent_states.keep.flatten())
        lane = piece.value[: piece.units].unsqueeze(1)
        assert torch.equal(piece.recurrent_states.actor, lane)
        assert torch.equal(piece.recurrent_states.critic, lane + 10)
        assert torch.equal(piece.recurrent_states.next_critic, lane + 20)
        assert all(torch.equal(field.flatten(), piece.value) for field in piece[:6])


@pytest.mark.parametrize("minibatch_size", [1, 2, 3, 5])
def test_a_minibatch_has_at_least_one_lane(minibatch_size: int) -> None:
    pieces = list(numbered_batch(steps=3, lanes=5).minibatches(torch.arange(5), minibatch_size))
    assert [piece.units for piece in pieces] == [1] * 5


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in {"ppo", "a2c", *FOR_TEAMS}])
def test_off_policy_algorithms_refuse_recurrence(name: str) -> None:
    kind = sorted(ALGORITHMS[name].action_kinds)[0]
    with pytest.raises(InvalidArgument, match="hyperparameter 'recurrent_size' is unknown"):
        make(name, OBSERVED, SPACES[kind], {"recurrent_size": 8}, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_only_a_recurrent_policy_solves_recall(seed: int) -> None:
    settings = {"hidden_sizes": [16], "horizon": 20, "learning_rate": 5e-3, "minibatch_size": 160}
    returns = {}
    for size in (16, 0):
        algorithm = train("ppo", "python:small_worlds:Recall", {**settings, "recurrent_size": size}, seed, steps=20_000)
        returns[size] = evaluate("python:small_worlds:Recall", algorithm.policy)
    assert returns[16] >= 0.95
    # Thirty-two guesses: three standard deviations above one half.
    assert returns[0] <= 0.77
