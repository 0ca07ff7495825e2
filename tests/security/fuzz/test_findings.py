"""What fuzzing found: each of these inputs once gave INTERNAL, a traceback, or a call that did not end."""

from pathlib import Path

import pytest
import torch

from agentpod.models.policy import NetworkSpec, policy_shapes
from agentpod.roles.slot_checks import check_slot, open_policy
from podrace.agentpod.v1 import agentpod_pb2 as pod_pb
from podrace.checkpoint_store.manifest import manifest_from_bytes, pointer_from_bytes
from podrace.errors import DataLoss, InvalidArgument
from podrace.field_bounds import violations
from podrace.tensor.v1 import tensor_pb2
from podrace.tensor.v1.tensor_pb2 import TensorRef, TensorSpec
from podrace.tensor_transport.codec import size_bytes
from podrace.tensor_transport.memory import MemoryPlane
from podrace.tensor_transport.plane import Planes
from podrace.tensor_transport.probe import answer_probe
from simulators import make
from simulators.base import Space
from simulators.stocks.data import load_prices


def a_spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=shape, layout_version=1)


@pytest.mark.parametrize("read", [manifest_from_bytes, pointer_from_bytes])
@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"agent_id":' * 100_000])
def test_json_that_is_nested_too_deeply_is_damaged(read, data: bytes):
    with pytest.raises(DataLoss):
        read(data)


@pytest.mark.parametrize("date", ["-001-01-01", "0000-01-01", "9999-01-01", "1066-10-14"])
def test_a_date_without_prices_is_refused(tmp_path: Path, date: str):
    path = tmp_path / "prices.csv"
    path.write_text(f"date,ticker,high,low,close\n{date},A,2,1,1\n{date},A,2,1,1\n")
    with pytest.raises(InvalidArgument, match="the date is not one"):
        load_prices(str(path))


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0, 2**62), (2**40,)])
def test_a_shape_with_a_huge_side_is_refused_even_if_it_is_empty(shape: tuple[int, ...]):
    with pytest.raises(InvalidArgument):
        size_bytes(a_spec("x", *shape))
    assert size_bytes(a_spec("x", 0, 7)) == 0


@pytest.mark.parametrize("sizes", [(2**20, 2**20), (2**20,) * 64])
def test_a_policy_that_does_not_fit_is_refused_before_it_is_allocated(sizes: tuple[int, ...]):
    observations = Space("continuous", (4,), torch.float32)
    with pytest.raises(InvalidArgument, match="at most"):
        policy_shapes(observations, Space("discrete", (), torch.int64, n=2), NetworkSpec(hidden_sizes=sizes))


async def test_references_of_other_tensors_are_refused():
    plane = MemoryPlane()
    planes, other = Planes(plane), plane.create("r", [a_spec("other", 4)]).refs()[0]
    with pytest.raises(InvalidArgument, match="'policy'"):
        open_policy(planes, pod_pb.PolicyRef(tensor=other))
    with pytest.raises(InvalidArgument, match="DATA_TYPE_FLOAT64"):
        await answer_probe(planes, other)
    plane.close()


def slot(**changes: TensorSpec) -> pod_pb.RolloutSlot:
    """A slot for 4 steps of 2 lanes of cartpole, with changed tensors."""
    specs = {
        "observation": a_spec("observation", 5, 2, 4),
        "action": TensorSpec(name="action", data_type=tensor_pb2.DATA_TYPE_INT64, shape=[4, 2], layout_version=1),
        "log_prob": a_spec("log_prob", 4, 2),
        "reward": a_spec("reward", 4, 2),
        "final_observation": a_spec("final_observation", 4, 2, 4),
    }
    for name in ("terminated", "truncated"):
        specs[name] = TensorSpec(name=name, data_type=tensor_pb2.DATA_TYPE_BOOL, shape=[4, 2], layout_version=1)
    tensors = [TensorRef(plane_uri="memory:x", spec=spec) for spec in (specs | changes).values()]
    return pod_pb.RolloutSlot(tensors=tensors)


def test_a_slot_must_have_the_tensors_that_the_worker_writes():
    simulator = make("cartpole", 2)
    check_slot(slot(), simulator, 4, 0)
    refused = {
        "reward": [a_spec("reward", 3, 2), a_spec("reward", 4, 1), a_spec("reward", 4), a_spec("gain", 4, 2)],
        "action": [a_spec("action", 4, 2)],
        "observation": [a_spec("observation", 4, 2, 4), a_spec("observation", 5, 2, 3)],
    }
    for name, specs in refused.items():
        for spec in specs:
            with pytest.raises(InvalidArgument, match=r"slot\.tensors"):
                check_slot(slot(**{name: spec}), simulator, 4, 0)
    beyond = slot()
    beyond.first_row = 1
    with pytest.raises(InvalidArgument):
        check_slot(beyond, simulator, 4, 0)
    simulator.close()


def test_environments_that_are_objects_of_their_own_are_limited():
    with pytest.raises(InvalidArgument, match="at most"):
        make("CartPole-v1", 1_000_000)


def test_an_evaluation_has_episodes():
    assert [str(each) for each in violations(pod_pb.EvaluatePolicyRequest(session="s"))] == ["episodes: is missing"]
