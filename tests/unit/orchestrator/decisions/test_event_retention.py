"""When events are deleted, and which kinds."""

from orchestrator.decisions.event_retention import FREQUENT_KINDS, RESULT_KINDS, excess
from podrace.discovery.event_kinds import EVENT_KINDS


def test_every_kind_that_is_named_exists_and_none_is_both_frequent_and_kept() -> None:
    assert set(EVENT_KINDS) >= FREQUENT_KINDS | RESULT_KINDS
    assert not FREQUENT_KINDS & RESULT_KINDS


def test_nothing_is_deleted_up_to_the_limit_and_then_one_percent_at_once() -> None:
    assert [excess(count, 0, 1000) for count in (0, 999, 1000, 1001)] == [0, 0, 0, 11]
    assert excess(1_000_000, 0, 0) == 0


def test_after_a_deletion_that_found_too_few_the_next_waits_for_new_events() -> None:
    assert [excess(count, 1500, 1000) for count in (1501, 1510, 1511)] == [0, 0, 521]
