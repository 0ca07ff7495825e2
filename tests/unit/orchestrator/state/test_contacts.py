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
