"""Rollouts move between a GPU and the host without waiting, and without final observations that are never read."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from fake_streams import FakeCuda
from torch import Tensor
from torch.utils._pytree import tree_leaves

from agentpod.experience.staging import Staging, upload
from agentpod.qualification.operations import OperationMode
from podrace.tensor_transport.copy_stream import CopyStream

HORIZON, LANES = 4, 3
UNTOUCHED = -7.0


def a_slot(*, replay: bool = False) -> dict[str, Tensor]:
    """Returns a slot filled with a number that no rollout contains."""
    shapes = {"observation": (HORIZON + (not replay), LANES, 2), "reward": (HORIZON, LANES)}
    shapes |= {} if replay else {"log_prob": (HORIZON, LANES)}
    slot = {name: torch.full(shape, UNTOUCHED) for name, shape in shapes.items()}
    slot["final_observation"] = torch.full((HORIZON, LANES, 2), UNTOUCHED)
    return slot | {"truncated": torch.zeros(HORIZON, LANES, dtype=torch.bool)}


def fill(rollout: dict[str, Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in rollout.keys() - {"truncated"}:
        rollout[name].copy_(torch.randn(rollout[name].shape, generator=generator))
    rollout["truncated"].zero_()
    rollout["truncated"][1, 2] = rollout["truncated"][2, 0] = True


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    cuda = FakeCuda().install(monkeypatch)
    monkeypatch.setattr(CopyStream, "host_buffer", lambda self, like: torch.empty_like(like))
    return cuda


def staged_on_a_gpu() -> Staging:
    """Returns a staging whose memory is on the host and whose streams are those of a GPU."""
    return Staging(torch.device("cpu"), always=True, copies=CopyStream(torch.device("cuda:0")))


@pytest.mark.parametrize("replay", [False, True])
def test_only_final_observations_that_are_read_are_written_into_the_slot(cuda: FakeCuda, replay: bool) -> None:
    staging, slot = staged_on_a_gpu(), a_slot(replay=replay)
    rollout = staging.of(slot)
    fill(rollout)
    finish = staging.copy_to(slot)
    assert finish is not None
    finish()
    for name in slot.keys() - {"final_observation"}:
        assert torch.equal(slot[name], rollout[name]), name
    read = rollout["truncated"].clone()
    # The observation after a segment of a replay memory is in its last row.
    read[-1] |= replay
    assert torch.equal(slot["final_observation"][read], rollout["final_observation"][read])
    assert (slot["final_observation"][~read] == UNTOUCHED).all()


def test_the_thread_that_computes_never_waits_for_the_copies(cuda: FakeCuda) -> None:
    staging, slot = staged_on_a_gpu(), a_slot()
    fill(staging.of(slot))
    cuda.finished.clear()
    finish = staging.copy_to(slot)
    fill(staging.of(slot))
    assert cuda.waits == []
    assert cuda.ordered == [("stream 1", "default"), ("default", "stream 1")], "copies follow, and precede what follows"
    assert finish is not None
    waiting = threading.Thread(target=finish, name="waiting")
    waiting.start()
    cuda.finished.set()
    waiting.join(20.0)
    assert cuda.waits == ["waiting"]


def test_one_stream_serves_all_rollouts(cuda: FakeCuda) -> None:
    staging, slot = staged_on_a_gpu(), a_slot()
    for _ in range(5):
        fill(staging.of(slot))
        staging.copy_to(slot)
    assert cuda.streams == 1


def test_a_slot_on_the_device_is_not_staged(cuda: FakeCuda) -> None:
    staging, slot = Staging(torch.device("cpu")), a_slot()
    assert staging.of(slot) is slot
    assert staging.copy_to(slot) is None
    assert cuda.streams == 0


@pytest.mark.parametrize("truncations", [True, False])
def test_an_uploaded_rollout_has_everything_that_is_read(truncations: bool) -> None:
    rollout = a_slot()
    fill(rollout)
    rollout["truncated"] &= truncations
    uploaded = upload(rollout, "cpu")
    assert list(uploaded) == [*(name for name in rollout if name != "final_observation"), "final_observation"]
    for name in rollout.keys() - {"final_observation"}:
        assert torch.equal(uploaded[name], rollout[name]), name
    read = rollout["truncated"]
    assert uploaded["final_observation"].shape == rollout["final_observation"].shape
    assert torch.equal(uploaded["final_observation"][read], rollout["final_observation"][read])


class NothingIsRead(OperationMode):
    """Fails where the host would wait for a GPU, whose place the device `meta` takes."""

    def run(self, operation: Any, name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        masks = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.dtype == torch.bool]
        assert not (name.startswith("index") and any(mask.is_meta for mask in masks)), "places are found by the GPU"
        return operation(*arguments, **options)


def test_the_host_does_not_wait_for_the_gpu_that_a_rollout_is_uploaded_to() -> None:
    rollout = a_slot()
    fill(rollout)
    with NothingIsRead():
        uploaded = upload(rollout, "meta")
    assert uploaded["final_observation"].shape == rollout["final_observation"].shape
