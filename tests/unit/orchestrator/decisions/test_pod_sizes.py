import itertools
import random
from dataclasses import replace

import pytest

from orchestrator.decisions.pod_sizes.changes import (
    SCORES_BETWEEN_CHANGES,
    ChangeHistory,
    Promise,
    Resize,
    Room,
    SizedPod,
    SizeLimits,
    decide,
    limits_of,
    wanted_cores,
)
from orchestrator.decisions.resources import FreeResources, Resources
from podrace.tournament.v1.tournament_pb2 import PodSpec, TournamentSpec

GIB = 1 << 30
LIMITS = SizeLimits(1.0, 1.0, 4.0, 0.7, 0.1, GIB)
ALL_OF_IT = replace(LIMITS, improving_share=1.0)
IMPROVING = Promise("t-a7", improving=True, scores=20, reason="it rose")
STALLED = Promise("t-a7", improving=False, scores=20, reason="it did not rise")
NO_CHANGES = ChangeHistory(under_way=False, last_scores=None, gap_seconds=(), running_seconds=1000.0)
MACHINE = Room(0.0, 64 * GIB, shared=True)
CLUSTER = Room(0.0, 64 * GIB, shared=False)


def pods(count: int = 4, own_cores: float = 1.0) -> list[SizedPod]:
    """The incumbent in p0, and challengers with rising scores."""
    others = [SizedPod(f"p{index}", 1.0, f"t-a{index + 10}", float(index)) for index in range(1, count)]
    return [SizedPod("p0", own_cores, "t-a7", 50.0), *others]


def change(promise: Promise, found: list[SizedPod], room: Room = MACHINE, limits: SizeLimits = LIMITS) -> Resize | None:
    return decide(promise, found, room, limits, NO_CHANGES)[0]


def test_two_fused_pods_become_one_of_two_cores_and_again_two() -> None:
    assert change(IMPROVING, pods(2), limits=ALL_OF_IT) == Resize(
        "p0", 2.0, ("p1",), "the pod of t-a7 grows from 1 to 2 of 2 cores: it rose", "t-a7"
    )
    alone = [SizedPod("p2", 2.0, "t-a7", 50.0)]
    assert change(IMPROVING, alone, limits=ALL_OF_IT) is None
    back = change(STALLED, alone, limits=ALL_OF_IT)
    assert back == Resize("p2", 1.0, (), "the pod of t-a7 shrinks from 2 to 1 of 2 cores: it did not rise")


def test_an_improving_incumbent_gets_its_share_and_a_stalled_one_gives_it_back() -> None:
    grown = change(IMPROVING, pods(4))
    assert grown is not None
    assert (grown.cores, grown.retired) == (3.0, ("p1", "p2")), "those with the lowest scores"
    shrunk = change(STALLED, pods(2, own_cores=3.0))
    assert shrunk is not None
    assert (shrunk.pod_id, shrunk.cores) == ("p0", 1.0)


def test_the_share_is_rounded_to_whole_pods() -> None:
    assert [wanted_cores(IMPROVING, total, LIMITS) for total in (1.0, 2.0, 3.0, 4.0, 8.0)] == [1.0, 2.0, 3.0, 3.0, 4.0]
    assert wanted_cores(STALLED, 8.0, replace(LIMITS, minimum_cores=2.0)) == 2.0
    assert wanted_cores(IMPROVING, 2.0, replace(LIMITS, cores=0.5, improving_share=0.7)) == 1.5


def test_idle_pods_stop_before_busy_ones_and_unscored_before_scored() -> None:
    found = [
        *pods(1),
        SizedPod("scored", 1.0, "t-a11", -5.0),
        SizedPod("unscored", 1.0, "t-a12"),
        SizedPod("idle", 1.0, ""),
    ]
    for limit, expected in ((2.0, ("idle",)), (3.0, ("idle", "unscored")), (4.0, ("idle", "unscored", "scored"))):
        grown = change(IMPROVING, found, limits=replace(ALL_OF_IT, maximum_cores=limit))
        assert grown is not None
        assert grown.retired == expected


def test_pods_that_evaluate_stop_last() -> None:
    found = [*pods(3), SizedPod("evaluates", 1.0, "", evaluates=True)]
    for limit, expected in ((2.0, ("p1",)), (3.0, ("p1", "p2")), (4.0, ("p1", "p2", "evaluates"))):
        grown = change(IMPROVING, found, limits=replace(ALL_OF_IT, maximum_cores=limit))
        assert grown is not None
        assert grown.retired == expected


BLOCKED = ChangeHistory(under_way=False, last_scores=IMPROVING.scores, gap_seconds=(9.0,), running_seconds=1.0)


def test_a_grown_pod_of_a_tournament_beyond_its_share_shrinks_at_once() -> None:
    limits, room = replace(LIMITS, maximum_cores=6.0), replace(MACHINE, cores=-4.0)
    shrunk, reason = decide(IMPROVING, pods(3, own_cores=6.0), room, limits, BLOCKED)
    assert shrunk == Resize("p0", 3.0, (), reason)
    assert "3 of 4 cores: the share of the tournament has fallen" in reason
    assert decide(IMPROVING, pods(3, own_cores=6.0), room, limits, replace(BLOCKED, under_way=True))[0] is None
    assert decide(IMPROVING, pods(3, own_cores=6.0), room, limits, replace(BLOCKED, abandoned_in_row=1))[0] is None


def test_no_pod_of_a_tournament_beyond_its_share_grows() -> None:
    assert change(IMPROVING, pods(8), replace(MACHINE, cores=-4.0)) is None


@pytest.mark.parametrize("since", range(SCORES_BETWEEN_CHANGES + 2))
def test_there_are_four_scores_between_two_changes(since: int) -> None:
    history = replace(NO_CHANGES, last_scores=IMPROVING.scores - since)
    assert (decide(IMPROVING, pods(), MACHINE, LIMITS, history)[0] is not None) is (since >= SCORES_BETWEEN_CHANGES)


@pytest.mark.parametrize(("abandoned", "scores"), [(0, 4), (1, 8), (2, 16), (50, 4096)])
def test_each_abandoned_change_in_a_row_doubles_the_scores_before_the_next(abandoned: int, scores: int) -> None:
    for since, changes in ((scores - 1, False), (scores, True)):
        promise = replace(IMPROVING, scores=10_000)
        history = replace(NO_CHANGES, last_scores=promise.scores - since, abandoned_in_row=abandoned)
        assert (decide(promise, pods(), MACHINE, LIMITS, history)[0] is not None) is changes


def test_a_pod_remains_that_verifies_the_scores_of_the_incumbent() -> None:
    verified = replace(ALL_OF_IT, other_cores=1.0)
    assert change(IMPROVING, pods(2), limits=verified) is None
    grown = change(IMPROVING, pods(4), limits=verified)
    assert grown is not None
    assert (grown.cores, grown.retired) == (3.0, ("p1", "p2"))


def test_a_promise_that_alternates_with_every_score_changes_sizes_every_four_scores_only() -> None:
    own, last, changes = 1.0, None, []
    for scores in range(40):
        promise = replace(IMPROVING if scores % 2 else STALLED, scores=scores)
        history = replace(NO_CHANGES, last_scores=last)
        found, _ = decide(promise, pods(2, own), Room(2.0, 64 * GIB, shared=True), LIMITS, history)
        if found:
            own, last = found.cores, scores
            changes.append(scores)
    assert changes
    assert all(later - earlier >= SCORES_BETWEEN_CHANGES for earlier, later in itertools.pairwise(changes))


def test_a_second_change_waits_for_the_first() -> None:
    found, reason = decide(IMPROVING, pods(), MACHINE, LIMITS, replace(NO_CHANGES, under_way=True))
    assert (found, reason) == (None, "a change is under way")


@pytest.mark.parametrize(
    ("gaps", "running", "changes"),
    [
        ((), 49.0, False),
        ((), 51.0, True),
        ((0.1,), 9.0, False),
        ((0.1,), 11.0, True),
        ((10.0, 10.0), 1000.0, False),
        ((10.0, None), 1501.0, True),
    ],
)
def test_all_changes_together_interrupt_the_training_for_two_percent_of_the_time(
    gaps: tuple[float | None, ...], running: float, changes: bool
) -> None:
    history = replace(NO_CHANGES, gap_seconds=gaps, running_seconds=running)
    assert (decide(IMPROVING, pods(), MACHINE, LIMITS, history)[0] is not None) is changes


def test_a_grown_pod_whose_agent_was_overtaken_shrinks_first() -> None:
    found = [SizedPod("big", 3.0, "t-a3", 40.0), SizedPod("small", 1.0, "t-a7", 50.0)]
    shrunk = change(IMPROVING, found)
    assert shrunk is not None
    assert (shrunk.pod_id, shrunk.cores, shrunk.retired) == ("big", 1.0, ())


def test_a_grown_pod_shrinks_that_trains_another_trial_even_while_no_pod_has_the_incumbent() -> None:
    found = [SizedPod("big", 3.0, "t-a3", 40.0, trial=3), SizedPod("small", 1.0, "t-a4", 5.0, trial=4)]
    shrunk = change(replace(IMPROVING, trial=0), found)
    assert shrunk is not None
    assert (shrunk.pod_id, shrunk.cores, shrunk.retired) == ("big", 1.0, ())


def test_the_pod_that_trains_the_next_agent_of_the_incumbent_has_the_incumbent() -> None:
    # The leaderboard's answer is about the agent before.
    found = [SizedPod("big", 3.0, "t-a8", 40.0, trial=0), SizedPod("small", 1.0, "t-a4", 5.0, trial=4)]
    assert change(replace(IMPROVING, trial=0), found) is None
    shrunk = change(replace(STALLED, trial=0), found)
    assert shrunk is not None
    assert shrunk.pod_id == "big"


def test_nothing_changes_while_no_pod_has_the_incumbent() -> None:
    assert change(IMPROVING, pods()[1:]) is None
    # It trains the next agent of the incumbent, and the leaderboard's answer is about the one before.
    assert change(IMPROVING, [SizedPod("big", 3.0, "t-a8", 40.0), SizedPod("small", 1.0, "t-a3", 5.0)]) is None


def test_on_a_cluster_the_new_pod_needs_all_its_cores_in_addition() -> None:
    grown = change(IMPROVING, pods(4), CLUSTER)
    assert grown is not None
    assert (grown.cores, grown.retired) == (3.0, ("p1", "p2", "p3"))
    assert change(IMPROVING, pods(2), CLUSTER, ALL_OF_IT) is None, "two cores, of which the old pod has one"
    assert change(STALLED, pods(1, own_cores=3.0), CLUSTER) is None, "no other pod can stop for it"
    assert change(STALLED, pods(1, own_cores=3.0), replace(CLUSTER, cores=1.0)) is not None


def test_on_a_full_cluster_challengers_stop_so_that_a_stalled_pod_can_shrink() -> None:
    shrunk = change(STALLED, pods(3, own_cores=4.0), CLUSTER)
    assert shrunk is not None
    assert (shrunk.pod_id, shrunk.cores, shrunk.retired) == ("p0", 1.0, ("p1",))
    roomy = change(STALLED, pods(3, own_cores=4.0), replace(CLUSTER, cores=1.0))
    assert roomy is not None
    assert roomy.retired == ()


def test_the_incumbent_does_not_stop_so_that_an_overtaken_pod_can_shrink() -> None:
    overtaken, leader = SizedPod("big", 3.0, "t-a3", 40.0), SizedPod("p0", 1.0, "t-a7", 50.0)
    assert change(STALLED, [overtaken, leader], CLUSTER) is None
    shrunk = change(STALLED, [overtaken, leader, SizedPod("idle", 1.0, "")], CLUSTER)
    assert shrunk is not None
    assert (shrunk.pod_id, shrunk.retired) == ("big", ("idle",))


@pytest.mark.parametrize(("largest", "cores"), [(8.0, 3.0), (2.5, 2.0), (1.0, None)])
def test_a_pod_does_not_grow_beyond_the_largest_node(largest: float, cores: float | None) -> None:
    grown = change(IMPROVING, pods(6), replace(CLUSTER, largest_cores=largest), replace(LIMITS, improving_share=0.5))
    assert (grown.cores if grown else None) == cores


def test_a_pod_does_not_grow_beyond_the_memory() -> None:
    grown = change(IMPROVING, pods(4), replace(MACHINE, memory_bytes=2 * GIB))
    assert grown is not None
    assert (grown.cores, grown.retired) == (2.0, ("p1",))
    assert change(STALLED, pods(2, own_cores=3.0), replace(MACHINE, memory_bytes=GIB // 2)) is None


def nodes(*free_cores: float, total: float | None = None) -> Room:
    """A cluster whose nodes have these free cores, and memory for more pods than that."""
    free = tuple(Resources(cores, 64 * GIB, 0) for cores in free_cores)
    quota = sum(free_cores) if total is None else total
    return replace(CLUSTER, free=FreeResources(Resources(quota, 640 * GIB, 0), free, strict=True))


def placed(*nodes_of_pods: int | None) -> list[SizedPod]:
    """The incumbent in p0, and challengers with rising scores, on these nodes."""
    return [replace(pod, node=node) for pod, node in zip(pods(len(nodes_of_pods)), nodes_of_pods, strict=True)]


UP_TO_TWO = replace(ALL_OF_IT, maximum_cores=2.0)


@pytest.mark.parametrize(
    ("places", "retired"),
    [
        ((0, 0, 1, 2, 1), ("p2", "p4")),
        ((0, 1, 1, 2, 2), ("p1", "p2")),
        ((0, 2, 1, 2, 1), ("p1", "p3")),
        ((0, 0, 0, 1, 1), ("p1", "p2")),
        ((1, 0, 1, 2, 3), None),
        ((0, None, None, 1, 1), ("p3", "p4")),
        ((0, None, None, 1, 2), None),
    ],
    ids=["only-there", "lowest-scores", "its-best-is-worst", "own-node", "one-each", "closed-node", "nowhere"],
)
def test_pods_stop_on_one_node_which_then_holds_the_new_pod(
    places: tuple[int | None, ...], retired: tuple[str, ...] | None
) -> None:
    grown = change(IMPROVING, placed(*places), nodes(0.0, 0.0, 0.0, 0.0), UP_TO_TWO)
    assert (grown.retired if grown else None) == retired


def test_what_is_free_on_a_node_need_not_stop_there() -> None:
    room = replace(nodes(0.0, 1.0, 0.0), cores=1.0)
    grown = change(IMPROVING, placed(0, 0, 0, 2, 1), room, UP_TO_TWO)
    assert grown is not None
    assert grown.retired == ("p4",), "one pod of the best score stops instead of two"
    assert change(IMPROVING, placed(0, 0), replace(nodes(0.0, 2.0), cores=2.0), UP_TO_TWO) is not None


def test_the_cores_that_a_tournament_lacks_stop_anywhere() -> None:
    """Another tournament may have the free core of node 1, so a pod elsewhere stops for it."""
    grown = change(IMPROVING, placed(0, 2, 3, 4, 1), nodes(0.0, 1.0, 0.0, 0.0, 0.0), UP_TO_TWO)
    assert grown is not None
    assert set(grown.retired) == {"p1", "p4"}


def test_the_quota_of_a_cluster_counts_as_well_as_its_nodes() -> None:
    found = placed(0, 0, 0, 1)
    assert change(IMPROVING, found, replace(nodes(0.0, 2.0), cores=2.0), UP_TO_TWO) is not None
    within = change(IMPROVING, found, replace(nodes(0.0, 2.0, total=1.0), cores=2.0), UP_TO_TWO)
    assert within is not None
    assert within.retired == ("p3",), "one pod's cores leave the quota; on node 1 it is the only one"


def random_case(draw: random.Random) -> tuple[Promise, list[SizedPod], Room, SizeLimits]:
    limits = SizeLimits(
        1.0, float(draw.choice([1, 1, 2])), float(draw.choice([2, 3, 8])), draw.random(), draw.random(), GIB
    )
    promise = Promise("t-a0", draw.random() < 0.5, 9, "")
    found = [SizedPod("p0", float(draw.randint(1, 3)), draw.choice(["t-a0", "t-a0", "t-a99", ""]))]
    found += [
        SizedPod(f"p{index}", 1.0, draw.choice(["", f"t-a{index}"]), draw.choice([None, draw.random()]))
        for index in range(1, draw.randint(1, 9))
    ]
    room = Room(float(draw.randint(0, 3)), draw.randint(0, 9) * GIB, shared=draw.random() < 0.5)
    if not room.shared and draw.random() < 0.7:
        found = [replace(pod, node=draw.choice([None, 0, 1, 2])) for pod in found]
        free = tuple(Resources(float(draw.randint(0, 2)), draw.randint(0, 4) * GIB, 0) for _ in range(3))
        room = replace(room, free=FreeResources(Resources(float(draw.randint(0, 6)), 64 * GIB, 0), free, strict=True))
    return promise, found, room, limits


def some_node_holds(made: Resize, found: list[SizedPod], free: FreeResources) -> bool:
    """Whether the new pod fits on a node and within the quota when the pods that stop for it are gone."""
    stopped = [pod for pod in found if pod.pod_id in made.retired]
    cores = [node.cores + sum(pod.cores for pod in stopped if pod.node == at) for at, node in enumerate(free.nodes)]
    gib = [
        node.memory_bytes // GIB + sum(pod.cores for pod in stopped if pod.node == at)
        for at, node in enumerate(free.nodes)
    ]
    fits = any(made.cores <= min(both) for both in zip(cores, gib, strict=True))
    return fits and made.cores <= free.total.cores + sum(pod.cores for pod in stopped)


def test_cores_are_only_moved_and_sizes_stay_within_the_limits() -> None:
    draw, changes = random.Random(1), 0
    for _ in range(2000):
        promise, found, room, limits = random_case(draw)
        made = change(promise, found, room, limits)
        if made is None:
            continue
        changes += 1
        old = {pod.pod_id: pod for pod in found}
        assert made.pod_id in old
        assert made.pod_id not in made.retired, "an agent has one pod"
        assert len(set(made.retired)) == len(made.retired)
        assert made.cores % limits.cores == 0
        assert limits.cores <= made.cores <= limits.maximum_cores
        left = sum(pod.cores for pod in found if pod.pod_id not in made.retired) - old[made.pod_id].cores
        assert left + made.cores <= sum(pod.cores for pod in found) + room.cores
        if not room.shared:
            given = sum(old[pod_id].cores for pod_id in made.retired)
            assert made.cores <= room.cores + given, "it runs together with the old pod"
        assert made.cores * GIB <= room.memory_bytes
        assert room.free is None or some_node_holds(made, found, room.free)
    assert changes > 200


def test_all_pods_have_one_size_by_default() -> None:
    assert limits_of(TournamentSpec(pod=PodSpec(cores=1.0))) is None
    assert limits_of(TournamentSpec(pod=PodSpec(cores=1.0, maximum_cores=1.0))) is None
    pod = PodSpec(cores=1.0, minimum_cores=1.0, maximum_cores=2.0, improving_share=0.7, stalled_share=0.1)
    grows = TournamentSpec(pod=pod)
    assert limits_of(grows) == SizeLimits(1.0, 1.0, 2.0, pytest.approx(0.7), pytest.approx(0.1), 0)
    grows.evaluation.verify = 8
    verified = limits_of(grows)
    assert verified is not None
    assert verified.other_cores == 1.0


def test_learners_divide_the_environments_so_only_some_sizes_are_possible() -> None:
    pod = PodSpec(cores=4.0, gpus=1, learners=1, maximum_cores=64.0, memory_bytes=GIB)
    spec = TournamentSpec(pod=pod)
    spec.environment.count = 4096
    limits = limits_of(spec)
    assert limits is not None
    assert limits.sizes(4.0, 64.0) == [64.0, 32.0, 16.0, 8.0, 4.0]
    assert limits.sizes(8.0, 15.0) == [8.0]
    assert limits.sizes(12.0, 15.0) == []
    assert limits.reserved_by(16.0) == Resources(16.0, 4 * GIB, 4)
    six = replace(limits, improving_share=0.7)
    assert wanted_cores(IMPROVING, 32.0, six) == 16.0, "0.7 of eight pods are six, which do not divide 4,096"


def test_a_pod_with_gpus_grows_on_a_node_whose_other_pods_leave_it_as_many() -> None:
    limits = replace(ALL_OF_IT, gpus=1, divided=8, maximum_cores=2.0)
    found = [replace(pod, node=0) for pod in pods(4)]

    def grown(free_gpus: int) -> Resize | None:
        node = Resources(64.0, 64 * GIB, free_gpus)
        return change(IMPROVING, found, replace(CLUSTER, free=FreeResources(node, (node,), strict=True)), limits)

    alone, among_others = grown(0), grown(1)
    assert alone is not None
    assert alone.retired == ("p1", "p2"), "the new pod has two GPUs while the old one still has its own"
    assert among_others is not None
    assert (among_others.cores, among_others.retired) == (2.0, ("p1", "p2")), "cores are moved, and none is spare"
