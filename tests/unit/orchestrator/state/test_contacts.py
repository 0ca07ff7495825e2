from orchestrator.state.contacts import STALL_SECONDS, Contacts


def test_a_call_is_recorded_when_it_ends() -> None:
    contacts = Contacts()
    with contacts.waiting_call("p0", lambda: 7.0):
        assert contacts.is_waiting("p0")
        assert contacts.last_call("p0") is None
    assert not contacts.is_waiting("p0")
    assert contacts.last_call("p0") == 7.0


def test_a_pod_that_exits_is_not_expected_to_call() -> None:
    contacts = Contacts()
    contacts.record("p0", 1.0)
    contacts.forget("p0")
    assert contacts.last_call("p0") is None


def test_an_interruption_starts_the_listening_time_again() -> None:
    contacts = Contacts()
    for now in (10.0, 11.0, 12.0):
        contacts.tick(now)
    assert contacts.listening_since == 10.0
    contacts.tick(12.5 + STALL_SECONDS)
    assert contacts.listening_since == 12.5 + STALL_SECONDS


def test_a_pod_that_runs_and_has_not_called_is_expected_to_call_since_it_was_first_seen_running() -> None:
    contacts = Contacts()
    contacts.expect_first_call(["p0"], 5.0)
    contacts.expect_first_call(["p0"], 6.0)
    assert contacts.running_since("p0") == 5.0
    contacts.record("p0", 7.0)
    contacts.expect_first_call(["p0"], 8.0)
    assert contacts.running_since("p0") is None


def test_a_pod_whose_first_call_waits_has_called() -> None:
    contacts = Contacts()
    contacts.expect_first_call(["p0"], 5.0)
    with contacts.waiting_call("p0", lambda: 7.0):
        contacts.expect_first_call(["p0"], 6.0)
        assert contacts.running_since("p0") is None


def test_an_evicted_pod_is_expected_to_call_only_once_it_runs_again() -> None:
    contacts = Contacts()
    contacts.record("p0", 1.0)
    contacts.expect_later(["p0"])
    assert not contacts.is_expected("p0")
    contacts.expect_first_call(["p0"], 9.0)
    assert contacts.is_expected("p0")
    assert contacts.running_since("p0") == 9.0


def test_when_the_last_call_began_and_when_it_ended_are_both_kept() -> None:
    contacts = Contacts()
    with contacts.waiting_call("p0", iter([3.0, 7.0]).__next__):
        pass
    assert (contacts.last_begin("p0"), contacts.last_call("p0")) == (3.0, 7.0)
    contacts.record("p0", 9.0)
    assert contacts.last_begin("p0") == 9.0
