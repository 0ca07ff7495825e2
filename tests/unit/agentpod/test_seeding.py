"""Tests the derivation of random streams."""

import hashlib

import torch

from agentpod.seeding import derive_generator, derive_seed


def test_seeds_follow_the_documented_rule() -> None:
    digest = hashlib.sha256(b'[7,"act",0,3]').digest()
    assert derive_seed(7, "act", 0, 3) == int.from_bytes(digest[:8], "big") // 2


def test_streams_of_different_names_never_share_a_seed() -> None:
    paths: list[tuple[str | int, ...]] = [("act", 0, 3), ("act", 3, 0), ("act", "0", 3), ("act0", 3), ("act,0", 3), ()]
    assert len({derive_seed(seed, *path) for seed in (7, 8) for path in paths}) == 2 * len(paths)


def test_seeds_fit_a_signed_64_bit_integer() -> None:
    assert all(0 <= derive_seed(seed, "x") < 2**63 for seed in range(100))


def test_a_derived_generator_always_starts_at_the_beginning_of_its_stream() -> None:
    first, again, other = (derive_generator("cpu", 1, "act", k) for k in (5, 5, 6))
    drawn = torch.randn(8, generator=first)
    assert torch.equal(drawn, torch.randn(8, generator=again))
    assert not torch.equal(drawn, torch.randn(8, generator=other))
