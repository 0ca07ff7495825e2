"""Pages end where their entries would become too large for a message."""

from podrace.orchestrator.v1.orchestrator_pb2 import Event
from podrace.page_bytes import PAGE_BYTES, fitting, page_of


def events(count: int, size: int) -> list[Event]:
    return [Event(sequence=number, message="x" * size) for number in range(1, count + 1)]


def token(event: Event) -> str:
    return str(event.sequence)


def test_small_entries_all_fit():
    assert len(fitting(events(1000, 100))) == 1000
    assert fitting([]) == []


def test_large_entries_fill_a_page_up_to_its_bytes():
    kept = fitting(events(100, 100_000))
    assert 1 < len(kept) < 100
    assert sum(event.ByteSize() for event in kept) <= PAGE_BYTES


def test_an_entry_that_is_too_large_alone_is_a_page_by_itself():
    assert [event.sequence for event in fitting(events(3, PAGE_BYTES + 1))] == [1]


def test_pages_together_have_every_entry_once_and_in_order():
    everything, position, seen = events(100, 100_000), 0, []
    while True:
        page, following = page_of(everything[position:], lambda event: event, token, more=False)
        seen += [event.sequence for event in page]
        if not following:
            break
        position = int(following)
    assert seen == list(range(1, 101))


def test_a_page_that_may_have_successors_has_a_token():
    assert page_of(events(3, 1), lambda event: event, token, more=True)[1] == "3"
    assert page_of(events(3, 1), lambda event: event, token, more=False)[1] == ""
    assert page_of([], lambda event: event, token, more=False) == ([], "")
