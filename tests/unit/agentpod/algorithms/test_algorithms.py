"""Tests what every algorithm guarantees to its learner; one suite, run against every algorithm.

Examples of user-defined algorithms are among them.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from experience import EVERY_CASE, EVERY_ON_POLICY, LANES, OBSERVED, SPACES, Course, new_algorithm, random_rollout
from safetensors.torch import load, save
from torch import Tensor

from agentpod.algorithms import ALGORITHMS, Algorithm, make
from agentpod.algorithms.ppo import PPO
from podrace.errors import DataLoss, InvalidArgument
from podrace.tensor_transport.group import MemberLost

EVERY_ALGORITHM = pytest.mark.parametrize(("name", "kind"), EVERY_CASE)
NEVER_BOOTSTRAPS = {"python:reinforce:Reinforce", "python:cloning:Cloning"}
FINITE_FOR_ANY_REWARD = {"python:c51:C51", "python:cloning:Cloning"}
EVERY_ON_POLICY_ALGORITHM = pytest.mark.parametrize(("name", "kind"), EVERY_ON_POLICY)


def everything(algorithm: Algorithm) -> dict[str, Tensor]:
    return {**algorithm.state_dict(), "policy": algorithm.policy.flat.clone()}


def assert_same_bits(one: Algorithm, other: Algorithm) -> None:
    expected, found = everything(one), everything(other)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


@pytest.mark.long
@EVERY_ALGORITHM
def test_a_resumed_algorithm_continues_bitwise_equal(name: str, kind: str) -> None:
    straight = new_algorithm(name, kind)
    course = Course(straight, kind)
    for _ in range(3):
        straight.update(course.next())
    resumed = new_algorithm(name, kind)
    resumed.policy.load(straight.policy.flat)
    resumed.load_state_dict(load(save(straight.state_dict())))
    assert_same_bits(straight, resumed)
    for _ in range(3):
        experience = course.next()
        assert straight.update(experience) == resumed.update(experience)
    assert_same_bits(straight, resumed)
    assert straight.update_number == 6


@pytest.mark.long
@EVERY_ALGORITHM
def test_updates_depend_on_the_state(name: str, kind: str) -> None:
    straight, forgetful = new_algorithm(name, kind), new_algorithm(name, kind)
    course = Course(straight, kind)
    straight.update(course.next())
    forgetful.policy.load(straight.policy.flat)
    experience = course.next()
    straight.update(experience)
    forgetful.update(experience)
    assert not torch.equal(straight.policy.flat, forgetful.policy.flat)


@EVERY_ALGORITHM
def test_a_state_dict_is_contiguous_and_shares_no_memory(name: str, kind: str) -> None:
    algorithm = new_algorithm(name, kind)
    state = algorithm.state_dict()
    before = everything(algorithm)
    assert all(tensor.is_contiguous() for tensor in state.values())
    for tensor in state.values():
        tensor.fill_(7)
    assert all(torch.equal(tensor, before[key]) for key, tensor in everything(algorithm).items())


@pytest.mark.long
@EVERY_ALGORITHM
def test_the_seed_determines_everything(name: str, kind: str) -> None:
    one, same, other = (new_algorithm(name, kind, seed) for seed in (1, 1, 2))
    experience = Course(one, kind).next()
    for algorithm in (one, same, other):
        algorithm.update(experience)
    assert_same_bits(one, same)
    assert not torch.equal(one.policy.flat, other.policy.flat)


@EVERY_ALGORITHM
def test_experience_is_not_modified(name: str, kind: str) -> None:
    algorithm = new_algorithm(name, kind)
    course = Course(algorithm, kind)
    experience = course.next()
    tensors = experience if isinstance(experience, Mapping) else course.memory
    before = {key: tensor.clone() for key, tensor in tensors.items()}
    algorithm.update(experience)
    assert all(torch.equal(tensor, before[key]) for key, tensor in tensors.items())


@EVERY_ON_POLICY_ALGORITHM
def test_two_workers_equal_one_worker_with_twice_the_lanes(name: str, kind: str) -> None:
    one, two = new_algorithm(name, kind), new_algorithm(name, kind)
    whole = random_rollout(one, kind, 0, lanes=2 * LANES)
    region = {key: torch.zeros_like(tensor) for key, tensor in whole.items()}
    for columns in (slice(0, LANES), slice(LANES, 2 * LANES)):
        for key, tensor in region.items():
            tensor[:, columns].copy_(whole[key][:, columns])
    one.update(whole)
    two.update(region)
    assert_same_bits(one, two)


@EVERY_ON_POLICY_ALGORITHM
def test_final_observations_are_used_only_where_truncated(name: str, kind: str) -> None:
    clean, dirty = new_algorithm(name, kind), new_algorithm(name, kind)
    rollout = random_rollout(clean, kind, 0)
    assert rollout["truncated"].any()
    garbage = rollout["final_observation"].clone()
    garbage[~rollout["truncated"]] = math.nan
    clean.update(rollout)
    dirty.update({**rollout, "final_observation": garbage})
    assert_same_bits(clean, dirty)
    if name in NEVER_BOOTSTRAPS:
        return
    other = new_algorithm(name, kind)
    other.update({**rollout, "final_observation": rollout["final_observation"] + 1.0})
    assert not torch.equal(clean.policy.flat, other.policy.flat)


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), [case for case in EVERY_CASE if case[0] not in FINITE_FOR_ANY_REWARD])
def test_an_update_that_is_not_finite_is_reported_and_undone(name: str, kind: str) -> None:
    algorithm, untouched = new_algorithm(name, kind), new_algorithm(name, kind)
    course = Course(untouched, kind)
    experience = course.next()
    for each in (algorithm, untouched):
        each.update(experience)
    experience = course.next()
    rewards = experience["reward"] if isinstance(experience, Mapping) else course.memory["reward"]
    good = rewards.clone()
    rewards[3] = math.inf
    with pytest.raises(DataLoss, match=r"_loss is not finite in minibatch \d, update 1"):
        algorithm.update(experience)
    rewards.copy_(good)
    assert_same_bits(algorithm, untouched)
    assert algorithm.update(experience) == untouched.update(experience)


class LosesALearner:
    """Averages whose last ones are undefined, because a learner was lost in the update `lost_in`."""

    def __init__(self, lost_in: int) -> None:
        self.lost_in, self.update = lost_in, -1

    def __call__(self, tensor: Tensor) -> None:
        if self.update == self.lost_in:
            # The warm-up flag decides how many collectives follow; it keeps its value.
            tensor.mul_(1.0 if tensor.dim() == 0 else math.nan)

    def finish(self) -> None:
        if self.update == self.lost_in:
            raise MemberLost("a learner was lost")


@pytest.mark.long
@EVERY_ALGORITHM
def test_an_update_is_undone_if_its_averages_turn_out_undefined_at_its_end(name: str, kind: str) -> None:
    algorithm, untouched = new_algorithm(name, kind), new_algorithm(name, kind)
    reduce = LosesALearner(lost_in=1)
    algorithm.share_gradients(reduce)
    # Learners that share gradients make as many steps as if no agent of a team left.
    untouched.share_gradients(LosesALearner(lost_in=0))
    course = Course(untouched, kind)
    for number in range(2):
        experience = course.next()
        reduce.update = number
        if number == reduce.lost_in:
            with pytest.raises(MemberLost):
                algorithm.update(experience)
            assert_same_bits(algorithm, untouched)
            reduce.update = -1
        assert algorithm.update(experience) == untouched.update(experience)


@EVERY_ALGORITHM
def test_every_metric_is_finite(name: str, kind: str) -> None:
    algorithm = new_algorithm(name, kind)
    metrics = algorithm.update(Course(algorithm, kind).next())
    assert metrics
    assert all(math.isfinite(value) for value in metrics.values())


@EVERY_ALGORITHM
def test_a_state_with_other_layers_is_refused(name: str, kind: str) -> None:
    state = new_algorithm(name, kind).state_dict()
    with pytest.raises(InvalidArgument, match=r"of the training state must have shape \[\d+.*\], found \[\d+"):
        new_algorithm(name, kind, hidden_sizes=[9]).load_state_dict(state)
    with pytest.raises(InvalidArgument, match=r"'update_number' .* found none"):
        new_algorithm(name, kind).load_state_dict({key: state[key] for key in state if key != "update_number"})


def test_the_first_update_normalizes_as_the_policy_did_when_it_acted() -> None:
    for kind in SPACES:
        algorithm = new_algorithm("ppo", kind, epochs=1, minibatch_size=32)
        algorithm.update(random_rollout(algorithm, kind, 0))
        metrics = algorithm.update(random_rollout(algorithm, kind, 1))
        assert abs(metrics["approximate_kl"]) < 1e-10
        assert metrics["clip_fraction"] == 0.0


@pytest.mark.long
def test_observations_are_added_to_the_statistics_after_the_update() -> None:
    algorithm = new_algorithm("ppo", "discrete")
    rollout = random_rollout(algorithm, "discrete", 0)
    algorithm.update(rollout)
    seen = rollout["observation"][:-1].flatten(0, 1)
    torch.testing.assert_close(algorithm.policy.tensors()["observation_mean"], seen.mean(0))
    torch.testing.assert_close(algorithm.policy.tensors()["observation_variance"], seen.var(0, correction=0))


def test_every_step_is_added_to_the_statistics_of_returns() -> None:
    algorithm = new_algorithm("ppo", "discrete")
    for k in range(2):
        algorithm.update(random_rollout(algorithm, "discrete", k))
    assert algorithm.state_dict()["returns.fresh.count"] == 2 * 8 * LANES


def test_every_update_shuffles_differently() -> None:
    first, later = new_algorithm("ppo", "discrete"), new_algorithm("ppo", "discrete")
    later.load_state_dict({**later.state_dict(), "update_number": torch.tensor(5)})
    rollout = random_rollout(first, "discrete", 0)
    first.update(rollout)
    later.update(rollout)
    assert not torch.equal(first.policy.flat, later.policy.flat)


@pytest.mark.long
def test_normalized_rewards_do_not_depend_on_their_unit() -> None:
    flats = []
    for unit in (1.0, 1024.0):
        algorithm = new_algorithm("ppo", "discrete")
        rollout = random_rollout(algorithm, "discrete", 0)
        algorithm.update({**rollout, "reward": rollout["reward"] * unit})
        flats.append(algorithm.policy.flat)
    torch.testing.assert_close(flats[0], flats[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("normalized", [True, False])
def test_the_first_reward_after_many_steps_without_any_is_clipped_if_rewards_are_normalized(normalized: bool) -> None:
    algorithm: Any = new_algorithm("a2c", "discrete", normalize_rewards=normalized)
    found: list[Tensor] = []

    def prepare(rollout: Mapping[str, Tensor], reward: Tensor) -> Any:
        found.append(reward.clone())
        return type(algorithm)._prepare(algorithm, rollout, reward)

    algorithm._prepare = prepare
    rollout = {**random_rollout(algorithm, "discrete", 0)}
    rollout["reward"] = torch.zeros_like(rollout["reward"])
    for _ in range(100):
        algorithm.update(rollout)
    rollout["reward"][3, 1], rollout["reward"][5, 2] = 30.0, -30.0
    algorithm.update(rollout)
    largest = 10.0 if normalized else 30.0
    assert found[-1].aminmax() == (-largest, largest)


def test_disabled_statistics_stay_empty() -> None:
    algorithm = new_algorithm("ppo", "discrete", normalize_observations=False, normalize_rewards=False)
    algorithm.update(random_rollout(algorithm, "discrete", 0))
    state = algorithm.state_dict()
    assert state["observations.fresh.count"] == state["returns.fresh.count"] == 0
    assert "observation_mean" not in algorithm.policy.tensors()


def test_an_update_stops_after_the_epoch_that_exceeds_target_kl() -> None:
    def steps_taken(target_kl: float) -> int:
        algorithm = new_algorithm(
            "ppo", "discrete", learning_rate=0.05, epochs=6, minibatch_size=8, target_kl=target_kl
        )
        algorithm.update(random_rollout(algorithm, "discrete", 0))
        return int(algorithm.state_dict()["optimizer.step"])

    assert steps_taken(0.0) == steps_taken(10.0) == 24
    assert steps_taken(1e-9) == 4


def test_a_rollout_with_fewer_steps_than_a_minibatch_is_one_minibatch() -> None:
    def trained(minibatch_size: int) -> dict[str, Any]:
        algorithm = new_algorithm("ppo", "discrete", minibatch_size=minibatch_size)
        algorithm.update(random_rollout(algorithm, "discrete", 0))
        return dict(algorithm.state_dict())

    whole, larger = trained(32), trained(1000)
    assert all(torch.equal(torch.as_tensor(whole[key]), torch.as_tensor(larger[key])) for key in whole)


@pytest.mark.parametrize(
    ("hyperparameters", "line"),
    [
        ({"gamma": 0.9}, "'gamma' is unknown: choose among hidden_sizes, activation"),
        ({"learning_rate": "fast"}, "learning_rate = 'fast' must be a number"),
        ({"epochs": 2.5}, "epochs = 2.5 must be an integer"),
        ({"epochs": True}, "epochs = True must be an integer"),
        ({"epochs": math.inf}, "epochs = inf must be an integer"),
        ({"normalize_rewards": 1}, "normalize_rewards = 1 must be true or false"),
        ({"hidden_sizes": 64}, "hidden_sizes = 64 must be a list of integers"),
        ({"activation": 3}, "activation = 3 must be a string"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0 must be between 1e-07 and 1"),
        ({"learning_rate": math.nan}, "learning_rate = nan must be between 1e-07 and 1"),
        ({"discount": 1.01}, "discount = 1.01 must be between 0 and 1"),
        ({"target_kl": -0.1}, "target_kl = -0.1 must be between 0 and 10"),
        ({"horizon": 0}, "horizon = 0 must be between 1 and"),
        ({"initial_log_std": 99}, "initial_log_std = 99.0 must be between -10 and 5"),
        ({"activation": "swish"}, "activation = 'swish' must be one of tanh, relu, elu"),
    ],
)
def test_invalid_hyperparameters_are_refused(hyperparameters: dict[str, object], line: str) -> None:
    with pytest.raises(InvalidArgument, match=line):
        make("ppo", OBSERVED, SPACES["discrete"], hyperparameters, seed=0)


def test_integers_may_be_given_as_floats() -> None:
    algorithm = PPO(OBSERVED, SPACES["discrete"], {"horizon": 64.0, "hidden_sizes": [16.0], "discount": 1}, seed=0)
    assert algorithm.memory.horizon == 64
    assert algorithm.network.hidden_sizes == (16,)
    assert isinstance(algorithm.hyperparameters.discount, float)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"agent: unknown algorithm .sarsa.; known: a2c, d3qn"):
        make("sarsa", OBSERVED, SPACES["discrete"], {}, seed=0)


def test_an_algorithm_refuses_unsupported_action_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    class Chooser(PPO):
        action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete"})

    monkeypatch.setitem(ALGORITHMS, "chooser", Chooser)
    with pytest.raises(InvalidArgument, match="'chooser' needs discrete actions, but the simulator's are continuous"):
        make("chooser", OBSERVED, SPACES["continuous"], {}, seed=0)
