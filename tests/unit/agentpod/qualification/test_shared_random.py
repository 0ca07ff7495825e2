import torch

from agentpod.qualification.shared_random import SharedRandom


def drawn(generator: torch.Generator) -> list[torch.Tensor]:
    return [
        torch.randn(3, generator=generator, device="cpu"),
        torch.randperm(5, generator=generator, device="cpu"),
        torch.randint(7, (4,), generator=generator, device="cpu"),
        torch.rand(2, generator=generator, device="cpu", dtype=torch.float64),
        torch.empty(3).exponential_(generator=generator),
    ]


def test_replaced_generators_return_the_numbers_of_their_seed_in_one_stream() -> None:
    expected = drawn(torch.Generator().manual_seed(5))
    own = torch.Generator().manual_seed(5)
    with SharedRandom(always=True):
        found = drawn(own)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    # The generator itself was not used.
    assert torch.equal(torch.randn(3, generator=own), expected[0])


def test_two_generators_have_separate_streams() -> None:
    one, other = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    with SharedRandom(always=True):
        first = torch.randn(3, generator=one)
        torch.randn(8, generator=other)
        second = torch.randn(3, generator=one)
    again = torch.Generator().manual_seed(1)
    assert torch.equal(torch.cat((first, second)), torch.cat([torch.randn(3, generator=again) for _ in range(2)]))


def test_what_draws_nothing_is_not_changed() -> None:
    with SharedRandom(always=True):
        assert float(torch.ones(3).sum()) == 3.0
