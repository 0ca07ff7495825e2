"""A pod of another size and the pod that it replaces reserve memory together, until the new one takes over."""

import math
import random
from dataclasses import replace

import pytest

from orchestrator.decisions.pod_sizes.changes import ChangeHistory, Promise, Resize, Room, SizedPod, SizeLimits, decide
from orchestrator.decisions.pool_size import SETTLING_SECONDS, PodActivity, PodView, settled_memory_bytes
from orchestrator.decisions.resources import Capacity, Resources

GIB = 1 << 30
NOW = 1000.0
LIMITS = SizeLimits(1.0, 1.0, 4.0, 0.7, 0.1, 2 * GIB)
IMPROVING = Promise("t-a7", improving=True, scores=20, reason="it rose")
STALLED = Promise("t-a7", improving=False, scores=20, reason="it did not rise")
NO_CHANGES = ChangeHistory(under_way=False, last_scores=None, gap_seconds=(), running_seconds=1000.0)


def pods(count: int, own_cores: float = 1.0) -> list[SizedPod]:
    """The incumbent in p0, and challengers with rising scores."""
    others = [SizedPod(f"p{index}", 1.0, f"t-a{index + 10}", float(index)) for index in range(1, count)]
    return [SizedPod("p0", own_cores, "t-a7", 50.0), *others]


def change(promise: Promise, found: list[SizedPod], total_gib: float, cores: float = 0.0) -> Resize | None:
    """The change on a machine whose memory is reserved by these pods alone."""
    unreserved = int(total_gib * GIB) - sum(LIMITS.memory_of(pod.cores) for pod in found)
    room = Room(cores, int(total_gib * GIB), shared=True, unreserved_bytes=unreserved)
    return decide(promise, found, room, LIMITS, NO_CHANGES)[0]


@pytest.mark.parametrize(
    ("total_gib", "cores", "retired"),
    [(12, 3.0, ("p1", "p2")), (10, 3.0, ("p1", "p2")), (8, 3.0, ("p1", "p2", "p3"))],
)
def test_pods_stop_until_the_old_and_the_new_pod_have_memory_together(
    total_gib: float, cores: float, retired: tuple[str, ...]
) -> None:
    grown = change(IMPROVING, pods(4), total_gib)
    assert grown is not None
    assert (grown.cores, grown.retired) == (cores, retired)


def test_a_pod_grows_less_if_there_is_less_memory_and_not_at_all_if_there_is_too_little() -> None:
    grown = change(IMPROVING, pods(3), 6.0)
    assert grown is not None
    assert (grown.cores, grown.retired) == (2.0, ("p1", "p2")), "3 cores would need 8 GiB"
    assert change(IMPROVING, pods(2), 4.0) is None


def test_a_pod_that_shrinks_needs_memory_next_to_the_old_one() -> None:
    shrunk = change(STALLED, pods(2, own_cores=3.0), 8.0)
    assert shrunk is not None
    assert (shrunk.cores, shrunk.retired) == (1.0, ("p1",))
    roomy = change(STALLED, pods(2, own_cores=3.0), 10.0)
    assert roomy is not None
    assert roomy.retired == ()


def test_no_change_reserves_more_memory_than_there_is() -> None:
    draw, changes = random.Random(2), 0
    for _ in range(1000):
        found = pods(draw.randint(1, 6), own_cores=float(draw.randint(1, 3)))
        reserved = sum(LIMITS.memory_of(pod.cores) for pod in found)
        total = reserved + draw.randint(0, 6) * GIB
        made = change(draw.choice([IMPROVING, STALLED]), found, total / GIB, float(draw.randint(0, 2)))
        if made is not None:
            changes += 1
            stopped = sum(pod.cores for pod in found if pod.pod_id in made.retired)
            assert reserved - LIMITS.memory_of(stopped) + LIMITS.memory_of(made.cores) <= total
    assert changes > 200


def test_pods_with_a_part_of_a_core_fill_the_memory_exactly() -> None:
    limits = replace(LIMITS, cores=0.1, minimum_cores=0.1, maximum_cores=0.3, memory_bytes=GIB)
    found = [SizedPod("p0", 0.1, "t-a7", 50.0), *(SizedPod(f"p{index}", 0.1, "") for index in range(1, 4))]
    room = Room(0.0, 64 * GIB, shared=True, unreserved_bytes=0)
    made = decide(IMPROVING, found, room, limits, NO_CHANGES)[0]
    assert made is not None
    assert (made.cores, made.retired) == (pytest.approx(0.3), ("p1", "p2", "p3"))


def test_memory_that_young_pods_have_reserved_is_not_available() -> None:
    ages = (0.0, SETTLING_SECONDS - 1.0, SETTLING_SECONDS, 500.0)
    views = [
        PodView(
            str(age), "t", Resources(1.0, GIB, 0), NOW - age, None, terminated=False, activity=lambda _: PodActivity()
        )
        for age in ages
    ]
    assert settled_memory_bytes(NOW, Capacity(Resources(4.0, 8 * GIB, 0), 5 * GIB), views) == 3 * GIB


def test_without_memory_in_the_specification_only_cores_count() -> None:
    assert replace(LIMITS, memory_bytes=0).cores_with(math.inf) == 0.0
