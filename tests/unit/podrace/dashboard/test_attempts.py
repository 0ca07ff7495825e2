"""Attempts to sign in that fail are limited: of one address, and of all together."""

import pytest

from podrace.dashboard.entrance.attempts import AttemptLimit, SignInAttempts, network_of
from podrace.errors import ResourceExhausted


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def attempts(clock: Clock, each: float = 3.0, together: float = 100.0) -> SignInAttempts:
    return SignInAttempts(clock, AttemptLimit(each, 0.5), AttemptLimit(together, 1.0))


def test_after_some_failures_an_address_has_to_wait():
    clock = Clock()
    limited = attempts(clock)
    for _ in range(3):
        limited.begin("192.0.2.1")
    with pytest.raises(ResourceExhausted, match="again in 2 s"):
        limited.begin("192.0.2.1")
    limited.begin("192.0.2.2")
    clock.now += 2.0
    limited.begin("192.0.2.1")
    with pytest.raises(ResourceExhausted):
        limited.begin("192.0.2.1")


def test_attempts_that_are_refused_do_not_extend_the_wait():
    clock = Clock()
    limited = attempts(clock)
    for _ in range(3):
        limited.begin("192.0.2.1")
    for _ in range(100):
        with pytest.raises(ResourceExhausted):
            limited.begin("192.0.2.1")
    clock.now += 2.0
    limited.begin("192.0.2.1")


def test_attempts_that_succeed_are_not_limited():
    limited = attempts(Clock())
    for _ in range(1000):
        limited.begin("192.0.2.1")
        limited.succeeded("192.0.2.1")


def test_attempts_that_have_not_ended_count():
    limited = attempts(Clock())
    for _ in range(3):
        limited.begin("192.0.2.1")
    with pytest.raises(ResourceExhausted):
        limited.begin("192.0.2.1")


def test_failures_of_many_addresses_are_limited_together():
    clock = Clock()
    limited = attempts(clock, together=20.0)
    for number in range(20):
        limited.begin(f"192.0.2.{number}")
    with pytest.raises(ResourceExhausted):
        limited.begin("192.0.2.99")
    clock.now += 1.0
    limited.begin("192.0.2.99")


def test_an_attacker_cannot_multiply_its_attempts_by_addresses_of_its_own_network():
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")
    assert network_of("::ffff:192.0.2.1") != network_of("::ffff:192.0.2.2")
    assert network_of("not an address") == "not an address"
