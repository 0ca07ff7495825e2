"""Which ended tournaments may be deleted, and which are due."""

import pytest

from orchestrator.decisions.deletion import Deletable, expired, refusal

DAY = 86_400.0


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Deletable("t", 1.0), ""),
        (Deletable("t", None), "tournament t has not ended; stop it first (podrace stop t)"),
        (Deletable("t", 1.0, pods=2), "pods of t are still exiting (2); try again in a few seconds"),
        (Deletable("t", 1.0, evaluations=1), "evaluations of t are not done (1); try again when they are"),
        (Deletable("t", 1.0, children=["u"]), "tournament u starts from an agent of t; delete that one first"),
    ],
)
def test_only_what_has_ended_and_is_not_needed_may_be_deleted(found, reason):
    assert refusal(found) == reason


def test_a_tournament_is_due_when_it_was_kept_long_enough():
    tournaments = [
        Deletable("old", 0.0),
        Deletable("running", None),
        Deletable("needed", 0.0, children=["old"]),
        Deletable("busy", 0.0, evaluations=1),
        Deletable("young", 1.0),
    ]
    assert expired(tournaments, 3 * DAY, 3 * DAY) == ["old"]
    assert expired(tournaments, 3 * DAY - 1.0, 3 * DAY) == []


def test_without_a_limit_nothing_is_due():
    assert expired([Deletable("old", 0.0)], 1e12, 0.0) == []
