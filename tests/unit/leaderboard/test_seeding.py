import hashlib
from random import Random

import pytest

from leaderboard.seeding import agent_seed, draw_distinct, draw_one, happens, stream


def test_a_stream_depends_only_on_seed_purpose_and_number() -> None:
    first = stream(1, "fresh", 2).random()
    assert stream(1, "fresh", 2).random() == first
    assert (
        len({first, stream(2, "fresh", 2).random(), stream(1, "generate", 2).random(), stream(1, "fresh", 3).random()})
        == 4
    )


def test_streams_and_seeds_are_those_of_every_earlier_version() -> None:
    # A change of these numbers changes the population of every specification.
    assert stream(0, "fresh", 1).random() == 0.7756631537937142
    assert agent_seed(0, 0) == 330816607163945591


def test_an_agents_seed_is_the_first_63_bits_of_the_digest() -> None:
    expected = hashlib.sha256(b"7/agent/3").digest()
    assert agent_seed(7, 3) == int.from_bytes(expected[:8]) // 2
    assert max(agent_seed(seed, 0) for seed in range(200)) < 2**63
    assert len({agent_seed(0, number) for number in range(1000)}) == 1000


def test_distinct_draws_are_distinct_and_equally_likely() -> None:
    random = Random(0)
    counts = dict.fromkeys(range(5), 0)
    for _ in range(5000):
        drawn = draw_distinct(random, range(5), 2)
        assert len(set(drawn)) == 2
        for item in drawn:
            counts[item] += 1
    assert list(counts.values()) == pytest.approx([2000] * 5, rel=0.06)


def test_drawing_more_items_than_exist_returns_all_of_them() -> None:
    assert sorted(draw_distinct(Random(0), "abc", 9)) == ["a", "b", "c"]
    assert draw_distinct(Random(0), "", 3) == []


def test_probability_zero_never_happens_and_one_always_does() -> None:
    random = Random(0)
    assert not any(happens(random, 0.0) for _ in range(100))
    assert all(happens(random, 1.0) for _ in range(100))
    assert {draw_one(random, "ab") for _ in range(100)} == {"a", "b"}
