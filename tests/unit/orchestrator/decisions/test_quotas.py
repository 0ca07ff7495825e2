import pytest

from orchestrator.config import Config
from orchestrator.decisions.fair_share import OwnerShare
from orchestrator.decisions.quotas import (
    NO_QUOTAS,
    Quotas,
    check_inspections,
    check_pool,
    check_priority,
    check_tournaments,
    check_update,
    share_of,
)
from podrace.access.ownership import Ownership
from podrace.config import assign, build
from podrace.errors import QUOTA_EXCEEDED, InvalidArgument, ResourceExhausted
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

ALICE, CAROL = Ownership("alice"), Ownership("carol", "vision")


def quotas(**settings: object) -> Quotas:
    tree: dict[str, object] = {}
    for key, value in settings.items():
        assign(tree, f"quota.{key.replace('__', '.')}", value)
    return build(Config, tree, source="test").quota


def spec(minimum: int = 1, gpus: int = 0, priority: int = 0) -> TournamentSpec:
    found = TournamentSpec()
    found.pool.minimum_pods, found.pod.gpus, found.pool.priority = minimum, gpus, priority
    return found


def test_an_owner_gets_as_many_tournaments_as_the_operator_allows() -> None:
    limits = quotas(tournaments=2)
    check_tournaments(limits, ALICE, 1)
    with pytest.raises(
        ResourceExhausted, match=r"alice has 2 tournaments .* the limit of quota.tournaments is 2"
    ) as error:
        check_tournaments(limits, ALICE, 2)
    assert error.value.reason == "ERROR_REASON_QUOTA_EXCEEDED"
    assert error.value.metadata == {"setting": "quota.tournaments", "limit": "2", "owner": "alice"}
    assert error.value.retry_seconds == 60.0


def test_limits_of_single_owners_replace_those_of_all() -> None:
    limits = quotas(tournaments=2, owners__alice__tournaments=5, **{"owners__vision/carol__tournaments": 0})
    check_tournaments(limits, ALICE, 4)
    check_tournaments(limits, CAROL, 400)
    with pytest.raises(ResourceExhausted, match=r"quota.owners.alice.tournaments is 5"):
        check_tournaments(limits, ALICE, 5)
    with pytest.raises(ResourceExhausted, match=r"quota.tournaments is 2"):
        check_tournaments(limits, Ownership("alice", "vision"), 2)


def test_a_pool_that_its_owner_can_never_have_is_refused() -> None:
    limits = quotas(pods=4, gpus=6)
    check_pool(limits, ALICE, spec(minimum=3, gpus=2))
    with pytest.raises(ResourceExhausted, match=r"need 5 pods; the limit of quota.pods is 4") as error:
        check_pool(limits, ALICE, spec(minimum=5))
    assert error.value.retry_seconds is None
    with pytest.raises(ResourceExhausted, match=r"need 8 gpus; the limit of quota.gpus is 6"):
        check_pool(limits, ALICE, spec(minimum=0, gpus=8))


def test_the_checks_of_one_owner_and_of_all_are_limited() -> None:
    limits = quotas(inspections=2, all_inspections=4, owners__alice__inspections=3)
    check_inspections(limits, CAROL, 1, 3)
    check_inspections(limits, ALICE, 2, 3)
    for owner, own, everyone, setting, limit in (
        (CAROL, 2, 2, "quota.inspections", "2"),
        (ALICE, 3, 3, "quota.owners.alice.inspections", "3"),
        (CAROL, 0, 4, "quota.all_inspections", "4"),
    ):
        with pytest.raises(ResourceExhausted, match=f"the limit of {setting} is {limit}") as error:
            check_inspections(limits, owner, own, everyone)
        assert error.value.reason == QUOTA_EXCEEDED
        assert error.value.metadata["setting"] == setting
        assert error.value.retry_seconds
    check_inspections(NO_QUOTAS, CAROL, 1000, 1000)


def test_the_priority_is_limited_by_the_role_and_by_the_owner() -> None:
    limits = quotas(owners__alice__priority=7)
    check_priority(limits, CAROL, spec(priority=-1000), operator=False)
    check_priority(limits, ALICE, spec(priority=7), operator=False)
    check_priority(limits, CAROL, spec(priority=100), operator=True)
    with pytest.raises(InvalidArgument, match=r"pool.priority = 1: expected at most 0.* quota.priority$") as error:
        check_priority(limits, CAROL, spec(priority=1), operator=False)
    assert [each.field for each in error.value.violations] == ["pool.priority"]
    with pytest.raises(InvalidArgument, match=r"at most 7, .* quota.owners.alice.priority"):
        check_priority(limits, ALICE, spec(priority=8), operator=False)
    with pytest.raises(InvalidArgument, match=r"quota.operator_priority"):
        check_priority(limits, ALICE, spec(priority=101), operator=True)


def test_an_update_may_keep_or_lower_what_exceeds_the_limits_and_not_raise_it() -> None:
    limits, before = quotas(pods=4), spec(priority=50, minimum=6)
    for after in (before, spec(priority=49, minimum=6), spec(priority=50, minimum=5)):
        check_update(limits, ALICE, before, after, operator=False)
    check_update(limits, ALICE, before, spec(priority=51, minimum=6), operator=True)
    with pytest.raises(InvalidArgument, match=r"pool.priority = 51: expected at most 0"):
        check_update(limits, ALICE, before, spec(priority=51, minimum=6), operator=False)
    with pytest.raises(ResourceExhausted, match=r"need 7 pods; the limit of quota.pods is 4"):
        check_update(limits, ALICE, before, spec(priority=50, minimum=7), operator=True)


def test_shares_follow_the_settings() -> None:
    limits = quotas(pods=9, yield_seconds=5, owners__alice__weight=3, owners__alice__gpus=2)
    assert share_of(limits, ALICE) == OwnerShare("alice", 3.0, 9, 2, 5.0)
    assert share_of(limits, CAROL) == OwnerShare("vision/carol", 1.0, 9, None, 5.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tournaments", -1),
        ("priority", 1001),
        ("yield_seconds", -0.5),
        ("owners__alice__weight", 0),
        ("owners__alice__pods", -1),
        ("owners__alice__priority", -1001),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_key(key: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=f"quota.{key.replace('__', '.')} = "):
        quotas(**{key: value})


def test_an_unknown_limit_of_an_owner_is_refused_with_its_key() -> None:
    with pytest.raises(InvalidArgument, match=r"test: quota.owners.alice.pod: unknown key 'pod'"):
        quotas(owners__alice__pod=3)
