"""An owner below its share reclaims pods of owners above theirs (Kueue: fair sharing, reclaimWithinCohort)."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.decisions.fair_share import Demand, OwnerShare, PoolGrant, dominant_share, grant, share
from orchestrator.decisions.pool_size import Limits, PodActivity, PodView, RetirePod, StartPod, decide
from orchestrator.decisions.resources import Capacity, Resources

GIB = 1 << 30
POD = Resources(1.0, GIB, 0)
LIMITS = Limits(start_pods=True, terminate_seconds=20.0, kill_seconds=60.0)
NOW, YIELD = 1000.0, 30.0


@st.composite
def tournaments(draw: st.DrawFn) -> list[Demand]:
    """Tournaments of two to four owners with weights; the first owner was alone at first."""
    weights = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4))
    owners = [OwnerShare(f"o{number}", weight) for number, weight in enumerate(weights)]
    made = [draw(st.sampled_from(owners)) for _ in range(draw(st.integers(0, 6)))]
    return [
        Demand(f"t{number}", POD, draw(st.integers(0, 2)), None, owner=owner, priority=draw(st.integers(-2, 2)))
        for number, owner in enumerate([*owners, *made])
    ]


def view(tournament: str, number: int, score: float | None = None, *, busy: bool = True) -> PodView:
    return PodView(
        f"{tournament}-p{number}",
        tournament,
        POD,
        float(number),
        None,
        False,
        lambda _: PodActivity(busy, False, score),
    )


def capacity_of(cores: int) -> Capacity:
    return Capacity(Resources(float(cores), 4096 * GIB, 0), 4096 * GIB)


def drained(cores: int, demands: list[Demand], held: dict[str, int]) -> Counter[str]:
    """Returns how many pods of each tournament are drained, once shares have been too large for the yield time."""
    above = {name: PoolGrant(count, 0.0, NOW - YIELD) for name, count in held.items()}
    given = [replace(each, granted=above.get(each.tournament_id)) for each in demands]
    pods = [view(name, number) for name, count in held.items() for number in range(count)]
    actions, _ = decide(NOW, capacity_of(cores), given, pods, LIMITS)
    return Counter(action.pod_id.rpartition("-")[0] for action in actions if isinstance(action, RetirePod))


@given(st.integers(1, 24), tournaments())
@settings(max_examples=80, deadline=None)
def test_only_owners_above_their_share_lose_pods_and_none_falls_below_it(cores: int, demands: list[Demand]) -> None:
    first = [each for each in demands if each.owner == demands[0].owner]
    held = dict(share(capacity_of(cores).unoccupied, first))
    wanted = share(capacity_of(cores).unoccupied, demands)
    lost = drained(cores, demands, held)
    assert all(held[name] - count == wanted[name] for name, count in lost.items())
    assert all(wanted[name] >= held[name] for name in held.keys() - lost.keys())


@given(st.integers(1, 24), tournaments())
@settings(max_examples=80, deadline=None)
def test_no_owner_gains_a_pod_by_which_its_share_exceeds_that_of_the_owner_who_loses_one(
    cores: int, demands: list[Demand]
) -> None:
    # LessThanOrEqualToFinalShare: the same comparison, so that no pod is taken back and forth.
    capacity = capacity_of(cores)
    first = [each for each in demands if each.owner == demands[0].owner]
    held, wanted = share(capacity.unoccupied, first), share(capacity.unoccupied, demands)
    pods = Counter[str]()
    for each in demands:
        pods[each.owner.owner] += wanted[each.tournament_id]
    losers = {each.owner for each in first if held[each.tournament_id] > wanted[each.tournament_id]}
    for loser in losers:
        for gainer in {each.owner for each in demands} - {loser}:
            # Its last pod was given when it had the lowest share; each owner gets one pod whatever the shares are.
            before = max(0, pods[gainer.owner] - 1)
            of_gainer = dominant_share(Resources(before, 0, 0), capacity.total) / gainer.weight
            of_loser = dominant_share(Resources(pods[loser.owner], 0, 0), capacity.total) / loser.weight
            assert pods[gainer.owner] <= 1 or of_gainer <= of_loser + 1e-9


@given(st.integers(1, 24), tournaments())
@settings(max_examples=80, deadline=None)
def test_the_lowest_priority_of_the_losing_owner_is_drained_first(cores: int, demands: list[Demand]) -> None:
    first = [each for each in demands if each.owner == demands[0].owner]
    held = dict(share(capacity_of(cores).unoccupied, first))
    lost = drained(cores, demands, held)
    for high in first:
        for low in first:
            if high.priority > low.priority and lost[high.tournament_id]:
                # What is left of the lower priority is within its minimum.
                assert held[low.tournament_id] - lost[low.tournament_id] <= low.minimum_pods


def test_the_youngest_pod_is_drained_first_after_idle_ones_and_those_with_lower_scores() -> None:
    alice, bob = OwnerShare("alice"), OwnerShare("bob")
    held = PoolGrant(6, 0.0, NOW - YIELD)
    demands = [Demand("a", POD, 0, None, owner=alice, granted=held), Demand("b", POD, 0, None, owner=bob)]
    pods = [view("a", 0, busy=False), view("a", 1, 1.0), view("a", 2, 5.0), view("a", 3, 5.0), view("a", 4, 5.0)]
    pods.append(view("a", 5, 5.0))
    actions, _ = decide(NOW, capacity_of(6), demands, pods, LIMITS)
    retired = {action.pod_id: action.reason for action in actions if isinstance(action, RetirePod)}
    assert retired.keys() == {"a-p0", "a-p1", "a-p5"}
    assert "newer pods are drained first" in retired["a-p5"]
    assert all("the fair share of alice (weight 1) among 2 owners is 3 pods" in reason for reason in retired.values())
    # The cores are free only when these pods have published and exited.
    assert not [action for action in actions if isinstance(action, StartPod)]


def test_pods_that_no_other_owner_can_use_are_kept() -> None:
    large = replace(POD, gpus=1)
    held = PoolGrant(6, 0.0, NOW - YIELD)
    alice = Demand("a", POD, 0, None, owner=OwnerShare("alice"), granted=held)
    bob = Demand("b", large, 0, None, owner=OwnerShare("bob"))
    pods = [view("a", number) for number in range(6)]
    actions, _ = decide(NOW, capacity_of(6), [alice, bob], pods, LIMITS)
    assert not [action for action in actions if isinstance(action, RetirePod)]


def test_the_priority_of_one_owner_does_not_drain_pods_that_another_has_within_its_share() -> None:
    alice, bob = OwnerShare("alice"), OwnerShare("bob")
    demands = [
        Demand("a", POD, 0, None, owner=alice, priority=-5, granted=PoolGrant(3, 0.0, NOW - YIELD)),
        Demand("b", POD, 0, None, owner=bob, priority=100, granted=PoolGrant(3, 0.0)),
    ]
    assert {name: each.pods for name, each in grant(NOW, capacity_of(6), demands).items()} == {"a": 3, "b": 3}
