"""Tests the layout of a replay buffer and its size."""

import itertools
import mmap
import os
from collections.abc import Iterator

import pytest
import torch
from replay_world import CONTINUOUS, COPY, DISCRETE, OBSERVED
from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.experience.replay_layout import FINAL, check_memory, replay_bytes, replay_fields, replay_rows
from agentpod.experience.rollout import Lanes, collect
from agentpod.models.policy import NetworkSpec, Policy
from podrace.errors import InvalidArgument, ResourceExhausted
from simulators import make
from simulators.base import Space


def test_a_ring_has_at_least_two_whole_segments() -> None:
    for capacity, horizon, count in itertools.product((1, 7, 100, 1000), (1, 3, 16), (1, 4)):
        rows = replay_rows(capacity, horizon, count)
        assert rows % horizon == 0
        assert rows >= 2 * horizon
        assert rows * count >= capacity
        assert rows == 2 * horizon or (rows - horizon) * count < capacity


@pytest.mark.parametrize("rows", [0, 4, 10])
def test_rows_that_are_not_whole_segments_are_refused(rows: int) -> None:
    fields = replay_fields(OBSERVED, DISCRETE, rows, 1)
    memory = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in fields.items()}
    with pytest.raises(InvalidArgument, match=f"{rows} rows"):
        ReplayBuffer(memory, 4)


def test_the_layout_follows_the_spaces() -> None:
    pixels = Space("continuous", (3, 8, 8), torch.uint8)
    fields = replay_fields(pixels, CONTINUOUS, 12, 5)
    assert {name: (each.shape, each.dtype) for name, each in fields.items()} == {
        "observation": ((12, 5, 3, 8, 8), torch.uint8),
        "action": ((12, 5, 2), torch.float32),
        "reward": ((12, 5), torch.float32),
        "terminated": ((12, 5), torch.bool),
        "truncated": ((12, 5), torch.bool),
        FINAL: ((12, 5, 3, 8, 8), torch.uint8),
    }
    assert replay_fields(pixels, DISCRETE, 12, 5)["action"].dtype == torch.int64
    assert replay_fields(pixels, DISCRETE, 12, 5)["action"].shape == (12, 5)


def test_a_buffer_that_does_not_fit_is_refused_with_the_capacity_that_would() -> None:
    fields = replay_fields(OBSERVED, DISCRETE, 50, 2)
    # Per step: 2 x 2 float32 observations, an action of 8 bytes, a reward, two flags; a priority takes 8 bytes.
    assert replay_bytes(fields) == 100 * (2 * 2 * 4 + 8 + 4 + 2)
    assert replay_bytes(fields, prioritized=True) == 3000 + 800
    check_memory(fields, 3000)
    with pytest.raises(
        ResourceExhausted, match=r"replay_capacity.* 100 steps needs 3000 bytes.* 2999 of .* are.* at most 99 "
    ):
        check_memory(fields, 2999)
    with pytest.raises(ResourceExhausted, match="3800 bytes"):
        check_memory(fields, 3000, prioritized=True)


@pytest.fixture
def mapped_final() -> Iterator[tuple[int, Tensor]]:
    """Maps a file with 60 x 2 observations of one page each; its descriptor shows how many pages are backed."""
    descriptor = os.memfd_create("final_observation")
    os.ftruncate(descriptor, 120 * mmap.PAGESIZE)
    memory = torch.frombuffer(mmap.mmap(descriptor, 120 * mmap.PAGESIZE), dtype=torch.uint8)
    yield descriptor, memory.view(60, 2, mmap.PAGESIZE)
    os.close(descriptor)


def paged_memory(final_observation: Tensor) -> dict[str, Tensor]:
    fields = replay_fields(Space("continuous", (mmap.PAGESIZE,), torch.uint8), DISCRETE, 60, 2)
    return {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in fields.items()} | {
        FINAL: final_observation
    }


@pytest.mark.parametrize("device", [None, COPY])
def test_final_observations_that_were_never_written_are_never_touched(
    mapped_final: tuple[int, Tensor], device: str | None
) -> None:
    descriptor, final_observation = mapped_final

    def pages() -> int:
        return os.fstat(descriptor).st_blocks * 512 // mmap.PAGESIZE

    memory = paged_memory(final_observation)
    replay = ReplayBuffer(memory, 10, device=device)
    for segment in range(6):
        first_row = replay.grant()
        memory["truncated"][first_row + 3, 1] = True
        final_observation[first_row + 3, 1] = segment + 1
        final_observation[first_row + 9] = segment + 1
        replay.receive(first_row)
    assert pages() == 6 * 3
    for n_step in (1, 3):
        replay.sample(1000, n_step, 0.9, torch.Generator().manual_seed(0))
    first_segment, tensors = replay.read(0, 6)
    assert (first_segment, len(tensors[FINAL])) == (0, 6 * 3)
    assert pages() == 6 * 3
    final_observation.zero_()
    os.ftruncate(descriptor, 0)
    os.ftruncate(descriptor, 120 * mmap.PAGESIZE)
    twin = ReplayBuffer(paged_memory(final_observation), 10)
    twin.start_at(6)
    twin.prepend(tensors)
    assert pages() == 6 * 3
    assert final_observation[[3, 19, 59], [1, 0, 1], -1].tolist() == [1, 2, 6]


def test_the_buffer_returns_what_collect_wrote() -> None:
    simulator = make("CartPole-v1", 3)
    fields = replay_fields(simulator.observation_space, simulator.action_space, replay_rows(300, 20, 3), 3)
    memory = {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in fields.items()}
    policy = Policy(simulator.observation_space, simulator.action_space, NetworkSpec((8,)))
    generator = torch.Generator().manual_seed(0)
    policy.initialize(generator)
    replay, lanes = ReplayBuffer(memory, 20), Lanes.start(simulator.reset(1))
    for _ in range(8):
        first_row = replay.grant()
        rows = {name: tensor[first_row : first_row + 20] for name, tensor in memory.items()}
        lanes = collect(simulator, policy, rows, lanes, generator).lanes
        replay.receive(first_row)
    batch = replay.gather(torch.arange(300), 1, 0.99)
    assert batch.discount.eq(0).any()
    going_on = batch.discount > 0
    # The dynamics of the cart: x' = x + 0.02 v.
    x, speed = batch.observation[:, 0], batch.observation[:, 1]
    torch.testing.assert_close(batch.next_observation[going_on, 0], (x + 0.02 * speed)[going_on], rtol=0, atol=1e-6)
    simulator.close()
