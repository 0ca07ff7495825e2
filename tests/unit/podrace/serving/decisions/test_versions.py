"""Which version serves after offers, pins, roll backs and comparisons."""

from collections import Counter

import pytest

from podrace.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound
from podrace.serving.decisions import versions
from podrace.serving.decisions.gate import GateVerdict
from podrace.serving.decisions.versions import MOST_PREVIOUS, MOST_REFUSED, Comparison, ServingRecord

YES, NO = GateVerdict(True, "better"), GateVerdict(False, "worse")
ONE, TWO = ServingRecord("a"), ServingRecord("b", ("a",))


def test_an_accepted_offer_serves_and_the_version_before_it_can_be_rolled_back_to():
    change = versions.offer(ONE, "b", YES)
    assert change.record == TWO
    assert change.reason == "offered and accepted: better"


def test_a_refused_offer_is_not_examined_again():
    change = versions.offer(ONE, "b", NO)
    assert change.record.current == "a"
    assert not versions.wanted(change.record, "b")
    assert versions.wanted(change.record, "c")


def test_an_offer_of_the_version_that_serves_changes_nothing():
    assert versions.offer(ONE, "a", YES).record == ONE


def test_a_pinned_version_stays_until_it_is_followed_again():
    pinned = versions.pin(ONE, "b").record
    assert versions.offer(pinned, "c", YES).record == pinned
    assert versions.offer(versions.follow(pinned).record, "c", YES).record.current == "c"


def test_a_roll_back_serves_the_version_before_and_refuses_the_other_when_it_is_offered_again():
    record = versions.roll_back(TWO, "b").record
    assert (record.current, record.previous, record.refused) == ("a", (), {"b": "rolled back"})
    assert versions.offer(record, "b", YES).record == record
    assert versions.offer(record, "c", YES).record.current == "c"


def test_a_version_that_was_rolled_back_can_be_pinned():
    record = versions.pin(versions.roll_back(TWO, "b").record, "b").record
    assert (record.current, record.refused) == ("b", {})


def test_a_roll_back_from_a_version_that_does_not_serve_is_aborted():
    with pytest.raises(Aborted, match="b serves now, not a"):
        versions.roll_back(TWO, "a")


def test_a_roll_back_needs_a_version_before():
    with pytest.raises(FailedPrecondition, match="no version served before"):
        versions.roll_back(ONE, "a")


def test_few_versions_before_and_few_refusals_are_kept():
    record = ServingRecord()
    for number in range(300):
        record = versions.offer(record, f"v{number}", YES if number % 2 else NO).record
    assert len(record.previous) == MOST_PREVIOUS
    assert len(record.refused) == MOST_REFUSED
    assert record.needed == ("v299", "v297", "v295", "v293", "v291")


def test_a_share_of_the_keys_gets_the_other_version_and_each_key_always_the_same():
    record = versions.compare(TWO, Comparison("c", share=0.3)).record
    found = {str(key): versions.version_for(record, str(key)) for key in range(5000)}
    assert Counter(found.values())["c"] == pytest.approx(1500, abs=150)
    assert all(versions.version_for(record, key) == version for key, version in found.items())


def test_the_answers_of_a_shadow_are_not_sent():
    record = versions.compare(TWO, Comparison("c", shadow=True)).record
    assert {versions.version_for(record, str(key)) for key in range(100)} == {"b"}


@pytest.mark.parametrize("comparison", [Comparison("c"), Comparison("c", share=0.5, shadow=True)])
def test_a_comparison_has_either_a_share_or_a_shadow(comparison):
    with pytest.raises(InvalidArgument, match="either shadow, or a share"):
        versions.compare(TWO, comparison)


@pytest.mark.parametrize(("record", "version"), [(ServingRecord(), "c"), (ONE, "a")])
def test_a_comparison_needs_two_versions(record, version):
    with pytest.raises(FailedPrecondition, match="no other version"):
        versions.compare(record, Comparison(version, share=0.5))


def test_a_comparison_ends_when_its_version_serves():
    compared = versions.compare(ONE, Comparison("b", share=0.5)).record
    assert versions.offer(compared, "b", YES).record.comparison is None
    assert versions.end_comparison(compared).record.comparison is None


def test_no_version_answers_before_one_serves():
    with pytest.raises(NotFound, match="no policy is served yet"):
        versions.version_for(ServingRecord(), "key")


def test_the_version_of_one_policy_is_its_manifest_and_that_of_an_ensemble_depends_on_all_members():
    assert versions.version_of(["a" * 64]) == "a" * 64
    pair = versions.version_of(["a" * 64, "b" * 64])
    assert len(pair) == 64
    assert pair != versions.version_of(["b" * 64, "a" * 64])
