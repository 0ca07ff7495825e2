"""Tests MuJoCo Warp on a GPU: captured steps, tens of thousands of lanes, and that nothing waits for the device."""

import os
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from podrace.errors import ResourceExhausted
from simulators import make
from simulators.warp.simulator import WarpSimulator

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
LANES = int(os.environ.get("PODRACE_WARP_LANES", "65536"))
KINDS = [("ant", "gymnasium"), ("ant", "isaac"), ("humanoid", "gymnasium"), ("humanoid", "isaac")]


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    yield
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.empty_cache()


def made(body: str, count: int, device: str = "cuda", **options: object) -> WarpSimulator:
    simulator = make(f"warp:{body}", count, options, device)
    assert isinstance(simulator, WarpSimulator)
    return simulator


def actions(simulator: WarpSimulator, steps: int) -> Tensor:
    """Returns [steps, N, n] on the CPU."""
    (high, *_) = simulator.action_space.high or ()
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(steps, simulator.count, *simulator.action_space.shape, generator=generator) * 2 - 1) * high


@pytest.mark.parametrize(("body", "style"), KINDS)
def test_tens_of_thousands_of_lanes_step_without_waiting(body: str, style: str) -> None:
    before = torch.cuda.mem_get_info()[0]
    simulator = made(body, LANES, style=style, max_episode_steps=60)
    simulator.reset(1)
    drawn, steps = actions(simulator, 8).cuda(), 100
    ends = torch.zeros((), dtype=torch.int64, device="cuda")
    for step_number in range(10):
        simulator.step(drawn[step_number % 8])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    began = time.perf_counter()
    for step_number in range(steps):
        step = simulator.step(drawn[step_number % 8])
        ends += (step.terminated | step.truncated).sum()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    rate = LANES * steps / (time.perf_counter() - began)
    used = (before - torch.cuda.mem_get_info()[0]) / 2**30
    print(f"\n{torch.cuda.get_device_name()}: {body}/{style}, {LANES} lanes: {rate:,.0f} env steps/s, {used:.1f} GiB")
    assert int(ends) >= LANES
    assert torch.isfinite(step.observation).all()
    assert torch.isfinite(step.reward).all()
    # The fraction that diverges in single precision; each costs its lane an episode.
    assert simulator.report().metrics["diverged_episodes"] < 1e-4 * LANES


@pytest.mark.parametrize(("body", "style"), KINDS)
def test_a_gpu_and_a_cpu_give_similar_results_for_some_steps(body: str, style: str) -> None:
    there, here = (
        made(body, 64, style=style, max_episode_steps=3),
        made(body, 64, "cpu", style=style, max_episode_steps=3),
    )
    torch.testing.assert_close(there.reset(7).cpu(), here.reset(7), rtol=1e-4, atol=1e-4)
    for action in actions(here, 9):
        theirs, ours = there.step(action.cuda()), here.step(action)
        assert torch.equal(theirs.truncated.cpu(), ours.truncated)
        torch.testing.assert_close(theirs.reward.cpu(), ours.reward, rtol=1e-2, atol=2e-2)
        # Includes the first observations of the next episodes.
        close = torch.isclose(theirs.observation.cpu(), ours.observation, rtol=1e-2, atol=2e-2)
        assert close.float().mean() > 0.999
    assert there.observation_space == here.observation_space


def test_a_deterministic_ant_steps_the_same_to_the_last_bit() -> None:
    simulator = made("ant", 512, deterministic=True)
    drawn, seen = actions(simulator, 50).cuda(), []
    for _ in range(2):
        simulator.reset(3)
        seen.append(torch.stack([simulator.step(action).observation.clone() for action in drawn]))
    assert torch.equal(*seen)


def test_steps_run_in_the_order_of_the_current_stream() -> None:
    simulator, other = made("ant", 256), torch.cuda.Stream()
    drawn, seen = actions(simulator, 6).cuda(), []
    for stream in (torch.cuda.current_stream(), other):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            simulator.reset(3)
            rewards = [simulator.step(action).reward.clone() for action in drawn]
            seen.append(torch.stack(rewards).cpu())
    torch.testing.assert_close(*seen, rtol=1e-3, atol=1e-3)


def test_an_overflow_on_a_gpu_is_reported() -> None:
    simulator = made("ant", 256, nconmax=1)
    for action in actions(simulator, 40).cuda():
        simulator.step(action)
    with pytest.raises(ResourceExhausted, match="no room"):
        simulator.report()
