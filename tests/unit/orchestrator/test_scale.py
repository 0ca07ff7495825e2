import pytest

from orchestrator.scale import (
    MAXIMUM_DEATHS,
    Action,
    Capacity,
    Demand,
    Kill,
    Limits,
    PodView,
    Resources,
    Retire,
    Short,
    Start,
    Terminate,
    backoff_seconds,
    decide,
    share,
)

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
) -> Demand:
    return Demand(tournament_id, pod, minimum, maximum, not_before)


def pod(
    pod_id: str,
    tournament_id: str = "t",
    *,
    age: float = 100.0,
    busy: bool = True,
    drained: float | None = None,
    terminated: bool = False,
    reserved: Resources = ONE_CORE,
) -> PodView:
    return PodView(
        pod_id, tournament_id, reserved, NOW - age, busy, None if drained is None else NOW - drained, terminated
    )


def act(
    capacity: Capacity, demands: list[Demand], pods: list[PodView] | None = None, limits: Limits = LIMITS
) -> list[Action]:
    return decide(NOW, capacity, demands, pods or [], limits)[0]


def started(actions: list[Action]) -> list[str]:
    return [action.tournament_id for action in actions if isinstance(action, Start)]


def retired(actions: list[Action]) -> list[str]:
    return [action.pod_id for action in actions if isinstance(action, Retire)]


def test_the_free_cores_are_filled() -> None:
    assert started(act(machine(cores=3), [wants()])) == ["t"] * 3


def test_cores_count_as_reserved_however_idle_the_pods_are() -> None:
    assert started(act(machine(cores=2), [wants()], [pod("p0", busy=False), pod("p1", busy=False)])) == []


def test_the_maximum_is_never_passed() -> None:
    assert started(act(machine(cores=8), [wants(maximum=2)])) == ["t"] * 2


def test_the_minimum_is_granted_although_cores_are_short() -> None:
    actions = act(machine(cores=1), [wants(minimum=3)])
    assert started(actions) == ["t"] * 3
    assert "oversubscribed" in actions[-1].reason


def test_the_minimum_is_not_granted_when_memory_is_short() -> None:
    actions = act(machine(memory_gib=2), [wants(minimum=3)])
    assert started(actions) == ["t"] * 2
    assert [type(action) for action in actions[2:]] == [Short]
    assert "memory" in actions[2].reason


def test_memory_that_others_use_is_not_given_away() -> None:
    actions = act(machine(available_gib=0.5), [wants()])
    assert started(actions) == []
    assert "0.5 GiB is free" in actions[0].reason


def test_memory_that_a_young_pod_has_reserved_but_not_touched_is_not_given_twice() -> None:
    capacity = machine(available_gib=1.5)
    assert started(act(capacity, [wants(minimum=2)], [pod("p0", age=1)])) == []
    assert started(act(capacity, [wants(minimum=2)], [pod("p0", age=100)])) == ["t"]


def test_gpus_are_never_oversubscribed() -> None:
    one_gpu = Resources(1.0, GIB, 1)
    assert started(act(machine(gpus=1), [wants(minimum=2, pod=one_gpu)])) == ["t"]


def test_tournaments_share_fairly() -> None:
    assert share(Resources(4, 16 * GIB, 0), [wants("a"), wants("b")]) == {"a": 2, "b": 2}
    assert share(Resources(3, 16 * GIB, 0), [wants("a"), wants("b")]) == {"a": 2, "b": 1}
    assert share(Resources(4, 16 * GIB, 0), [wants("a", maximum=1), wants("b")]) == {"a": 1, "b": 3}


def test_what_a_big_pod_cannot_use_goes_to_a_small_one() -> None:
    big = wants("big", pod=Resources(3, GIB, 0))
    assert share(Resources(5, 16 * GIB, 0), [big, wants("small")]) == {"big": 1, "small": 2}


def test_a_second_tournament_gets_its_share_of_a_full_machine() -> None:
    pods = [pod("a0", "a", age=30), pod("a1", "a", age=20)]
    actions = act(machine(cores=2), [wants("a"), wants("b", minimum=0)], pods)
    assert retired(actions) == ["a1"]
    assert started(actions) == [], "its core is free only when the pod has gone"


def test_idle_pods_are_retired_before_busy_ones_and_young_before_old() -> None:
    pods = [pod("old", age=90), pod("idle", age=95, busy=False), pod("young", age=10)]
    assert retired(act(machine(), [wants(maximum=2)], pods)) == ["idle"]
    assert retired(act(machine(), [wants(maximum=1)], pods)) == ["young", "idle"]


def test_pods_without_a_tournament_that_has_work_are_retired() -> None:
    assert retired(act(machine(), [], [pod("p0")])) == ["p0"]


def test_a_pod_that_is_told_to_go_holds_its_reservation_until_it_is_gone() -> None:
    assert started(act(machine(cores=1), [wants("b", minimum=0)], [pod("p0", drained=1)])) == []


def test_a_pod_that_does_not_go_is_terminated_once_and_killed_later() -> None:
    assert act(machine(), [], [pod("p0", drained=19)]) == []
    assert isinstance(act(machine(), [], [pod("p0", drained=20)])[0], Terminate)
    assert act(machine(), [], [pod("p0", drained=30, terminated=True)]) == []
    assert isinstance(act(machine(), [], [pod("p0", drained=60, terminated=True)])[0], Kill)


def test_nothing_is_started_before_the_back_off_is_over() -> None:
    assert [type(action) for action in act(machine(), [wants(not_before=NOW + 1)])] == [Short]
    assert started(act(machine(cores=1), [wants(not_before=NOW)])) == ["t"]


def test_a_query_only_mesh_retires_but_never_starts() -> None:
    limits = Limits(start_pods=False, terminate_seconds=1, kill_seconds=2)
    actions = act(machine(), [wants("b")], [pod("p0", "a")], limits)
    assert retired(actions) == ["p0"]
    assert started(actions) == []


def test_nothing_changes_once_everything_is_as_it_should_be() -> None:
    pods = [pod(f"p{number}", age=number) for number in range(4)]
    assert act(machine(cores=4), [wants()], pods) == []


def test_a_shrinking_machine_shrinks_the_pool_to_the_minimum_at_most() -> None:
    pods = [pod(f"p{number}", age=100 - number) for number in range(4)]
    assert retired(act(machine(cores=2), [wants()], pods)) == ["p2", "p3"]
    assert retired(act(machine(cores=1), [wants(minimum=3)], pods)) == ["p3"]


@pytest.mark.parametrize(("deaths", "seconds"), [(0, 0.0), (1, 0.5), (2, 1.0), (4, 4.0), (20, 30.0)])
def test_the_back_off_doubles_up_to_a_limit(deaths: int, seconds: float) -> None:
    assert backoff_seconds(deaths) == seconds


def test_a_crash_loop_ends_within_seconds() -> None:
    assert sum(backoff_seconds(deaths) for deaths in range(1, MAXIMUM_DEATHS)) < 10


def test_the_whole_decision_comes_with_a_line() -> None:
    assert (
        decide(NOW, machine(), [wants(maximum=1)], [pod("p0")], LIMITS)[1] == "pods wanted: t 1; cores reserved: 1 of 4"
    )
