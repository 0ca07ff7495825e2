import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podrace.access import call_rates
from podrace.access.call_rates import BURST_SECONDS, CallBucket, CallRates, take
from podrace.access.principal import Principal, roles_with_included
from podrace.access.service_access import AccessConfig
from podrace.access.v1 import access_pb2
from podrace.config import build
from podrace.errors import InvalidArgument, ResourceExhausted


def person(name: str = "alice", role: int = access_pb2.ROLE_USER, namespace: str = "") -> Principal:
    return Principal(name, roles_with_included({role}), namespace, via="token")


class StoppedClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def allowed_calls(rates: CallRates, principal: Principal, attempts: int) -> int:
    count = 0
    for _ in range(attempts):
        try:
            rates.check(principal)
        except ResourceExhausted:
            continue
        count += 1
    return count


@given(st.floats(0.01, 1000.0), st.lists(st.floats(0.0, 10.0), min_size=1, max_size=100))
@settings(max_examples=100, deadline=None)
def test_no_more_calls_are_allowed_than_a_burst_and_the_rate(rate: float, pauses: list[float]) -> None:
    now, bucket, count = 0.0, None, 0
    for pause in pauses:
        now += pause
        bucket, wait = take(now, bucket, rate)
        count += not wait
    assert count <= max(1.0, rate * BURST_SECONDS) + rate * sum(pauses) + 1e-6


@given(st.floats(0.01, 1000.0))
@settings(max_examples=100, deadline=None)
def test_a_refused_call_is_allowed_after_the_stated_time(rate: float) -> None:
    bucket, wait = take(0.0, CallBucket(0.25, 0.0), rate)
    assert wait > 0
    assert take(wait + 1e-9 * max(1.0, wait), bucket, rate)[1] < 1e-6 * max(1.0, wait)


def test_each_owner_has_calls_of_its_own() -> None:
    clock = StoppedClock()
    rates = CallRates(2.0, {}, clock)
    assert allowed_calls(rates, person("alice"), 50) == 10
    assert allowed_calls(rates, person("bob"), 50) == 10
    assert allowed_calls(rates, person("alice", namespace="vision"), 50) == 10
    clock.now += 2.0
    assert allowed_calls(rates, person("alice"), 50) == 4


def test_viewers_are_limited_and_operators_services_and_pods_are_not() -> None:
    rates = CallRates(1.0, {}, StoppedClock())
    assert allowed_calls(rates, person("eve", access_pb2.ROLE_VIEWER), 100) == 5
    for role in (access_pb2.ROLE_OPERATOR, access_pb2.ROLE_ORCHESTRATOR, access_pb2.ROLE_POD_LEADER):
        assert allowed_calls(rates, person("other", role), 100) == 100


def test_an_owner_can_have_another_limit_and_the_refusal_names_the_setting() -> None:
    rates = CallRates(1.0, {"vision/dashboard": 10.0, "free": 0.0}, StoppedClock())
    dashboard = person("dashboard", namespace="vision")
    assert allowed_calls(rates, person("free"), 1000) == 1000
    assert allowed_calls(rates, dashboard, 1000) == 50
    with pytest.raises(ResourceExhausted) as refused:
        rates.check(dashboard)
    assert refused.value.reason == "ERROR_REASON_QUOTA_EXCEEDED"
    assert refused.value.metadata == {
        "setting": "access.owner_calls_per_second.vision/dashboard",
        "limit": "10",
        "owner": "vision/dashboard",
    }
    assert refused.value.retry_seconds == pytest.approx(0.1)


def test_the_callers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_rates, "BUCKETS", 3)
    rates = CallRates(1.0, {}, StoppedClock())
    for number in range(10):
        assert allowed_calls(rates, person(f"p{number}"), 10) == 5
        assert allowed_calls(rates, person("p0"), 10) == 0 or number > 3
    assert len(rates._buckets) <= 3


def test_limits_are_read_from_the_configuration() -> None:
    given = {"calls_per_second": 5, "owner_calls_per_second": {"a@example.org": "7"}}
    config = build(AccessConfig, given, source="test")
    assert config.owner_calls_per_second == {"a@example.org": 7.0}
    for bad in ({"calls_per_second": -1}, {"owner_calls_per_second": {"a": math.nan}}):
        with pytest.raises(InvalidArgument, match="calls_per_second"):
            build(AccessConfig, bad, source="test")
