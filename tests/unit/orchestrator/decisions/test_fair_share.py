"""Owners share pods by weight: no owner starves, nothing is given twice, and nothing moves without a reason."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.decisions.fair_share import Demand, OwnerShare, PoolGrant, grant, share
from orchestrator.decisions.pool_size import (
    Action,
    Limits,
    PodActivity,
    PodView,
    PoolShort,
    RetirePod,
    StartPod,
    decide,
)
from orchestrator.decisions.resources import Capacity, FreeResources, Resources

GIB = 1 << 30
ONE_CORE = Resources(1.0, GIB, 0)
NOW = 1000.0
LIMITS = Limits(start_pods=True, terminate_seconds=20.0, kill_seconds=60.0)


def machine(cores: int, gpus: int = 0) -> Capacity:
    return Capacity(Resources(float(cores), 4096 * GIB, gpus), 4096 * GIB)


def wants(
    name: str, owner: OwnerShare, minimum: int = 1, maximum: int | None = None, priority: int = 0, gpus: int = 0
) -> Demand:
    return Demand(name, replace(ONE_CORE, gpus=gpus), minimum, maximum, owner=owner, priority=priority)


def by_owner(counts: dict[str, int], demands: list[Demand]) -> Counter[str]:
    found: Counter[str] = Counter()
    for demand in demands:
        found[demand.owner.owner] += counts[demand.tournament_id]
    return found


ALICE, BOB = OwnerShare("alice"), OwnerShare("bob")


@st.composite
def demand_lists(draw: st.DrawFn) -> list[Demand]:
    owners = [
        OwnerShare(
            f"o{number}",
            draw(st.sampled_from([0.5, 1.0, 2.0, 3.0])),
            draw(st.none() | st.integers(1, 12)),
            draw(st.none() | st.integers(1, 6)),
        )
        for number in range(draw(st.integers(2, 4)))
    ]
    return [
        wants(
            f"t{number}",
            draw(st.sampled_from(owners)),
            minimum := draw(st.integers(0, 3)),
            draw(st.none() | st.integers(max(minimum, 1), 9)),
            draw(st.integers(-2, 2)),
            draw(st.integers(0, 1)),
        )
        for number in range(draw(st.integers(1, 9)))
    ]


CAPACITIES = st.builds(machine, st.integers(0, 24), st.integers(0, 8))


@given(CAPACITIES, demand_lists())
@settings(max_examples=60, deadline=None)
def test_no_more_is_given_than_there_is_and_no_owner_exceeds_its_quota(
    capacity: Capacity, demands: list[Demand]
) -> None:
    counts = dict(share(capacity.unoccupied, demands))
    pods = by_owner(counts, demands)
    gpus = sum(counts[each.tournament_id] * each.pod.gpus for each in demands)
    owners = {each.owner for each in demands}
    first_pods = len(owners) if len(owners) > 1 else sum(each.minimum_pods for each in demands)
    assert gpus <= capacity.total.gpus
    assert sum(pods.values()) <= capacity.total.cores + first_pods
    for demand in demands:
        own = [each for each in demands if each.owner == demand.owner]
        assert counts[demand.tournament_id] <= (1000 if demand.maximum_pods is None else demand.maximum_pods)
        assert pods[demand.owner.owner] <= (demand.owner.maximum_pods or 1000)
        own_gpus = sum(counts[each.tournament_id] * each.pod.gpus for each in own)
        assert own_gpus <= (demand.owner.maximum_gpus or 1000)


@given(st.integers(1, 40), st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.5]), min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_owners_that_want_more_get_pods_by_weight_within_one_pod(cores: int, weights: list[float]) -> None:
    owners = [OwnerShare(f"o{number}", weight) for number, weight in enumerate(weights)]
    demands = [wants(f"{owner.owner}-{number}", owner, 0) for owner in owners for number in range(2)]
    pods = by_owner(dict(share(machine(cores).unoccupied, demands)), demands)
    assert sum(pods.values()) == cores
    for more in owners:
        for less in owners:
            assert (pods[more.owner] - 1) / more.weight <= pods[less.owner] / less.weight + 1e-9


@given(st.integers(1, 40), st.integers(2, 6), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_no_owner_starves_however_many_tournaments_another_one_has(cores: int, owners: int, many: int) -> None:
    demands = [wants(f"a{number}", OwnerShare("o0"), 3) for number in range(many)]
    demands += [wants(f"b{number}", OwnerShare(f"o{number}"), 1, 1) for number in range(1, owners)]
    pods = by_owner(dict(share(machine(cores).unoccupied, demands)), demands)
    assert all(pods[f"o{number}"] == 1 for number in range(1, owners))


@given(CAPACITIES, demand_lists(), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_pool_sizes_stay_constant_while_capacity_and_demands_do(
    capacity: Capacity, demands: list[Demand], seconds: int
) -> None:
    now, counts = NOW, {}
    for moment in range(80):
        granted = grant(now, capacity, demands)
        if moment == 60:
            counts = {name: each.pods for name, each in granted.items()}
        now += 1 + seconds
        demands = [replace(each, granted=granted[each.tournament_id]) for each in demands]
    assert {name: each.pods for name, each in granted.items()} == counts == dict(share(capacity.unoccupied, demands))


def test_an_owner_of_twice_the_weight_gets_twice_the_pods() -> None:
    heavy = OwnerShare("heavy", 2.0)
    counts = share(machine(9).unoccupied, [wants("a", ALICE), wants("h1", heavy), wants("h2", heavy)])
    assert counts == {"a": 3, "h1": 3, "h2": 3}


def test_the_tournament_of_the_highest_priority_gets_what_the_minimums_of_the_others_leave() -> None:
    demands = [wants("low", ALICE, 1, priority=-1), wants("high", ALICE, 1, 5, priority=5), wants("normal", ALICE, 1)]
    assert share(machine(8).unoccupied, demands) == {"low": 1, "high": 5, "normal": 2}


def test_priority_does_not_take_pods_of_another_owner() -> None:
    demands = [wants("a", ALICE, priority=1000), wants("b", BOB)]
    assert share(machine(8).unoccupied, demands) == {"a": 4, "b": 4}


def test_capacity_that_an_owner_does_not_use_goes_to_the_others() -> None:
    assert share(machine(8).unoccupied, [wants("a", ALICE), wants("b", BOB, 1, 2)]) == {"a": 6, "b": 2}


def test_shares_of_different_resources_are_compared_by_the_largest() -> None:
    # A pod of Alice takes 1 of 4 GPUs, a pod of Bob 1 of 10 cores.
    demands = [wants("a", ALICE, 0, gpus=1), wants("b", BOB, 0)]
    assert share(machine(10, gpus=4).unoccupied, demands) == {"a": 3, "b": 7}


# --- drains ------------------------------------------------------------------------------------------------------


class Cluster:
    """Pods that start at once and stop one second after they were asked to."""

    def __init__(self, cores: int) -> None:
        self.capacity, self.now = machine(cores), NOW
        self.pods: list[PodView] = []
        self.granted: dict[str, PoolGrant] = {}
        self.log: list[Action] = []

    def run(self, demands: list[Demand], seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.pods = [pod for pod in self.pods if pod.drained_since is None]
            given = [replace(each, granted=self.granted.get(each.tournament_id)) for each in demands]
            actions, _ = decide(self.now, self.capacity, given, self.pods, LIMITS)
            self.granted = dict(grant(self.now, self.capacity, given))
            retired = {action.pod_id for action in actions if isinstance(action, RetirePod)}
            self.pods = [replace(pod, drained_since=self.now) if pod.pod_id in retired else pod for pod in self.pods]
            self.pods += [
                self._new(number, action, demands)
                for number, action in enumerate(actions)
                if isinstance(action, StartPod)
            ]
            self.log += actions

    def _new(self, number: int, action: StartPod, demands: list[Demand]) -> PodView:
        reserved = next(each.pod for each in demands if each.tournament_id == action.tournament_id)
        pod_id = f"{action.tournament_id}-{self.now:g}-{number}"
        return PodView(
            pod_id, action.tournament_id, reserved, self.now, None, False, lambda now: PodActivity(busy=True)
        )

    @property
    def counts(self) -> Counter[str]:
        return Counter(pod.tournament_id for pod in self.pods if pod.drained_since is None)

    def events(self, kind: type[Action]) -> list[Action]:
        return [action for action in self.log if isinstance(action, kind)]


def test_an_owner_above_its_share_gives_pods_back_only_after_the_yield_time_and_by_draining() -> None:
    cluster, a, b = Cluster(8), wants("a", ALICE, 0), wants("b", BOB, 0)
    cluster.run([a], 3)
    assert cluster.counts == {"a": 8}
    cluster.run([a, b], 29)
    assert cluster.counts == {"a": 8}
    cluster.run([a, b], 5)
    assert cluster.counts == {"a": 4, "b": 4}
    assert not [action for action in cluster.log if not isinstance(action, StartPod | RetirePod)]
    assert all(
        "the fair share of alice (weight 1) among 2 owners is 4 pods" in action.reason
        for action in cluster.events(RetirePod)
    )


def test_the_lowest_priority_is_drained_first() -> None:
    cluster = Cluster(8)
    low, high, b = wants("low", ALICE, 1, 4, -5), wants("high", ALICE, 1, 4), wants("b", BOB, 0)
    cluster.run([low, high], 3)
    cluster.run([low, high, b], 40)
    assert cluster.counts == {"low": 1, "high": 3, "b": 4}


def test_a_share_that_changes_all_the_time_drains_no_pod() -> None:
    cluster, a, b = Cluster(8), wants("a", ALICE, 0), wants("b", BOB, 1, 1)
    cluster.run([a], 3)
    for _ in range(20):
        cluster.run([a, b], 20)
        cluster.run([a], 1)
    assert not [action for action in cluster.events(RetirePod) if "no work" not in action.reason]


def test_steps_and_cooldown_of_a_specification_do_not_keep_pods_from_other_owners() -> None:
    cluster = Cluster(8)
    a = replace(wants("a", ALICE, 0), step_pods=8, cooldown_seconds=1e6)
    cluster.run([a], 3)
    assert cluster.counts == {"a": 8}
    cluster.run([a, wants("b", BOB, 0)], 40)
    assert cluster.counts == {"a": 4, "b": 4}


def test_freed_capacity_goes_to_the_owner_below_its_share() -> None:
    cluster, a, b = Cluster(8), wants("a", ALICE, 0), wants("b", BOB, 0)
    cluster.run([a], 3)
    cluster.pods = cluster.pods[2:]
    cluster.run([a, b], 1)
    assert cluster.counts == {"a": 6, "b": 2}


@pytest.mark.long
def test_a_thousand_tournaments_of_one_person_do_not_take_the_cluster() -> None:
    cluster = Cluster(16)
    crowd = [wants(f"a{number}", ALICE, 5) for number in range(1000)]
    cluster.run(crowd, 2)
    started = sum(cluster.counts.values())
    cluster.run([*crowd, wants("b", BOB, 1)], 40)
    assert started > 16, "alone, the minimums oversubscribe cores"
    assert cluster.counts["b"] == 8
    assert sum(cluster.counts.values()) == 16


def test_pods_that_are_draining_count_for_the_quota() -> None:
    cluster, owner = Cluster(16), OwnerShare("alice", maximum_pods=4)
    first, second = wants("a", owner, 0), wants("b", owner, 0)
    cluster.run([first], 2)
    assert cluster.counts == {"a": 4}
    for _ in range(5):
        cluster.run([first, second], 1)
        assert len(cluster.pods) <= 4
    assert cluster.counts == {"a": 2, "b": 2}


def test_a_minimum_beyond_the_quota_is_reported_with_the_setting() -> None:
    demand = wants("a", OwnerShare("alice", maximum_pods=2), 5)
    actions, _ = decide(NOW, machine(16), [demand], [], LIMITS)
    assert sum(isinstance(action, StartPod) for action in actions) == 2
    assert [action.reason for action in actions if isinstance(action, PoolShort)] == ["quota.pods of alice is 2"]


def test_sharing_zero_nodes_needs_no_node() -> None:
    assert share(FreeResources(Resources(0, 0, 0), ()), [wants("a", ALICE), wants("b", BOB)]) == {"a": 0, "b": 0}
