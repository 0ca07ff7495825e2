from dataclasses import replace
from typing import Any

import pytest

from orchestrator.decisions.fair_share import Demand, PoolGrant, grant, share
from orchestrator.decisions.pool_size import (
    MAXIMUM_DEATHS,
    Action,
    KillPod,
    Limits,
    PodActivity,
    PodView,
    PoolShort,
    RetirePod,
    StartPod,
    TerminatePod,
    backoff_seconds,
    decide,
)
from orchestrator.decisions.resources import Capacity, FreeResources, Resources

GIB = 1 << 30
ONE_CORE = Resources(1.0, GIB, 0)
LIMITS = Limits(start_pods=True, terminate_seconds=20.0, kill_seconds=60.0)
NOW = 1000.0


def machine(
    cores: float = 4.0, memory_gib: float = 16.0, gpus: int = 0, available_gib: float | None = None
) -> Capacity:
    available = memory_gib if available_gib is None else available_gib
    return Capacity(Resources(cores, int(memory_gib * GIB), gpus), int(available * GIB))


def wants(
    tournament_id: str = "t",
    minimum: int = 1,
    maximum: int | None = None,
    pod: Resources = ONE_CORE,
    not_before: float = 0,
    **pace: Any,
) -> Demand:
    return Demand(tournament_id, pod, minimum, maximum, not_before, **pace)


def pod(
    pod_id: str,
    tournament_id: str = "t",
    *,
    age: float = 100.0,
    busy: bool = True,
    drained: float | None = None,
    terminated: bool = False,
    reserved: Resources = ONE_CORE,
    publishing: bool = False,
    score: float | None = None,
) -> PodView:
    since = None if drained is None else NOW - drained
    activity = PodActivity(busy, publishing, score)
    return PodView(pod_id, tournament_id, reserved, NOW - age, since, terminated, lambda now: activity)


def act(
    capacity: Capacity, demands: list[Demand], pods: list[PodView] | None = None, limits: Limits = LIMITS
) -> list[Action]:
    return decide(NOW, capacity, demands, pods or [], limits)[0]


def started(actions: list[Action]) -> list[str]:
    return [action.tournament_id for action in actions if isinstance(action, StartPod)]


def retired(actions: list[Action]) -> list[str]:
    return [action.pod_id for action in actions if isinstance(action, RetirePod)]


def test_pods_are_started_until_the_free_cores_are_used() -> None:
    assert started(act(machine(cores=3), [wants()])) == ["t"] * 3


def test_idle_pods_keep_their_cores_reserved() -> None:
    assert started(act(machine(cores=2), [wants()], [pod("p0", busy=False), pod("p1", busy=False)])) == []


def test_a_pool_never_exceeds_its_maximum() -> None:
    assert started(act(machine(cores=8), [wants(maximum=2)])) == ["t"] * 2


def test_the_minimum_is_started_even_if_it_oversubscribes_cores() -> None:
    actions = act(machine(cores=1), [wants(minimum=3)])
    assert started(actions) == ["t"] * 3
    assert "oversubscribed" in actions[-1].reason


def test_the_minimum_is_not_started_if_memory_is_short() -> None:
    actions = act(machine(memory_gib=2), [wants(minimum=3)])
    assert started(actions) == ["t"] * 2
    assert [type(action) for action in actions[2:]] == [PoolShort]
    assert "memory" in actions[2].reason


def test_memory_that_other_programs_use_is_not_available_to_pods() -> None:
    actions = act(machine(available_gib=0.5), [wants()])
    assert started(actions) == []
    assert "0.5 GiB is free" in actions[0].reason


def test_memory_that_a_young_pod_has_reserved_but_not_used_is_not_available() -> None:
    capacity = machine(available_gib=1.5)
    assert started(act(capacity, [wants(minimum=2)], [pod("p0", age=1)])) == []
    assert started(act(capacity, [wants(minimum=2)], [pod("p0", age=100)])) == ["t"]


def test_gpus_are_never_oversubscribed() -> None:
    one_gpu = Resources(1.0, GIB, 1)
    assert started(act(machine(gpus=1), [wants(minimum=2, pod=one_gpu)])) == ["t"]


def grown_pool(remaining: int | None = None) -> list[PodView]:
    big = pod("a-p0", "a", score=9.0, reserved=Resources(6.0, GIB, 0))
    big = replace(big, units=6, remaining_units=remaining)
    return [big, pod("a-p1", "a", score=1.0), pod("a-p2", "a", score=2.0)]


def test_a_grown_pod_that_is_larger_than_the_share_stops_and_the_others_stay() -> None:
    actions = act(machine(8.0), [wants("a"), wants("b")], grown_pool())
    assert retired(actions) == ["a-p0"]
    (reason,) = [action.reason for action in actions if isinstance(action, RetirePod)]
    assert "it counts as 6 pods, and 4 of the pool were left for it" in reason


@pytest.mark.parametrize(("remaining", "stopped"), [(2, []), (3, ["a-p1"]), (4, ["a-p2", "a-p1"])])
def test_a_grown_pod_stays_that_is_being_replaced_by_one_within_the_share(remaining: int, stopped: list[str]) -> None:
    assert retired(act(machine(8.0), [wants("a"), wants("b")], grown_pool(remaining))) == stopped


def test_tournaments_share_capacity_evenly() -> None:
    assert share(machine(4).unoccupied, [wants("a"), wants("b")]) == {"a": 2, "b": 2}
    assert share(machine(3).unoccupied, [wants("a"), wants("b")]) == {"a": 2, "b": 1}
    assert share(machine(4).unoccupied, [wants("a", maximum=1), wants("b")]) == {"a": 1, "b": 3}


def test_capacity_that_is_too_small_for_a_large_pod_goes_to_a_small_one() -> None:
    big = wants("big", pod=Resources(3, GIB, 0))
    assert share(machine(5).unoccupied, [big, wants("small")]) == {"big": 1, "small": 2}


def test_a_second_tournament_gets_its_share_of_a_full_machine() -> None:
    pods = [pod("a0", "a", age=30), pod("a1", "a", age=20)]
    actions = act(machine(cores=2), [wants("a"), wants("b", minimum=0)], pods)
    assert retired(actions) == ["a1"]
    assert started(actions) == [], "its core is free only after the pod has stopped"


def test_idle_pods_are_retired_before_busy_ones_and_younger_before_older() -> None:
    pods = [pod("old", age=90), pod("idle", age=95, busy=False), pod("young", age=10)]
    assert retired(act(machine(), [wants(maximum=2)], pods)) == ["idle"]
    assert retired(act(machine(), [wants(maximum=1)], pods)) == ["young", "idle"]


def test_the_pods_with_the_lowest_scores_are_retired_first() -> None:
    pods = [
        pod("unknown", age=90),
        pod("best", age=10, score=9.0),
        pod("worst", age=80, score=-2.0),
        pod("idle", busy=False),
        pod("better", age=80, score=3.0),
    ]
    order = [set(retired(act(machine(), [wants(minimum=0, maximum=most)], pods))) for most in (4, 3, 2, 1)]
    assert order == [
        {"idle"},
        {"idle", "unknown"},
        {"idle", "unknown", "worst"},
        {"idle", "unknown", "worst", "better"},
    ]


@pytest.mark.parametrize(
    ("surplus", "chosen"),
    [
        (pod("p1", age=10, busy=False), "it was idle"),
        (pod("p1", age=10), "its agent had no score when this was decided"),
        (pod("p1", score=-2.0), "its agent had the lowest score, -2"),
    ],
)
def test_the_reason_of_a_retired_pod_says_why_this_pod_was_chosen(surplus: PodView, chosen: str) -> None:
    (action,) = act(machine(), [wants(maximum=1)], [pod("p0", score=9.0), surplus])
    assert action == RetirePod("p1", f"pool.maximum_pods is 1; chosen because {chosen}")


def test_if_scores_are_equal_the_reason_says_that_newer_pods_are_drained_first() -> None:
    old, young = pod("old", age=90, score=500.0), pod("young", age=10, score=500.0)
    (action,) = act(machine(), [wants(maximum=1)], [young, old])
    chosen = "its agent was among those with the lowest score, 500, and newer pods are drained first"
    assert action == RetirePod("young", f"pool.maximum_pods is 1; chosen because {chosen}")


def test_equal_scores_are_not_a_reason_if_no_pod_with_that_score_stays() -> None:
    pods = [pod("best", score=9.0), pod("p1", age=90, score=-2.0), pod("p2", age=10, score=-2.0)]
    actions = act(machine(), [wants(maximum=1)], pods)
    assert {action.reason for action in actions} == {
        "pool.maximum_pods is 1; chosen because its agent had the lowest score, -2"
    }


SHRINKING_SLOWLY = {"granted": PoolGrant(4, NOW - 99), "step_pods": 1}
STEPS = "in steps (pool.step_pods, pool.cooldown_duration)"


@pytest.mark.parametrize(
    ("cores", "demands", "limit"),
    [
        (4, [wants(maximum=1)], "pool.maximum_pods is 1"),
        (1, [wants()], "there is capacity for 1 pod only"),
        (0, [wants(minimum=0)], "there is capacity for 0 pods only"),
        (2, [wants(minimum=3)], "there is capacity for 2 pods only, and pool.minimum_pods is 3"),
        (2, [wants(), wants("u")], "the fair share among 2 tournaments is 1 pod"),
        (1, [wants(), wants("u", minimum=0)], "there is capacity for 1 pod only"),
        (1, [wants(**SHRINKING_SLOWLY)], f"there is capacity for 1 pod only, and the pool shrinks {STEPS}, to 3 pods"),
        (4, [wants(step_pods=1)], f"the pool grows {STEPS}, to 2 pods"),
        (4, [wants(maximum=1, evaluations_only=True)], "tournament t no longer trains, and 1 pod is enough for its"),
        (4, [], "tournament t has no work"),
    ],
)
def test_the_reason_of_a_retired_pod_names_the_limit_of_its_pool(
    cores: float, demands: list[Demand], limit: str
) -> None:
    pods = [pod(f"p{number}") for number in range(4)]
    reasons = [one.reason for one in act(machine(cores), demands, pods) if isinstance(one, RetirePod)]
    assert reasons
    assert all(reason.startswith(limit) for reason in reasons)


def test_a_publishing_pod_is_not_killed() -> None:
    assert act(machine(), [], [pod("p0", drained=90, terminated=True, publishing=True)]) == []
    assert isinstance(act(machine(), [], [pod("p0", drained=90, publishing=True)])[0], TerminatePod)


def test_a_pool_grows_and_shrinks_by_its_step() -> None:
    def granted(before: int | None, cores: float, **pace: Any) -> int:
        size = None if before is None else PoolGrant(before, NOW - 5)
        return grant(NOW, machine(cores=cores), [wants(minimum=1, granted=size, **pace)])["t"].pods

    assert granted(None, 8, step_pods=2) == 3, "one step beyond the minimum"
    assert granted(3, 8, step_pods=2) == 5
    assert granted(7, 8, step_pods=2) == 8
    assert granted(8, 2, step_pods=2) == 6
    assert granted(3, 2, step_pods=2) == 2
    assert granted(3, 8) == 8, "without a step: as many as fit"
    assert granted(8, 2) == 2
    assert granted(8, 8, maximum=4, step_pods=1) == 4, "the limits of the user take effect at once"
    assert grant(NOW, machine(8), [wants(minimum=6, step_pods=1, granted=PoolGrant(1, NOW))])["t"].pods == 6


def test_a_pool_keeps_its_size_during_the_cooldown() -> None:
    def after(seconds: float, cores: float) -> PoolGrant:
        demand = wants(cooldown_seconds=30.0, granted=PoolGrant(3, NOW - seconds))
        return grant(NOW, machine(cores=cores), [demand])["t"]

    assert after(29, cores=8) == PoolGrant(3, NOW - 29)
    assert after(29, cores=1) == PoolGrant(3, NOW - 29)
    assert after(30, cores=8) == PoolGrant(8, NOW)
    assert after(30, cores=1) == PoolGrant(1, NOW)
    assert after(99, cores=3) == PoolGrant(3, NOW - 99), "nothing changed"


def test_a_dead_pod_is_replaced_during_the_cooldown() -> None:
    demand = wants(cooldown_seconds=30.0, step_pods=1, granted=PoolGrant(3, NOW))
    actions, line = decide(NOW, machine(cores=8), [demand], [pod("p0"), pod("p1")], LIMITS)
    assert started(actions) == ["t"]
    assert line == "pods wanted: t 3 of 8; cores reserved: 2 of 8"


def test_pods_of_a_tournament_without_work_are_retired() -> None:
    assert retired(act(machine(), [], [pod("p0")])) == ["p0"]


def test_a_draining_pod_keeps_its_reservation_until_it_is_gone() -> None:
    assert started(act(machine(cores=1), [wants("b", minimum=0)], [pod("p0", drained=1)])) == []


def test_a_pod_that_does_not_stop_is_terminated_once_and_killed_later() -> None:
    assert act(machine(), [], [pod("p0", drained=19)]) == []
    assert isinstance(act(machine(), [], [pod("p0", drained=20)])[0], TerminatePod)
    assert act(machine(), [], [pod("p0", drained=30, terminated=True)]) == []
    assert isinstance(act(machine(), [], [pod("p0", drained=60, terminated=True)])[0], KillPod)


def test_no_pod_is_started_during_the_backoff() -> None:
    assert [type(action) for action in act(machine(), [wants(not_before=NOW + 1)])] == [PoolShort]
    assert started(act(machine(cores=1), [wants(not_before=NOW)])) == ["t"]


def test_a_mesh_that_starts_no_pods_still_retires_them() -> None:
    limits = Limits(start_pods=False, terminate_seconds=1, kill_seconds=2)
    actions = act(machine(), [wants("b")], [pod("p0", "a")], limits)
    assert retired(actions) == ["p0"]
    assert started(actions) == []


def test_no_action_is_taken_in_the_wanted_state() -> None:
    pods = [pod(f"p{number}", age=number) for number in range(4)]
    assert act(machine(cores=4), [wants()], pods) == []


def test_a_shrinking_machine_never_shrinks_a_pool_below_its_minimum() -> None:
    pods = [pod(f"p{number}", age=100 - number) for number in range(4)]
    assert retired(act(machine(cores=2), [wants()], pods)) == ["p2", "p3"]
    assert retired(act(machine(cores=1), [wants(minimum=3)], pods)) == ["p3"]


@pytest.mark.parametrize(("deaths", "seconds"), [(0, 0.0), (1, 0.5), (2, 1.0), (4, 4.0), (20, 30.0)])
def test_the_backoff_doubles_up_to_a_limit(deaths: int, seconds: float) -> None:
    assert backoff_seconds(deaths) == seconds


def test_a_crash_loop_ends_within_seconds() -> None:
    assert sum(backoff_seconds(deaths) for deaths in range(1, MAXIMUM_DEATHS)) < 10


def test_the_decision_is_summarized_in_one_line() -> None:
    assert (
        decide(NOW, machine(), [wants(maximum=1)], [pod("p0")], LIMITS)[1] == "pods wanted: t 1; cores reserved: 1 of 4"
    )


def cluster(
    *free_cores: float, agent_pod_cores: tuple[float, ...] = (), memory_gib: int = 16, closed: str = ""
) -> Capacity:
    """A cluster of nodes with `free_cores` left, on which agent pods have reserved `agent_pod_cores`."""
    free = tuple(Resources(cores, memory_gib * GIB, 0) for cores in free_cores)
    nodes = tuple(
        Resources(node.cores + cores, 2 * memory_gib * GIB, 0)
        for node, cores in zip(free, agent_pod_cores or (0.0,) * len(free), strict=True)
    )
    return Capacity(
        sum(nodes, Resources(0, 0, 0)),
        1 << 50,
        nodes=nodes,
        free=FreeResources(sum(free, Resources(0, 0, 0)), free, strict=True),
        closed=closed,
    )


def test_a_pod_has_to_fit_on_a_single_node() -> None:
    three = Resources(3.0, GIB, 0)
    assert share(cluster(2.0, 2.0).unoccupied, [wants(pod=three, minimum=0)]) == {"t": 0}
    assert share(cluster(4.0, 4.0).unoccupied, [wants(pod=three, minimum=0)]) == {"t": 2}
    assert act(cluster(2.0, 2.0), [wants(pod=three)]) == [PoolShort("t", "a pod needs 3 cores, 2 are free")]


def test_cores_and_memory_must_be_free_on_the_same_node() -> None:
    lopsided = (Resources(8.0, GIB, 0), Resources(1.0, 16 * GIB, 0))
    total = Resources(9.0, 17 * GIB, 0)
    capacity = Capacity(total, 1 << 50, nodes=lopsided, free=FreeResources(total, lopsided, strict=True))
    (short,) = act(capacity, [wants(pod=Resources(2.0, 4 * GIB, 0))])
    assert short == PoolShort(
        "t", "a pod needs 2 cores, 4.0 GiB and 0 GPUs on a single node, and no node has that much free"
    )


def test_each_started_pod_occupies_a_node() -> None:
    started = act(cluster(2.0, 3.0), [wants(pod=Resources(2.0, GIB, 0), minimum=0)])
    assert [type(action) for action in started] == [StartPod, StartPod]


def test_cores_of_a_cluster_are_never_oversubscribed() -> None:
    assert act(cluster(0.5), [wants(minimum=2)]) == [PoolShort("t", "a pod needs 1 cores, 0.5 are free")]


def test_a_quota_limits_pods_in_addition_to_the_nodes() -> None:
    nodes = (Resources(8.0, 16 * GIB, 0),) * 2
    total = Resources(3.0, 32 * GIB, 0)
    capacity = Capacity(total, 1 << 50, nodes=nodes, free=FreeResources(total, nodes, strict=True))
    actions = act(capacity, [wants(minimum=4, pod=Resources(2.0, GIB, 0))])
    assert [type(action) for action in actions] == [StartPod, PoolShort]
    assert actions[1] == PoolShort("t", "a pod needs 2 cores, 1 are free")


def test_free_resources_of_a_cluster_are_taken_as_reported() -> None:
    """One of two nodes with four cores has its cores reserved, and the reported free resources say which one."""
    capacity = cluster(4.0, 0.0, agent_pod_cores=(0.0, 4.0))
    pods = [pod("t-p0", reserved=Resources(4.0, GIB, 0))]
    started = act(capacity, [wants(pod=Resources(4.0, GIB, 0))], pods)
    assert started == [StartPod("t", "free cores: 4; a pod needs 4")]


def test_no_pod_is_started_while_the_cluster_is_closed_and_every_tournament_gets_the_reason() -> None:
    reason = "t-p0 waits: no node has a GPU"
    capacity = cluster(8.0, closed=reason)
    assert act(capacity, [wants("a"), wants("b")]) == [PoolShort("a", reason), PoolShort("b", reason)]
    surplus = act(capacity, [wants("a", maximum=0, minimum=0)], [pod("a-p0", "a")])
    assert [type(action) for action in surplus] == [RetirePod, PoolShort]
