from typing import Any

import pytest

from orchestrator.tournaments.updates import changed_labels, changes_specification, check_etag, etag_of, updated
from podrace.errors import Aborted, InvalidArgument
from podrace.orchestrator.v1.orchestrator_pb2 import UpdateTournamentRequest
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def spec() -> TournamentSpec:
    made = TournamentSpec(name="race")
    made.pool.minimum_pods, made.pool.maximum_pods = 1, 4
    made.objective.target_return, made.objective.environment_steps = 10.0, 1000
    return made


def request(*paths: str, **sections: Any) -> UpdateTournamentRequest:
    made = UpdateTournamentRequest(**sections)
    made.update_mask.paths.extend(paths)
    return made


def test_without_a_mask_what_is_set_is_changed_and_the_rest_stays() -> None:
    changed = updated(spec(), request(pool={"maximum_pods": 2}, objective={"target_return": 20.0}))
    assert (changed.pool.minimum_pods, changed.pool.maximum_pods) == (1, 2)
    assert (changed.objective.target_return, changed.objective.environment_steps) == (20.0, 1000)


def test_with_a_mask_only_its_fields_are_changed() -> None:
    changed = updated(spec(), request("pool.maximum_pods", pool={"maximum_pods": 2, "minimum_pods": 2}))
    assert (changed.pool.minimum_pods, changed.pool.maximum_pods) == (1, 2)


def test_a_field_of_the_mask_that_is_not_set_is_removed() -> None:
    changed = updated(spec(), request("objective.target_return", pool={"maximum_pods": 2}))
    assert not changed.objective.HasField("target_return")
    assert changed.objective.environment_steps == 1000
    assert changed.pool.maximum_pods == 4


def test_a_section_in_the_mask_is_replaced_as_a_whole() -> None:
    changed = updated(spec(), request("objective", objective={"wall_clock_duration": {"seconds": 5}}))
    assert [field.name for field, _ in changed.objective.ListFields()] == ["wall_clock_duration"]
    assert changed.pool == spec().pool


def test_all_paths_that_cannot_be_changed_are_named() -> None:
    with pytest.raises(InvalidArgument, match=r"pool\.maximum_pod'; did you mean 'pool\.maximum_pods'") as caught:
        updated(spec(), request("pool.maximum_pod", "seed", "pool.minimum_pods"))
    assert [one.field for one in caught.value.violations] == ["update_mask", "update_mask"]


def test_the_given_specification_is_not_changed() -> None:
    given = spec()
    updated(given, request("pool", "objective", pool={"maximum_pods": 9}))
    assert given == spec()


def test_an_etag_differs_with_what_can_be_changed_and_with_nothing_else() -> None:
    before, named, grown = spec(), spec(), spec()
    named.name, grown.pool.maximum_pods = "other", 5
    assert etag_of(before, {}) == etag_of(spec(), {}) == etag_of(named, {})
    assert etag_of(before, {}) != etag_of(grown, {})


def test_an_update_of_another_version_is_aborted_with_the_present_etag() -> None:
    check_etag(spec(), {}, "")
    check_etag(spec(), {}, etag_of(spec(), {}))
    with pytest.raises(Aborted, match="read it again") as caught:
        check_etag(spec(), {}, "0123")
    assert caught.value.metadata == {"etag": etag_of(spec(), {})}


def labelled(*paths, **labels):
    return UpdateTournamentRequest(update_mask={"paths": list(paths)}, labels=labels)


def test_labels_are_merged_replaced_or_changed_one_by_one_as_the_mask_says():
    labels = {"team": "rl", "run": "1"}
    assert changed_labels(labels, labelled(run="2", new="x")) == {"team": "rl", "run": "2", "new": "x"}
    assert changed_labels(labels, labelled("labels", new="x")) == {"new": "x"}
    assert changed_labels(labels, labelled("labels.run", "labels.new", new="x", team="ignored")) == {
        "team": "rl",
        "new": "x",
    }
    assert changed_labels(labels, labelled("pool.maximum_pods", team="ignored")) == labels


def test_an_update_of_labels_alone_leaves_the_specification_alone():
    assert not changes_specification(labelled(team="rl"))
    assert not changes_specification(labelled("labels", "labels.team"))
    assert changes_specification(labelled("labels", "pool"))
    assert changes_specification(request(pool={"maximum_pods": 2}))
    assert changes_specification(labelled())


def test_too_many_or_wrong_labels_are_refused_with_their_keys():
    with pytest.raises(InvalidArgument) as caught:
        changed_labels({}, labelled(team="a b"))
    assert [one.field for one in caught.value.violations] == ["labels.team"]


def test_the_etag_changes_with_the_labels():
    assert len({etag_of(spec(), labels) for labels in ({}, {"a": "b"}, {"a": "c"}, {"b": "b"})}) == 4
