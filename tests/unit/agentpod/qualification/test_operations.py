import torch

from agentpod.qualification.operations import Counted, count_operations


def test_operations_are_counted_and_views_are_not() -> None:
    tensor = torch.zeros(4, 256)

    def work() -> None:
        tensor.view(-1)[:512].unsqueeze(0).add_(1.0)
        tensor.t().mul_(2.0)

    found = count_operations(work)
    assert found.operations == 2
    # Each is read and written: 512 elements, then 1,024, of 4 bytes.
    assert found.touched_bytes == 2 * 4 * (512 + 1024)


def test_the_bound_is_that_of_launches_or_of_memory() -> None:
    found = Counted(100, 10**9)
    assert found.least_seconds(1e-5, 0.0) == 1e-3
    assert found.least_seconds(1e-5, 100.0) == 1e-2
    assert found.least_seconds(1e-3, 100.0) == 0.1
