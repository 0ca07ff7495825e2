"""Invalid actions have probability 0, and everything else is that of the remaining actions (arXiv 2006.14171)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical

from agentpod.models.action_heads import dueling_values
from agentpod.models.action_mask import MASKED, output_mask
from agentpod.models.distributions import Bernoulli, Categorical, MultiCategorical, require_distribution
from agentpod.models.policy import NetworkSpec, Policy
from podrace.errors import UNSUITABLE_SPACE, InvalidArgument
from podrace.spaces.entries import Entry
from simulators.base import Space

CHOICES, ROWS = 5, 64
ENTRIES = (Entry("place", "vector", (2,)), Entry("action_mask", "mask", (CHOICES,)))
OBSERVED = Space("composite", (2 + CHOICES,), torch.float32, entries=ENTRIES)
ONE = Space("discrete", (), torch.int64, n=CHOICES)
TWO = Space("multi_discrete", (2,), torch.int64, choices=(2, 3))
FLAGS = Space("multi_binary", (CHOICES,), torch.int64)


def rows(groups: tuple[int, ...] = (CHOICES,)) -> Tensor:
    """Returns observations [ROWS, 2 + CHOICES] whose masks allow at least one choice of each group."""
    generator = torch.Generator().manual_seed(3)
    found = torch.randn(ROWS, 2 + CHOICES, generator=generator)
    found[:, 2:] = torch.rand(ROWS, CHOICES, generator=generator) < 0.5
    begin = 2
    for size in groups:
        place = begin + torch.randint(size, (ROWS,), generator=generator)
        found[torch.arange(ROWS), place] = 1.0
        begin += size
    return found


def masked_case() -> tuple[Tensor, Tensor, Tensor]:
    """Returns outputs in float64, observations, and valid actions."""
    outputs = torch.randn(ROWS, CHOICES, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) * 3.0
    seen = rows()
    return outputs, seen, seen[:, 2:].argmax(1)


def expected(outputs: Tensor, valid: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and entropies of the distribution over the valid actions of each row alone."""
    found = []
    for row, own, chosen in zip(outputs, valid, action, strict=True):
        places = own.nonzero().flatten()
        alone = TorchCategorical(logits=row[places])
        found.append((alone.log_prob((places == chosen).nonzero().squeeze()), alone.entropy()))
    log_prob, entropy = zip(*found, strict=True)
    return torch.stack(log_prob), torch.stack(entropy)


def test_log_probabilities_entropies_and_gradients_are_those_of_the_valid_actions_alone() -> None:
    mask = output_mask(OBSERVED, ONE, "stochastic")
    assert mask is not None
    outputs, seen, action = masked_case()
    log_prob, entropy, backward = Categorical(CHOICES).evaluate(mask.apply(outputs, seen), action)
    weight = torch.randn(ROWS, dtype=torch.float64)
    gradient = mask.backward(backward(weight, -0.3)[0], seen)

    leaf = outputs.requires_grad_()
    wanted, entropies = expected(leaf, mask.valid(seen), action)
    torch.testing.assert_close(log_prob, wanted.detach())
    torch.testing.assert_close(entropy, entropies.mean().detach())
    (found,) = torch.autograd.grad(weight @ wanted - 0.3 * entropies.mean(), leaf)
    torch.testing.assert_close(gradient, found)
    assert (gradient[~mask.valid(seen)] == 0.0).all()


def test_invalid_actions_have_probability_zero_to_the_bit_and_are_never_taken() -> None:
    for space, groups in ((ONE, (CHOICES,)), (TWO, (2, 3))):
        policy = Policy(OBSERVED, space, NetworkSpec())
        policy.initialize(torch.Generator().manual_seed(0), 1.0)
        seen, valid = rows(groups), rows(groups)[:, 2:] > 0
        outputs = policy.outputs(seen)
        for part, own in zip(outputs.split(groups, 1), valid.split(groups, 1), strict=True):
            assert (part.softmax(1)[~own] == 0.0).all()
        generator = torch.Generator().manual_seed(1)
        for _ in range(50):
            drawn = policy.act(seen, policy.noise((ROWS,), generator)).view(ROWS, -1)
            for action, own in ((drawn, valid), (policy.act_greedily(seen).view(ROWS, -1), valid)):
                columns = zip(action.unbind(1), own.split(groups, 1), strict=True)
                assert all(part.gather(1, chosen.unsqueeze(1)).all() for chosen, part in columns)


def test_flags_that_may_not_be_set_are_never_set_and_the_others_are_as_without_a_mask() -> None:
    policy = Policy(OBSERVED, FLAGS, NetworkSpec())
    policy.initialize(torch.Generator().manual_seed(0), 1.0)
    seen = rows()
    valid, free = seen[:, 2:] > 0, seen.clone()
    free[:, 2:] = 1.0
    outputs, unmasked = policy.outputs(seen), policy.outputs(free)
    assert (outputs[valid] == unmasked[valid]).all()
    assert (outputs.sigmoid()[~valid] == 0.0).all()
    generator = torch.Generator().manual_seed(1)
    drawn = torch.stack([policy.act(seen, policy.noise((ROWS,), generator)) for _ in range(200)])
    assert not (drawn > valid.long()).any()
    assert (drawn.float().mean(0) > 0.0)[valid].all()
    assert not (policy.act_greedily(seen) > valid.long()).any()


def test_gradients_of_masked_flags_are_those_of_the_remaining_flags_alone() -> None:
    mask = output_mask(OBSERVED, FLAGS, "stochastic")
    assert mask is not None
    seen = rows()
    valid = mask.valid(seen)
    leaf = torch.randn(ROWS, CHOICES, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).requires_grad_()
    action = (valid & (torch.rand(ROWS, CHOICES, generator=torch.Generator().manual_seed(5)) < 0.5)).long()
    log_prob, entropy, backward = Bernoulli(CHOICES).evaluate(mask.apply(leaf.detach(), seen), action)
    weight = torch.randn(ROWS, dtype=torch.float64)
    gradient = mask.backward(backward(weight, -0.3)[0], seen)
    alone = TorchBernoulli(logits=leaf)
    wanted = (alone.log_prob(action.double()) * valid).sum(1)
    entropies = (alone.entropy() * valid).sum(1)
    torch.testing.assert_close(log_prob, wanted.detach())
    torch.testing.assert_close(entropy, entropies.mean().detach())
    (found,) = torch.autograd.grad(weight @ wanted - 0.3 * entropies.mean(), leaf)
    torch.testing.assert_close(gradient, found)


@pytest.mark.parametrize("head", ["values", "dueling"])
def test_exploration_draws_valid_choices_uniformly(head: str) -> None:
    policy = Policy(OBSERVED, ONE, NetworkSpec(head=head))
    policy.set_head_parameter("exploration", 1.0)
    seen = torch.zeros(1, 2 + CHOICES)
    seen[0, 2:] = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    seen = seen.expand(30_000, -1)
    drawn = policy.act(seen, policy.noise((30_000,), torch.Generator().manual_seed(0))).bincount(minlength=CHOICES)
    assert drawn[[0, 2]].tolist() == [0, 0]
    torch.testing.assert_close(drawn[[1, 3, 4]] / 30_000, torch.full((3,), 1.0 / 3.0), rtol=0.0, atol=0.012)


def test_a_dueling_head_masks_advantages_and_keeps_the_state_value() -> None:
    mask = output_mask(OBSERVED, ONE, "dueling")
    assert mask is not None
    seen, outputs = rows(), torch.randn(ROWS, 1 + CHOICES)
    masked = mask.apply(outputs, seen)
    assert (masked[:, 0] == outputs[:, 0]).all()
    best = mask.choices(dueling_values(outputs), seen).argmax(1)
    assert (masked[:, 1:].argmax(1) == best).all()
    assert (mask.backward(torch.ones_like(outputs), seen)[:, 0] == 1.0).all()


def test_a_mask_that_allows_nothing_gives_finite_numbers_and_no_gradient() -> None:
    mask = output_mask(OBSERVED, ONE, "stochastic")
    assert mask is not None
    outputs, seen = torch.randn(3, CHOICES), torch.zeros(3, 2 + CHOICES)
    masked = mask.apply(outputs, seen)
    assert (masked == MASKED).all()
    log_prob, entropy, backward = Categorical(CHOICES).evaluate(masked, torch.zeros(3, dtype=torch.int64))
    assert log_prob.isfinite().all()
    assert entropy.isfinite()
    assert (mask.backward(backward(torch.ones(3), 1.0)[0], seen) == 0.0).all()


@pytest.mark.parametrize(
    ("space", "head"), [(ONE, "stochastic"), (TWO, "stochastic"), (ONE, "values"), (ONE, "dueling")]
)
def test_a_mask_that_allows_nothing_makes_all_choices_equally_probable(space: Space, head: str) -> None:
    policy, count = Policy(OBSERVED, space, NetworkSpec(head=head)), 30_000
    policy.initialize(torch.Generator().manual_seed(0), 1.0)
    policy.set_head_parameter("exploration", 1.0)
    groups = (CHOICES,) if space is ONE else (2, 3)
    drawn = policy.act(torch.zeros(count, 2 + CHOICES), policy.noise((count,), torch.Generator().manual_seed(1)))
    for size, chosen in zip(groups, drawn.view(count, -1).unbind(1), strict=True):
        found = chosen.bincount(minlength=size) / count
        torch.testing.assert_close(found, torch.full((size,), 1.0 / size), rtol=0.0, atol=0.012)


def test_an_element_without_a_valid_choice_does_not_change_the_others() -> None:
    policy, count = Policy(OBSERVED, TWO, NetworkSpec()), 30_000
    seen = torch.zeros(count, 2 + CHOICES)
    seen[:, 3] = 1.0
    drawn = policy.act(seen, policy.noise((count,), torch.Generator().manual_seed(1)))
    assert (drawn[:, 0] == 1).all()
    found = drawn[:, 1].bincount(minlength=3) / count
    torch.testing.assert_close(found, torch.full((3,), 1.0 / 3.0), rtol=0.0, atol=0.012)


def test_masked_choices_of_two_elements_are_those_of_each() -> None:
    mask = output_mask(OBSERVED, TWO, "stochastic")
    assert mask is not None
    seen, outputs = rows((2, 3)), torch.randn(ROWS, CHOICES, dtype=torch.float64)
    valid = mask.valid(seen)
    action = torch.stack((valid[:, :2].int().argmax(1), valid[:, 2:].int().argmax(1)), 1)
    first = expected(outputs[:, :2], valid[:, :2], action[:, 0])
    second = expected(outputs[:, 2:], valid[:, 2:], action[:, 1])
    log_prob, entropy, _ = MultiCategorical((2, 3)).evaluate(mask.apply(outputs, seen), action)
    torch.testing.assert_close(log_prob, first[0] + second[0])
    torch.testing.assert_close(entropy, (first[1] + second[1]).mean())


@pytest.mark.parametrize(
    "space",
    [
        replace(ONE, n=4),
        replace(TWO, choices=(2, 2)),
        replace(FLAGS, shape=(2, 2)),
        Space("continuous", (CHOICES,), torch.float32),
    ],
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(space: Space) -> None:
    with pytest.raises(InvalidArgument, match="an action mask with 5 elements does not fit") as refused:
        Policy(OBSERVED, space, NetworkSpec())
    assert refused.value.reason == UNSUITABLE_SPACE


def test_policies_without_a_mask_keep_their_outputs() -> None:
    entries = (ENTRIES[0], replace(ENTRIES[1], encoding="flags"))
    policy = Policy(replace(OBSERVED, entries=entries), ONE, NetworkSpec())
    assert policy.mask is None
    assert require_distribution(policy.head).output_count == CHOICES
