"""Laws of the average of related agents."""

import pytest
import torch
from torch import Tensor

from agentpod.algorithms import Algorithm, make
from agentpod.algorithms.fusible import Fusible
from agentpod.fusion.crossover import average_into, check_same_layout, pooled
from agentpod.models.normalizer import RunningMoments
from podrace.errors import InvalidArgument
from simulators import make as make_simulator

CONTINUOUS = {"ppo": {"horizon": 8, "minibatch_size": 32}, "sac": {"warmup_steps": 8}, "td3": {"warmup_steps": 8}}
SMALL = {"hidden_sizes": (8,)}


def agent(name: str, seed: int, environment: str = "pendulum", **settings: object) -> Algorithm:
    """An algorithm whose state is unique to the seed."""
    simulator = make_simulator(environment, 4)
    spaces = simulator.observation_space, simulator.action_space
    made = make(name, *spaces, {**CONTINUOUS.get(name, {}), **SMALL, **settings}, seed=seed)
    drawn = torch.Generator().manual_seed(seed)
    fusible = made.fusible()
    for tensors in (fusible.parameters, fusible.targets, fusible.moments):
        for tensor in tensors.values():
            with torch.no_grad():
                tensor.copy_(torch.rand(tensor.shape, generator=drawn))
    for held in fusible.statistics.values():
        shape = held.total.mean.shape
        held.add(RunningMoments.of(torch.rand(10 + seed, *shape, generator=drawn)))
    for count in fusible.counts.values():
        count.fill_(100 + seed)
    made.refresh()
    return made


def state_of(fusible: Fusible) -> dict[str, Tensor]:
    kinds = ("parameters", "targets", "moments", "counts", "rates")
    found = {f"{kind}.{name}": value.clone() for kind in kinds for name, value in getattr(fusible, kind).items()}
    return found | {f"statistics.{name}": held.total.flat() for name, held in fusible.statistics.items()}


@pytest.mark.parametrize("name", sorted(CONTINUOUS))
def test_the_average_of_equal_parents_is_the_parent_to_the_bit(name: str) -> None:
    parent, mate = agent(name, 1), agent(name, 1)
    before, policy = state_of(parent.fusible()), parent.policy.flat.clone()
    average_into(parent.fusible(), [mate.fusible()])
    parent.refresh()
    after = state_of(parent.fusible())
    assert {key for key in before if not torch.equal(before[key], after[key])} == set()
    assert torch.equal(parent.policy.flat, policy)


@pytest.mark.parametrize("name", sorted(CONTINUOUS))
def test_each_kind_of_state_follows_its_rule_and_the_mate_is_unchanged(name: str) -> None:
    parent, mate = agent(name, 1), agent(name, 2)
    own, its = state_of(parent.fusible()), state_of(mate.fusible())
    average_into(parent.fusible(), [mate.fusible()])
    after = state_of(parent.fusible())
    for key in own:
        kind = key.partition(".")[0]
        if kind in ("parameters", "targets", "moments"):
            torch.testing.assert_close(after[key], (own[key] + its[key]) / 2)
        elif kind == "counts":
            assert torch.equal(after[key], its[key]), "the larger one"
        elif kind == "rates":
            torch.testing.assert_close(after[key], (own[key] * its[key]).sqrt())
    unchanged = state_of(mate.fusible())
    assert all(torch.equal(unchanged[key], its[key]) for key in its)


def test_the_order_of_two_agents_does_not_matter() -> None:
    one, other = agent("ppo", 1), agent("ppo", 2)
    first, second = agent("ppo", 1), agent("ppo", 2)
    average_into(one.fusible(), [other.fusible()])
    average_into(second.fusible(), [first.fusible()])
    found, swapped = state_of(one.fusible()), state_of(second.fusible())
    for key in found:
        torch.testing.assert_close(found[key], swapped[key])


def test_samples_of_a_common_ancestor_are_not_counted_twice() -> None:
    samples = torch.rand(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ancestor = RunningMoments.of(samples)
    assert pooled([ancestor, ancestor]).count == 50
    one, other = RunningMoments.of(samples[:20]), RunningMoments.of(samples[20:])
    both = pooled([one, other])
    torch.testing.assert_close(both.mean, samples.mean(0))
    torch.testing.assert_close(both.variance, samples.var(0, correction=0))


def test_another_layout_is_refused_in_one_line_and_changes_nothing() -> None:
    parent = agent("ppo", 1)
    before = state_of(parent.fusible())
    for other in (agent("ppo", 2, hidden_sizes=(16,)), agent("sac", 2), agent("ppo", 2, "cartpole")):
        with pytest.raises(InvalidArgument) as caught:
            average_into(parent.fusible(), [agent("ppo", 3).fusible(), other.fusible()])
        assert caught.value.message.startswith("its state has another layout: ")
        assert "\n" not in caught.value.message
    after = state_of(parent.fusible())
    assert all(torch.equal(after[key], before[key]) for key in before)
    check_same_layout(parent.fusible(), agent("ppo", 9).fusible())
