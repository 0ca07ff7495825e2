from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from structlog.typing import EventDict
from torch import Tensor

from agentpod.capture.graph_replay import MAXIMUM_GRAPHS, GraphReplay
from agentpod.qualification.operations import record_operations
from podrace.errors import FailedPrecondition


class Counting:
    """A function of tensors that changes a tensor, with a record that counts."""

    def __init__(self) -> None:
        self.total, self.called, self.recorded, self.played = torch.zeros(2), 0, 0, 0
        self.factor = 2.0

    def __call__(self, value: Tensor, number: Tensor) -> Tensor:
        self.called += 1
        self.total += value.sum() * self.factor
        return value * number

    def record(
        self, function: Callable[[], Any], generators: Sequence[torch.Generator], device: torch.device
    ) -> tuple[Callable[[], None], Any]:
        self.recorded += 1
        play, result = record_operations(function, generators, device)

        def counted() -> None:
            self.played += 1
            play()

        return counted, result

    def replay(self) -> GraphReplay[Tensor]:
        return GraphReplay(self, lambda: [self.total], "a test", self.record)


def arguments(rows: int, number: int = 3) -> list[Tensor]:
    return [torch.arange(rows, dtype=torch.float32), torch.tensor([number])]


def test_the_second_call_of_a_size_is_recorded_and_later_ones_are_replayed() -> None:
    counting = Counting()
    replay = counting.replay()
    for number in range(5):
        assert replay(arguments(4, number)).tolist() == [0, number, 2 * number, 3 * number]
    assert (counting.recorded, counting.played) == (1, 4)
    assert counting.total.tolist() == [60.0, 60.0]


def test_a_size_that_occurs_once_is_never_recorded() -> None:
    counting = Counting()
    replay = counting.replay()
    for rows in (4, 4, 3, 4):
        replay(arguments(rows))
    assert counting.recorded == replay.graphs == 1
    assert counting.total.tolist() == [42.0, 42.0]


def test_variants_have_graphs_of_their_own() -> None:
    counting = Counting()
    replay = counting.replay()
    for factor in (1.0, 2.0, 1.0, 2.0, 1.0):
        counting.factor = factor
        replay(arguments(2), variant=factor)
    assert replay.graphs == 2
    assert counting.total.tolist() == [7.0, 7.0]


def test_a_python_number_is_a_constant_of_the_graph() -> None:
    counting = Counting()
    replay = counting.replay()
    for factor in (1.0, 1.0, 5.0):
        counting.factor = factor
        replay(arguments(2))
    assert counting.total.tolist() == [3.0, 3.0]


def test_recording_leaves_the_changed_tensors_as_they_were() -> None:
    counting = Counting()
    replay = counting.replay()
    replay(arguments(2))
    replay(arguments(2))
    assert counting.total.tolist() == [4.0, 4.0]


def test_the_number_of_graphs_is_limited() -> None:
    counting = Counting()
    replay = counting.replay()
    for rows in range(1, MAXIMUM_GRAPHS + 4):
        replay(arguments(rows))
        replay(arguments(rows))
    assert replay.graphs == MAXIMUM_GRAPHS


def test_a_function_that_cannot_be_recorded_runs_eagerly_and_its_state_is_kept(log_lines: list[EventDict]) -> None:
    total = torch.zeros(())

    def waiting(value: Tensor) -> Tensor:
        total.add_(1.0)
        return value if float(value.sum()) > 0 else -value

    replay = GraphReplay(waiting, lambda: [total], "a test", record_operations)
    for _ in range(4):
        assert replay([torch.ones(2)]).tolist() == [1.0, 1.0]
    assert float(total) == 4.0
    (line,) = [line for line in log_lines if line["event"] == "runs without a CUDA graph"]
    assert line["reason"] == "operation _local_scalar_dense waits for the device"
    assert replay.graphs == 0


@pytest.mark.parametrize(
    "waiting",
    [lambda tensor: tensor.nonzero(), lambda tensor: tensor[tensor > 0], lambda tensor: torch.tensor(1.0) + tensor],
)
def test_the_tape_refuses_what_waits_for_the_host_or_the_device(waiting: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(FailedPrecondition, match="waits for the device"):
        record_operations(lambda: waiting(torch.ones(3)), [], torch.device("cpu"))
