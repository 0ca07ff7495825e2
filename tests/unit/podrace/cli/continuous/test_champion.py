"""Which agent is champion after a version."""

from pathlib import Path

import pytest
from continuous_rig import Rig, champion_of, decided


def test_the_first_version_produces_the_champion_and_the_next_version_starts_from_it(rig: Rig) -> None:
    first = rig.keep(decided(1))
    assert [entry.verdict for entry in first.history] == ["first"]
    assert champion_of(first).endswith("-v1-abc123-a2")
    rig.write("two")
    second = rig.keep(decided(2))
    specs = rig.created()
    assert [spec.evolution.ancestor_agent_id for spec in specs] == ["", champion_of(first)]
    assert [spec.seed for spec in specs] == [3, 4]
    paths = [Path(spec.environment.options["path"]) for spec in specs]
    assert paths[0] != paths[1]
    assert (paths[1] / "prices").read_text() == "two"
    # An equal challenger does not replace the incumbent, which keeps its score on the new slice.
    assert second.history[-1].verdict == "kept"
    assert champion_of(second) == champion_of(first)
    assert second.champion_version == second.history[-1].digest
    assert [agent for agent, _ in rig.scored[1:]] == [specs[1].name + "-abc123-a2", champion_of(first)]


def test_a_better_challenger_becomes_champion_and_the_comparison_is_recorded(rig: Rig) -> None:
    first = rig.keep(decided(1))
    rig.scores[f"race-{first.watch_id}-v2-abc123-a2"] = 2.5  # the error of the difference is sqrt(2)
    rig.write("two")
    second = rig.keep(decided(2))
    entry = second.history[-1]
    assert (entry.verdict, entry.difference) == ("replaced", 1.5)
    assert entry.standard_error == pytest.approx(2**0.5)
    assert entry.incumbent is not None
    assert entry.incumbent.agent_id == champion_of(first)
    assert champion_of(second) == f"race-{first.watch_id}-v2-abc123-a2"
    assert second.champion is not None
    assert second.champion.score is not None
    assert second.champion.score.mean_return == 2.5


def test_policy_servers_get_a_champion_that_passed_the_comparison_and_no_challenger_that_did_not(rig: Rig) -> None:
    first = rig.keep(decided(1))
    assert rig.delivered == [champion_of(first)]
    rig.scores[f"race-{first.watch_id}-v2-abc123-a2"] = 1.5  # ahead by less than the error of the difference
    rig.write("two")
    assert rig.keep(decided(2)).history[-1].verdict == "kept"
    assert rig.delivered == [champion_of(first)]
    rig.scores[f"race-{first.watch_id}-v3-abc123-a2"] = 9.0
    rig.write("three")
    third = rig.keep(decided(3))
    assert third.history[-1].verdict == "replaced"
    assert rig.delivered == [champion_of(first), champion_of(third)]


@pytest.mark.long
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("killed_at", range(1, 9))
def test_a_champion_is_recorded_only_after_policy_servers_got_it(rig: Rig, killed_at: int, written: bool) -> None:
    rig.killed_at, rig.written = killed_at, written
    first = rig.keep(decided(1))
    assert set(rig.delivered) == {champion_of(first)}


def test_an_incumbent_that_cannot_be_scored_stays(rig: Rig) -> None:
    first = rig.keep(decided(1))
    rig.scores[champion_of(first)] = -1.0
    rig.write("two")
    second = rig.keep(decided(2))
    assert second.history[-1].verdict == "kept"
    assert "another shape" in second.history[-1].reason
    assert second.champion == first.champion
    assert second.champion_version == first.champion_version


def test_scores_of_different_evaluators_do_not_replace_the_champion(rig: Rig) -> None:
    first = rig.keep(decided(1))
    rig.faults[champion_of(first)] = "evaluator python:mine:score: it hung"
    rig.scores[champion_of(first)] = -1000.0
    rig.write("two")
    second = rig.keep(decided(2))
    assert second.history[-1].verdict == "kept"
    assert "one of the two was scored by the built-in evaluator: evaluator python:mine" in second.history[-1].reason
    assert second.champion == first.champion


def test_an_ensemble_is_scored_with_all_its_members_also_as_incumbent(rig: Rig) -> None:
    def ensemble() -> None:
        tournament = rig.mesh.known.tournaments[0]
        if not tournament.champion_selection.members:
            tournament.champion_selection.members.add(agent_id=f"{tournament.tournament_id}-a1", manifest_digest="feed")

    rig.mesh.known.on_watch = ensemble
    first = rig.keep(decided(1))
    assert first.champion is not None
    assert [member.manifest_digest for member in first.champion.members] == ["feed"]
    rig.write("two")
    second = rig.keep(decided(2))
    assert second.champion is not None
    assert second.champion.members == first.champion.members
    assert rig.members == [["feed"]] * 3
