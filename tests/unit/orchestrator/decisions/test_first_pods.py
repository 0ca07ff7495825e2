"""How large the first pod of a tournament is."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.decisions.pod_sizes.changes import SizeLimits
from orchestrator.decisions.pod_sizes.first_pods import grow_first_pods, has_one_founder
from orchestrator.decisions.pool_size import PoolShort, RetirePod, StartPod
from orchestrator.decisions.resources import Resources
from podrace.specification import resolve as specification

LIMITS = SizeLimits(1.0, 1.0, 8.0, 0.7, 0.1)


def node(cores: float, memory_bytes: int = 1 << 40) -> Resources:
    return Resources(cores, memory_bytes, 0)


def starts(count: int, name: str = "t") -> list[Any]:
    return [StartPod(name, f"reason {number}") for number in range(count)]


@pytest.mark.parametrize(
    ("pods", "largest", "cores"),
    [
        (1, 16.0, [None]),
        (2, 16.0, [2.0]),
        (3, 16.0, [3.0]),
        (4, 16.0, [3.0, None]),
        (8, 16.0, [6.0, None, None]),
        (8, 2.5, [2.0, *[None] * 6]),
        (8, 0.5, [None] * 8),
        (20, 100.0, [8.0, *[None] * 12]),
    ],
)
def test_the_first_pod_takes_the_place_of_several(pods: int, largest: float, cores: list[float | None]) -> None:
    actions = grow_first_pods(starts(pods), {"t": LIMITS}, [node(largest), node(0.5)])
    assert [one.cores for one in actions if isinstance(one, StartPod)] == cores
    assert sum(one.cores or 1.0 for one in actions if isinstance(one, StartPod)) == pods


def test_the_first_pod_fits_on_a_node_with_its_memory() -> None:
    limits = replace(LIMITS, memory_bytes=1 << 30)
    (first, *_) = grow_first_pods(starts(8), {"t": limits}, [node(16.0, 3 << 30), node(2.0)])
    assert isinstance(first, StartPod)
    assert first.cores == 3.0, "six cores would need 6 GiB"


@pytest.mark.parametrize(("largest", "cores"), [(7.0, 4.0), (3.0, 2.0), (8.0, 8.0)])
def test_the_first_pod_divides_the_environments_of_its_learners(largest: float, cores: float) -> None:
    limits = replace(LIMITS, improving_share=1.0, divided=4096)
    first, *_ = grow_first_pods(starts(8), {"t": limits}, [node(largest)])
    assert isinstance(first, StartPod)
    assert first.cores == cores


def test_other_actions_and_tournaments_stay_as_they_are() -> None:
    others = [RetirePod("p", "r"), *starts(3, "other"), PoolShort("t", "s")]
    actions = grow_first_pods([*others, *starts(3)], {"t": LIMITS}, [node(16.0)])
    assert actions[: len(others)] == others
    assert len(actions) == len(others) + 1


def test_pods_of_several_cores_are_counted_in_their_own_size() -> None:
    (first,) = grow_first_pods(starts(2), {"t": replace(LIMITS, cores=4.0, maximum_cores=8.0)}, [node(16.0)])
    assert isinstance(first, StartPod)
    assert first.cores == 8.0
    assert "founder" in first.reason


@pytest.mark.parametrize(
    ("algorithms", "evolution", "expected"),
    [
        ({"ppo": {}}, {}, True),
        ({"ppo": {}, "a2c": {"ratio": 0}}, {}, True),
        ({"ppo": {}, "a2c": {}}, {}, False),
        ({"ppo": {}}, {"founder_share": 0}, False),
        ({"ppo": {}}, {"strategy": "asha"}, False),
    ],
)
def test_a_tournament_trains_one_founder_first(
    algorithms: dict[str, Any], evolution: dict[str, Any], *, expected: bool
) -> None:
    values = {
        "name": "t",
        "environment": {"id": "cartpole"},
        "algorithms": algorithms,
        "objective": {"wall_clock_duration": "60s"},
        "evolution": {"strategy": "incumbent", **evolution},
    }
    spec = specification.resolve(specification.parse(values, source="test"))
    assert has_one_founder(spec) is expected
