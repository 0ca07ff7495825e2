"""Tests what off-policy algorithms share: the number of gradient steps, their batches, exploration and priorities."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from exactness import one_thread as one_thread
from experience import LANES, OBSERVED, OFF_POLICY, SPACES, Course, new_algorithm
from torch import Tensor

from agentpod.algorithms import make, off_policy
from agentpod.algorithms.base import restored_on_error
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import replay_fields, replay_rows
from agentpod.experience.transitions import TransitionBatch
from agentpod.models.action_heads import dueling_values
from agentpod.models.normalizer import VARIANCE_FLOOR
from podrace.errors import InvalidArgument

EVERY_ALGORITHM = pytest.mark.parametrize(("name", "kind"), OFF_POLICY)
SEGMENTS = 24


def empty_replay(algorithm: Any, kind: str, lanes: int) -> ReplayBuffer:
    """Returns a replay buffer of zeros that no worker fills."""
    memory = algorithm.memory
    rows = replay_rows(memory.replay_capacity, memory.horizon, lanes)
    fields = replay_fields(OBSERVED, SPACES[kind], rows, lanes)
    tensors = {name: torch.zeros(field.shape, dtype=field.dtype) for name, field in fields.items()}
    return ReplayBuffer(tensors, memory.horizon, prioritized=memory.prioritized)


def spied(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[TransitionBatch, tuple[Tensor, Tensor]]]:
    """Records the batch and the result of every gradient step from now on."""
    steps: list[tuple[TransitionBatch, tuple[Tensor, Tensor]]] = []
    descend = algorithm._gradient_step

    def spy(batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        steps.append((batch, descend(batch, noise)))
        return steps[-1][1]

    monkeypatch.setattr(algorithm, "_gradient_step", spy)
    return steps


def idle(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns an algorithm whose gradient steps are counted but change nothing."""
    monkeypatch.setattr(
        algorithm,
        "_gradient_step",
        lambda batch, noise: (torch.zeros(len(algorithm.METRICS)), torch.zeros(len(batch.reward))),
    )


# --- number of gradient steps -----------------------------------------------------------------------------------------


def counted_updates(
    *,
    ratio: str,
    lanes: int,
    horizon: int,
    warmup_steps: int,
    capacity: int,
    ahead: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> list[int]:
    """Returns the gradient steps after each segment; `ahead` grants the next one before the update, as a pod does."""
    settings = {"updates_per_step": float(ratio), "horizon": horizon, "batch_size": 1, "hidden_sizes": [2]}
    algorithm: Any = new_algorithm("dqn", "discrete", **settings, warmup_steps=warmup_steps, replay_capacity=capacity)
    idle(algorithm, monkeypatch)
    replay = empty_replay(algorithm, "discrete", lanes)
    counts, first_row = [], replay.grant()
    for _ in range(SEGMENTS):
        replay.receive(first_row)
        if ahead:
            first_row = replay.grant()
        metrics = algorithm.update(replay)
        if not ahead:
            first_row = replay.grant()
        assert bool(metrics) == (algorithm.gradient_steps > (counts[-1] if counts else 0))
        counts.append(algorithm.gradient_steps)
    assert algorithm.environment_steps == SEGMENTS * lanes * horizon
    assert algorithm.update_number == SEGMENTS
    return counts


@pytest.mark.long
@pytest.mark.parametrize(("lanes", "horizon"), list(itertools.product((1, 4), (1, 3, 8))))
@pytest.mark.parametrize("ratio", ["0.125", "0.3", "1", "2.5"])
def test_the_update_to_data_ratio_does_not_depend_on_how_full_the_buffer_is(
    ratio: str, lanes: int, horizon: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = lanes * horizon
    for warmup_steps in (0, 2 * segment + 1):
        # The segment that completes the warm-up is the first that adds tokens.
        unpaid = max(0, -(-warmup_steps // segment) - 1)
        expected = [math.floor(Fraction(ratio) * segment * max(0, k - unpaid)) for k in range(1, SEGMENTS + 1)]
        for capacity, ahead in itertools.product((100_000, max(3 * segment, warmup_steps)), (False, True)):
            found = counted_updates(
                ratio=ratio,
                lanes=lanes,
                horizon=horizon,
                warmup_steps=warmup_steps,
                capacity=capacity,
                ahead=ahead,
                monkeypatch=monkeypatch,
            )
            assert found == expected


@pytest.mark.parametrize("ahead", [False, True])
def test_a_warm_up_as_long_as_the_buffer_completes(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counted_updates(
        ratio="1", lanes=4, horizon=2, warmup_steps=32, capacity=32, ahead=ahead, monkeypatch=monkeypatch
    )
    assert counts == [8 * max(0, k - 3) for k in range(1, SEGMENTS + 1)]


def test_an_update_without_gradient_steps_copies_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm: Any = new_algorithm("dqn", "discrete", horizon=2, warmup_steps=32, replay_capacity=64, batch_size=1)
    replay, copied = empty_replay(algorithm, "discrete", 4), []

    def spy(tensors: Sequence[Tensor]) -> Any:
        copied.append(algorithm.update_number)
        return restored_on_error(tensors)

    monkeypatch.setattr(off_policy, "restored_on_error", spy)
    for _ in range(5):
        replay.receive(replay.grant())
        algorithm.update(replay)
    assert copied == [3, 4]


def test_fractions_of_gradient_steps_survive_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"updates_per_step": 0.3, "horizon": 1, "batch_size": 1}
    algorithm: Any = new_algorithm("dqn", "discrete", **settings)
    replay = empty_replay(algorithm, "discrete", 1)
    for k in range(1, 51):
        # As in a new process.
        resumed: Any = new_algorithm("dqn", "discrete", **settings)
        resumed.load_state_dict(algorithm.state_dict())
        idle(algorithm := resumed, monkeypatch)
        replay.receive(replay.grant())
        algorithm.update(replay)
        assert algorithm.gradient_steps == 3 * k // 10
    assert algorithm.environment_steps == 50


@EVERY_ALGORITHM
def test_no_gradient_step_is_made_during_the_warm_up(name: str, kind: str) -> None:
    algorithm: Any = new_algorithm(name, kind, warmup_steps=3 * 8 * LANES - 1)
    course, before = Course(algorithm, kind), {}
    for _ in range(2):
        assert algorithm.update(course.next()) == {}
        state = {key: tensor for key, tensor in algorithm.state_dict().items() if "." in key}
        assert all(torch.equal(tensor, before[key]) for key, tensor in state.items() if before)
        before = state
    assert algorithm.update(course.next())
    assert algorithm.gradient_steps == 4


def test_an_agent_with_a_new_buffer_repeats_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm: Any = new_algorithm("dqn", "discrete", horizon=2, warmup_steps=24)
    idle(algorithm, monkeypatch)
    for _ in range(2):
        before, replay = algorithm.gradient_steps, empty_replay(algorithm, "discrete", LANES)
        for k in range(1, 5):
            replay.receive(replay.grant())
            algorithm.update(replay)
            assert algorithm.gradient_steps - before == max(0, k - 2)


@EVERY_ALGORITHM
def test_steps_are_counted_over_all_environments(name: str, kind: str) -> None:
    for lanes in (1, 6):
        algorithm: Any = new_algorithm(name, kind)
        course = Course(algorithm, kind, lanes=lanes)
        for k in range(1, 4):
            algorithm.update(course.next())
            assert algorithm.environment_steps == k * 8 * lanes
            assert algorithm.gradient_steps == k * lanes


def test_a_buffer_too_small_for_the_warm_up_or_a_batch_is_refused() -> None:
    for settings in ({"warmup_steps": 129}, {"batch_size": 129}):
        with pytest.raises(InvalidArgument, match=rf"{next(iter(settings))} = 129 exceeds replay_capacity = 128"):
            new_algorithm("dqn", "discrete", **settings)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prioritized", [False, True])
@EVERY_ALGORITHM
def test_a_gradient_step_uses_sampled_batches_with_normalized_observations(
    name: str, kind: str, prioritized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"n_step": 3, "discount": 0.9, "normalize_observations": True, "prioritized": prioritized}
    algorithm: Any = new_algorithm(name, kind, **settings)
    course = Course(algorithm, kind)
    assert algorithm.update(course.next())
    steps = spied(algorithm, monkeypatch)
    for _ in range(5):
        experience: Any = course.next()
        tensors = {key: tensor.clone() for key, tensor in algorithm.policy.tensors().items()}
        steps.clear()
        algorithm.update(experience)
        assert len(steps) == 4
        for batch, _ in steps:
            stored = experience.gather(batch.index, 3, 0.9)
            deviation = (tensors["observation_variance"] + VARIANCE_FLOOR).sqrt()
            for field in ("observation", "next_observation"):
                seen = ((getattr(stored, field) - tensors["observation_mean"]) / deviation).clamp(-10, 10)
                torch.testing.assert_close(getattr(batch, field), seen)
            for field in ("action", "reward", "discount"):
                assert torch.equal(getattr(batch, field), getattr(stored, field))
            assert len(batch.index) == 16
            assert batch.weight.eq(1.0).all() != prioritized
    assert not torch.equal(steps[0][0].index, steps[1][0].index)


@EVERY_ALGORITHM
def test_every_update_samples_differently_as_the_seed_determines(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = {}
    for seed, update_number in ((1, 0), (1, 0), (1, 1), (2, 0)):
        algorithm: Any = new_algorithm(name, kind, seed)
        algorithm.update_number = update_number
        steps = spied(algorithm, monkeypatch)
        algorithm._train(Course(algorithm, kind).next(), 1)
        index = tuple(steps[0][0].index.tolist())
        assert drawn.setdefault((seed, update_number), index) == index
    assert len(set(drawn.values())) == 3


def test_every_observation_is_added_to_the_statistics_once() -> None:
    algorithm: Any = new_algorithm("dqn", "discrete", normalize_observations=True, warmup_steps=3 * 8 * LANES)
    course, seen = Course(algorithm, "discrete"), []
    for _ in range(6):
        experience: Any = course.next()
        seen.append(experience.newest_segment()["observation"].flatten(0, 1).clone())
        algorithm.update(experience)
        tensors, samples = algorithm.policy.tensors(), torch.cat(seen)
        torch.testing.assert_close(tensors["observation_mean"], samples.mean(0))
        torch.testing.assert_close(tensors["observation_variance"], samples.var(0, correction=0))


STATES = torch.tensor([[1.0, -0.5, 0.5], [-1.0, 1.0, 0.0], [0.0, 0.5, -1.0]])
STATE_LANES = 24


def three_states(algorithm: Any, kind: str, *, ending: str) -> ReplayBuffer:
    """Returns transitions of three states whose values reveal a wrong bootstrap.

    Every action in the first state gives a reward of 1, leads to the third state (value 4) and ends the episode. The
    next episode begins in the second state (value -3).
    """
    replay = empty_replay(algorithm, kind, STATE_LANES)
    memory = {name: tensor[: len(STATES)] for name, tensor in replay._memory.items()}
    observation = STATES.unsqueeze(1).expand(-1, STATE_LANES, -1)
    memory["observation"].copy_(observation)
    memory["final_observation"].copy_(observation[[2, 1, 2]])
    memory["reward"].copy_(torch.tensor([[1.0], [-3.0], [4.0]]).expand(-1, STATE_LANES))
    memory["terminated"].copy_(torch.tensor([[ending == "terminated"], [True], [True]]).expand(-1, STATE_LANES))
    memory["truncated"].copy_(torch.tensor([[ending == "truncated"], [False], [False]]).expand(-1, STATE_LANES))
    if kind == "discrete":
        memory["action"].copy_(torch.arange(STATE_LANES) % 3)
    else:
        # Over the whole square, including its edges.
        drawn = torch.rand(memory["action"].shape, generator=torch.Generator().manual_seed(7))
        memory["action"].copy_(drawn.mul(3.0).sub(1.5).clamp(-1.0, 1.0))
    replay.receive(replay.grant())
    return replay


def learned_values(algorithm: Any, name: str, replay: ReplayBuffer) -> Tensor:
    """Returns the action values of the first state, for the actions taken there."""
    found = replay.gather(torch.arange(STATE_LANES), 1, 0.5)
    if "critic" not in algorithm._trained:
        outputs = algorithm.policy.outputs(found.observation)
        values = dueling_values(outputs) if name in ("dueling-dqn", "d3qn") else outputs
        return values.gather(1, found.action.unsqueeze(1)).squeeze(1)
    critic = algorithm._trained["critic"].network
    if found.action.dim() == 1:
        return critic.forward(found.observation)[0].gather(1, found.action.unsqueeze(1)).squeeze(1)
    return critic.forward(torch.cat((found.observation, found.action), 1))[0].squeeze(1)


@pytest.mark.long
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(("ending", "value"), [("terminated", 1.0), ("truncated", 3.0)])
@EVERY_ALGORITHM
def test_truncated_episodes_bootstrap_from_the_final_observation_and_terminated_ones_do_not(
    name: str, kind: str, ending: str, value: float, n_step: int
) -> None:
    settings: dict[str, object] = {"discount": 0.5, "n_step": n_step, "horizon": 3, "replay_capacity": 144}
    settings |= {"learning_rate": 0.01, "target_rate": 0.2, "target_period": 1, "updates_per_step": 3.5}
    if name.startswith("sac"):
        settings |= {"initial_temperature": 1e-8, "automatic_temperature": False}
    algorithm: Any = new_algorithm(name, kind, hidden_sizes=[16], activation="tanh", batch_size=48, **settings)
    algorithm.update(replay := three_states(algorithm, kind, ending=ending))
    found = learned_values(algorithm, name, replay)
    assert found.sub(value).abs().mean() < 0.2, found


# --- exploration ------------------------------------------------------------------------------------------------------


def exploration(algorithm: Any) -> float:
    return float(algorithm.policy.tensors()["exploration"])


@pytest.mark.parametrize("name", ["dqn", "double-dqn", "dueling-dqn", "d3qn"])
def test_epsilon_falls_with_the_steps_of_all_environments(name: str) -> None:
    settings = {"initial_exploration": 0.9, "final_exploration": 0.1, "exploration_steps": 4 * 8 * LANES}
    algorithm: Any = new_algorithm(name, "discrete", **settings, warmup_steps=64)
    course, found = Course(algorithm, "discrete"), [exploration(algorithm)]
    for _ in range(6):
        algorithm.update(course.next())
        found.append(exploration(algorithm))
    assert found == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1, 0.1, 0.1])
    resumed: Any = new_algorithm(name, "discrete", **settings)
    resumed.load_state_dict(algorithm.state_dict())
    assert exploration(resumed) == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_action_noise_is_larger_during_the_warm_up(name: str) -> None:
    settings = {"initial_exploration": 0.8, "exploration": 0.2, "warmup_steps": 2 * 8 * LANES}
    algorithm: Any = new_algorithm(name, "continuous", **settings)
    course, found = Course(algorithm, "continuous"), [exploration(algorithm)]
    for _ in range(3):
        algorithm.update(course.next())
        found.append(exploration(algorithm))
    assert found == pytest.approx([0.8, 0.8, 0.2, 0.2])


# --- priorities -------------------------------------------------------------------------------------------------------


@EVERY_ALGORITHM
def test_priorities_are_set_from_the_errors_before_the_next_batch(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm: Any = new_algorithm(name, kind, prioritized=True)
    course = Course(algorithm, kind)
    experience: Any = course.next()
    steps, events = spied(algorithm, monkeypatch), list[str]()
    sample, update = experience.sample, experience.update_priorities

    def spy_on_sampling(*args: Any, **kwargs: Any) -> TransitionBatch:
        events.append("sample")
        batch: TransitionBatch = sample(*args, **kwargs)
        return batch

    def spy_on_priorities(index: Tensor, errors: Tensor) -> None:
        events.append("update")
        batch, (_, expected) = steps[-1]
        assert torch.equal(index, batch.index)
        assert torch.equal(errors, expected)
        update(index, errors)

    monkeypatch.setattr(experience, "sample", spy_on_sampling)
    monkeypatch.setattr(experience, "update_priorities", spy_on_priorities)
    algorithm.update(experience)
    assert events == ["sample", "update"] * 4


def test_without_priorities_none_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm: Any = new_algorithm("dqn", "discrete")
    experience: Any = Course(algorithm, "discrete").next()
    steps = spied(algorithm, monkeypatch)

    def refuse(*args: object) -> None:
        pytest.fail("priorities were set")

    monkeypatch.setattr(experience, "update_priorities", refuse)
    assert algorithm.update(experience)
    assert all(batch.weight.eq(1.0).all() for batch, _ in steps)


def test_beta_grows_to_one_with_the_steps_of_all_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm: Any = new_algorithm(
        "dqn", "discrete", prioritized=True, priority_correction=0.4, priority_annealing_steps=3 * 8 * LANES
    )
    course = Course(algorithm, "discrete")
    sample, found = ReplayBuffer.sample, list[float]()

    def spy(self: ReplayBuffer, *args: Any, beta: float, **kwargs: Any) -> TransitionBatch:
        found.append(beta)
        return sample(self, *args, beta=beta, **kwargs)

    monkeypatch.setattr(ReplayBuffer, "sample", spy)
    for _ in range(6):
        algorithm.update(course.next())
    assert found[::4] == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0, 1.0])
    assert len(found) == 24


def test_the_memory_spec_follows_the_hyperparameters() -> None:
    settings = {"horizon": 5, "replay_capacity": 70, "prioritized": True, "priority_exponent": 0.7, "warmup_steps": 0}
    algorithm = make("dqn", OBSERVED, SPACES["discrete"], {**settings, "batch_size": 8}, seed=0)
    memory = algorithm.memory
    assert (memory.horizon, memory.replay_capacity, memory.prioritized, memory.priority_exponent) == (5, 70, True, 0.7)
