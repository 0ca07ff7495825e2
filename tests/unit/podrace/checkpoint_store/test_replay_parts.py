"""Tests which parts of a replay memory are selected when not all of them fit."""

import random

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Part
from podrace.checkpoint_store.replay_parts import STATE, first_segment_of, is_replay, piece_name, select


def memory(pieces: int, size_bytes: int = 10, state_bytes: int = 5) -> list[Part]:
    parts = [Part(name=piece_name(100 * number), digest=f"{number}", size_bytes=size_bytes) for number in range(pieces)]
    return [*parts, Part(name=STATE, size_bytes=state_bytes)]


def numbers(parts: list[Part]) -> list[int]:
    return [first_segment_of(part.name) // 100 for part in parts if part.name != STATE]


def test_the_names_of_pieces_sort_by_age() -> None:
    firsts = [10**k for k in range(13)]
    assert sorted(piece_name(first) for first in firsts) == [piece_name(first) for first in firsts]
    assert [first_segment_of(piece_name(first)) for first in firsts] == firsts
    assert all(is_replay(part) for part in memory(3))
    assert not is_replay(Part(name="policy"))


def test_everything_is_selected_if_it_fits() -> None:
    parts = memory(7)
    assert select(random.Random(0).sample(parts, 8), 75) == sorted(parts, key=lambda part: part.name)


def test_half_of_the_bytes_are_the_newest_pieces_and_the_others_are_spread_over_the_older_ones() -> None:
    chosen = numbers(select(memory(100), 405))
    assert len(chosen) == 40
    assert chosen[-20:] == list(range(80, 100))
    older = chosen[:20]
    # Of 20 uniform draws from 80, 5 are expected in each quarter; fewer than 1 or more than 10 have probability 0.01.
    assert all(1 <= sum(quarter <= number < quarter + 20 for number in older) <= 10 for quarter in (0, 20, 40, 60))


@pytest.mark.parametrize("limit_bytes", [0, 4, 5, 14])
def test_no_piece_is_selected_if_none_fits_with_the_state(limit_bytes: int) -> None:
    assert select(memory(3), limit_bytes) == []


def test_a_selection_never_exceeds_its_limit() -> None:
    generator = random.Random(1)
    for _ in range(200):
        parts = memory(generator.randrange(1, 30), state_bytes=generator.randrange(1, 9))
        for part in parts[:-1]:
            part.size_bytes = generator.randrange(1, 50)
        limit_bytes = generator.randrange(300)
        chosen = select(parts, limit_bytes)
        assert sum(part.size_bytes for part in chosen) <= limit_bytes
        assert not chosen or STATE in {part.name for part in chosen}


def test_a_selection_of_a_selection_with_the_same_limit_is_the_same() -> None:
    chosen = select(memory(100), 333)
    assert select(chosen, 333) == chosen


def test_pieces_of_a_growing_memory_are_never_selected_again_after_they_were_left_out() -> None:
    left_out: set[int] = set()
    before: set[int] = set()
    for pieces in range(1, 200):
        chosen = set(numbers(select(memory(pieces), 305)))
        assert not chosen & left_out
        left_out |= before - chosen
        before = chosen


def test_pieces_of_podrace_0_1_0_are_selected_together_or_not_at_all() -> None:
    parts = [Part(name="replay.000000000000", size_bytes=10), Part(name=STATE, size_bytes=5)]
    assert select(parts, 15) == parts
    assert select(parts, 14) == []
