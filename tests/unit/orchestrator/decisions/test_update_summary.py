from orchestrator.decisions.update_summary import describe_changes
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


def spec() -> TournamentSpec:
    made = TournamentSpec()
    made.pool.minimum_pods, made.pool.maximum_pods = 1, 2
    made.objective.wall_clock_duration.FromSeconds(300)
    return made


def test_each_change_is_described_with_old_and_new_value() -> None:
    after = spec()
    after.pool.maximum_pods = 4
    after.objective.wall_clock_duration.FromMilliseconds(90_500)
    after.objective.target_return = 475.0
    assert describe_changes(spec(), after, {}, {}) == (
        "pool.maximum_pods 2 -> 4, objective.target_return none -> 475, objective.wall_clock_duration 300 s -> 90.5 s"
    )


def test_unchanged_values_are_not_described() -> None:
    assert describe_changes(spec(), spec(), {}, {}) == "no value changed"


def test_changed_labels_are_listed_with_their_values():
    assert describe_changes(spec(), spec(), {"a": "1", "b": "2"}, {"b": "", "c": "3"}) == (
        "labels.a 1 -> none, labels.b 2 -> '', labels.c none -> 3"
    )
