from dataclasses import replace

import pytest

from agentpod.qualification.primitives import KERNELS, Primitives, judge, measure
from podrace.qualification.findings import Grade

FAST = Primitives("cuda:0", 25.0, 25.0, 8.0, 8.0, 2500.0, 3350.0, 6e-6, 1.5e-6)


def test_a_fast_device_passes() -> None:
    assert {finding.grade for finding in judge(FAST)} == {Grade.PASS}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"to_device_pinned": 6.0}, "pinned to device, cuda:0"),
        ({"to_host_pinned": 6.0}, "device to pinned, cuda:0"),
        ({"to_device_pageable": 1.0}, "pageable to device, cuda:0"),
        ({"to_host_pageable": 1.0}, "device to pageable, cuda:0"),
        ({"on_device": 1000.0}, "copy on the device, cuda:0"),
        ({"launch_seconds": 30e-6}, "kernel launch, cuda:0"),
        ({"graph_seconds": 5e-6}, "kernel in a graph, cuda:0"),
    ],
)
def test_each_slow_primitive_is_the_only_slow_line_and_has_a_remedy(changes: dict[str, float], name: str) -> None:
    (slow,) = (finding for finding in judge(replace(FAST, **changes)) if finding.grade == Grade.SLOW)
    assert slow.name == name
    assert slow.remedy
    assert slow.expected


def test_a_copy_on_a_device_of_unknown_bandwidth_is_not_slow() -> None:
    assert {finding.grade for finding in judge(replace(FAST, bandwidth=0.0, on_device=1.0))} == {Grade.PASS}


def test_the_processor_is_measured_by_the_same_code() -> None:
    found = measure("cpu", quick=True)
    assert min(found.to_device_pinned, found.to_host_pageable, found.on_device) > 0
    # Nothing is launched at once, so a kernel of the "graph" takes about as long as another one.
    assert found.graph_seconds * KERNELS > found.launch_seconds
