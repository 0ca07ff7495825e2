"""Where episodes begin and end."""

import pytest
import torch

from simulators.stocks.episodes import EpisodeWindows

FOLDS = (range(0, 10), range(10, 20), range(20, 30))


def windows(
    episode_rows: int = 4, count: int = 6, *, folded: bool = True, blocks: tuple[range, ...] = FOLDS
) -> EpisodeWindows:
    return EpisodeWindows(blocks, episode_rows, count, torch.Generator(), folded=folded)


def played(made: EpisodeWindows, seed: int, episodes: int = 1) -> list[tuple[list[int], list[int], list[int]]]:
    """Returns the blocks, first and last rows of some episodes of all lanes."""
    lanes = torch.ones(len(made.episodes), dtype=torch.bool)
    made._generator.manual_seed(seed)
    made.restart()
    found = []
    for _ in range(episodes):
        first, last = torch.zeros(2, len(lanes), dtype=torch.int64)
        made.draw(lanes, first, last)
        found.append((made.block.tolist(), first.tolist(), last.tolist()))
        made.episodes += lanes
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64])
def test_the_lanes_play_the_folds_in_turn(count: int) -> None:
    made = windows(count=count)
    for seed in range(5):
        order = [fold for blocks, _, _ in played(made, seed, 7) for fold in blocks]
        assert order == [(order[0] + place) % 3 for place in range(7 * count)]


def test_every_fold_comes_first_for_some_seed() -> None:
    assert {played(windows(count=1), seed)[0][0][0] for seed in range(30)} == {0, 1, 2}


def test_an_episode_lies_in_its_fold_and_can_begin_in_every_row_of_it() -> None:
    made, begins = windows(count=1), set[int]()
    for seed in range(300):
        [([fold], [first], [last])] = played(made, seed)
        assert last - first == 3
        assert first in FOLDS[fold]
        assert last in FOLDS[fold]
        begins.add(first)
    assert begins == {*range(0, 7), *range(10, 17), *range(20, 27)}


def test_episodes_depend_on_the_seed_and_the_lane_only() -> None:
    made = windows(count=6)
    first = played(made, 3, 4)
    assert played(made, 4, 4) != first
    assert played(made, 3, 4) == first
    assert played(windows(count=6), 3, 4) == first


def test_with_whole_folds_every_episode_is_a_fold() -> None:
    [(fold, first, last)] = played(windows(episode_rows=0, count=3), 0)
    assert sorted(zip(fold, first, last, strict=True)) == [(0, 0, 9), (1, 10, 19), (2, 20, 29)]


def test_outside_of_folds_every_first_row_of_every_block_is_possible() -> None:
    blocks = (range(0, 6), range(6, 16))
    made = windows(count=64, folded=False, blocks=blocks)
    first = [row for seed in range(20) for row in played(made, seed)[0][1]]
    assert set(first) == {0, 1, 2, *range(6, 13)}


def test_lanes_that_have_not_ended_keep_their_episode() -> None:
    made = windows(count=2)
    first, last = torch.tensor([[5, 5], [8, 8]]).unbind()
    made.block.copy_(torch.tensor([0, 0]))
    made.draw(torch.tensor([False, True]), first, last)
    assert (first[0].item(), last[0].item(), made.block[0].item()) == (5, 8, 0)
    assert made.block[1].item() == 1


def test_episodes_are_equally_long_unless_whole_blocks_are_not() -> None:
    unequal = (range(0, 6), range(6, 16))
    assert windows(blocks=unequal).equally_long
    assert windows(episode_rows=0).equally_long
    assert not windows(episode_rows=0, blocks=unequal).equally_long
