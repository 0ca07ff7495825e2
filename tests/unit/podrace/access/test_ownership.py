"""Which tournaments a caller may read and change, row by row."""

from collections.abc import Iterable

import pytest

from podrace.access.ownership import Ownership, Reach, decide_owned, ownership_for, reach, unknown_tournament, visible
from podrace.access.principal import ALL_ROLES, ROLES_BY_NAME, Principal, roles_with_included
from podrace.access.rules import AGENT, EVALUATION, NONE, POD, TOURNAMENT, Resource, Rule

KNOWN = {
    "own": Ownership("alice", "vision"),
    "shared": Ownership("bob", "vision"),
    "namesake": Ownership("alice", "audio"),
    "private": Ownership("bob"),
    "lone": Ownership("alice"),
}
"""Whose the tournaments of these tests are."""
R, C, N = Reach.READ, Reach.CHANGE, Reach.NOTHING


def person(role: str, name: str = "alice", namespace: str = "", tournament_id: str = "") -> Principal:
    return Principal(name, roles_with_included({ROLES_BY_NAME[role]}), namespace, tournament_id=tournament_id)


CALLERS = {
    "alice of vision": person("user", namespace="vision"),
    "carol of vision": person("user", "carol", "vision"),
    "viewer of vision": person("viewer", "dashboard", "vision"),
    "alice of nowhere": person("user"),
    "carol of nowhere": person("user", "carol"),
    "viewer of nowhere": person("viewer", "dashboard"),
    "viewer of all": person("viewer", "dashboard", "*"),
    "alice of all": person("user", namespace="*"),
    "user bound to private": person("user", "carol", tournament_id="private"),
    "operator": person("operator", "root"),
    "orchestrator": person("orchestrator", "orchestrator"),
    "local user": Principal("dave", ALL_ROLES),
    "plugin": person("plugin", "plugin"),
    "policy server": person("policy-server", "policy-server"),
    "policy server of vision": person("policy-server", "policy-server", "vision"),
    "leaderboard and viewer": Principal("x", frozenset({ROLES_BY_NAME["leaderboard"], ROLES_BY_NAME["viewer"]})),
}
TABLE = {
    #                          own  shared namesake private lone missing
    "alice of vision": (C, R, N, N, N, N),
    "carol of vision": (R, R, N, N, N, N),
    "viewer of vision": (R, R, N, N, N, N),
    "alice of nowhere": (N, N, N, N, C, N),
    "carol of nowhere": (N, N, N, N, N, N),
    "viewer of nowhere": (N, N, N, N, N, N),
    "viewer of all": (R, R, R, R, R, N),
    "alice of all": (R, R, R, R, C, N),
    "user bound to private": (N, N, N, C, N, N),
    "operator": (C, C, C, C, C, C),
    "orchestrator": (C, C, C, C, C, C),
    "local user": (C, C, C, C, C, C),
    # Their roles reach no method that names a tournament of a service.
    "plugin": (C, C, C, C, C, C),
    # It may read, and ask for evaluations.
    "policy server": (C, C, C, C, C, C),
    "policy server of vision": (R, R, N, N, N, N),
    "leaderboard and viewer": (N, N, N, N, N, N),
}


class Known:
    """The tournaments of these tests; implements Owners."""

    def ownership_of(self, tournament_id: str) -> Ownership | None:
        return KNOWN.get(tournament_id)

    def tournament_ids(self) -> Iterable[str]:
        return KNOWN


def test_the_table_has_a_row_for_every_caller():
    assert TABLE.keys() == CALLERS.keys()


@pytest.mark.parametrize("caller", CALLERS)
def test_the_resources_that_a_caller_may_reach(caller):
    found = tuple(reach(CALLERS[caller], name, KNOWN.get(name)) for name in (*KNOWN, "missing"))
    assert found == TABLE[caller]


@pytest.mark.parametrize("caller", CALLERS)
def test_a_caller_sees_what_it_may_read(caller):
    expected = {name for name, found in zip(KNOWN, TABLE[caller], strict=False) if found >= R}
    seen = visible(CALLERS[caller], Known())
    assert (set(KNOWN) if seen is None else seen) == expected


@pytest.mark.parametrize("kind", [TOURNAMENT, AGENT, EVALUATION])
@pytest.mark.parametrize(
    ("tournament_id", "changes", "allowed", "hidden"),
    [
        ("own", False, True, False),
        ("own", True, True, False),
        ("shared", False, True, False),
        ("shared", True, False, False),
        ("private", False, False, True),
        ("private", True, False, True),
        ("missing", False, False, True),
        ("missing", True, False, True),
        ("", False, False, True),
    ],
)
def test_a_call_needs_the_reach_for_what_it_does(kind, tournament_id, changes, allowed, hidden):
    rule = Rule("/a.B/C", frozenset(), kind, changes=changes)
    resource = Resource(kind, "id", tournament_id)
    decision = decide_owned(CALLERS["alice of vision"], rule, resource, KNOWN.get)
    assert (decision.allowed, decision.hidden) == (allowed, hidden), decision


def test_a_refusal_to_change_names_the_owner_to_a_member_of_the_namespace():
    rule = Rule("/a.B/C", frozenset(), TOURNAMENT, changes=True)
    decision = decide_owned(CALLERS["carol of vision"], rule, Resource(TOURNAMENT, "own", "own"), KNOWN.get)
    assert decision.reason == (
        "tournament own belongs to alice: carol may read it, and only its owner or an operator may change it"
    )


@pytest.mark.parametrize("kind", [NONE, POD])
def test_what_belongs_to_no_tournament_has_no_owner(kind):
    rule = Rule("/a.B/C", frozenset(), kind)
    assert decide_owned(CALLERS["carol of nowhere"], rule, Resource(kind), KNOWN.get).allowed


def test_a_tournament_belongs_to_its_creator():
    assert ownership_for(CALLERS["alice of vision"]) == Ownership("alice", "vision")
    # A caller that reads all namespaces shares its own tournaments with none.
    assert ownership_for(CALLERS["alice of all"]) == Ownership("alice", "")


def test_an_unknown_tournament_is_answered_with_the_most_similar_or_the_newest():
    known = [f"race-{number}" for number in range(9)]
    assert unknown_tournament("rase-3", known).endswith("did you mean 'race-3'?")
    assert unknown_tournament("zzzz", known).endswith("known: race-4, race-5, race-6, race-7, race-8")
    assert unknown_tournament("zzzz", []) == "tournament_id: unknown tournament 'zzzz'; known: none"
