"""Simulated races in which the pod of the incumbent grows and shrinks."""

from dataclasses import replace

import pytest

from benchmarks.race_simulator.contenders import known, specification_of
from benchmarks.race_simulator.families import FAMILIES
from benchmarks.race_simulator.growth import IMPROVING_SHARE, STALLED_SHARE, Growth, GrowthRules
from benchmarks.race_simulator.race import Race, share_until


def race(name: str, pods: int, seed: int = 1, **rules: float) -> Race:
    contender = known()[name]
    made = Race(contender, specification_of(contender, pods, 8), FAMILIES["slow-start"], pods, seed)
    return replace(made, rules=GrowthRules(**{"exponent": 0.85, **rules}))


def test_pods_change_their_size_and_cores_are_only_moved() -> None:
    one = race("incumbent-grows", 8)
    sizes = []
    resized = one._resized

    def watched(*arguments: object) -> list[object]:
        pods = resized(*arguments)  # type: ignore[arg-type]
        sizes.append([pod.cores for pod in pods])
        return pods  # type: ignore[return-value]

    one._resized = watched  # type: ignore[method-assign,assignment]
    result = one.run()
    assert result.changes > 0
    assert max(max(each) for each in sizes) > 1.0
    assert {sum(each) for each in sizes} == {8.0}


def test_by_the_clock_the_share_of_the_incumbent_rises_whether_it_improves_or_not() -> None:
    growth = Growth(GrowthRules(0.85), 8, clock_seconds=100.0)
    assert growth._shares(0.0) == (STALLED_SHARE, STALLED_SHARE)
    assert growth._shares(200.0) == (IMPROVING_SHARE, IMPROVING_SHARE)
    halfway = growth._shares(50.0)
    assert halfway == pytest.approx([(IMPROVING_SHARE + STALLED_SHARE) / 2] * 2)


def test_without_growth_no_pod_changes_its_size() -> None:
    assert race("incumbent", 8).run().changes == 0


def test_growth_that_makes_an_agent_no_faster_gains_no_steps() -> None:
    grown, fixed = race("incumbent-grows", 8, exponent=0.0), race("incumbent", 8)
    grown.run()
    fixed.run()
    assert grown._records.environment_steps < fixed._records.environment_steps


def test_no_agent_is_lost_when_its_pod_stops_for_another() -> None:
    one = race("incumbent-grows", 8)
    one.run()
    waiting = {pod.agent.agent_id for pod in one._paused if pod.agent}
    unfinished = set(one._records._unfinished)
    assert waiting <= unfinished
    assert len(unfinished) <= 8 + len(waiting)


@pytest.mark.parametrize(("target", "share"), [(0.1, 0.25), (0.35, 0.75), (0.9, 1.0)])
def test_the_share_of_the_clock_until_a_target(target: float, share: float) -> None:
    assert share_until([0.2, 0.3, 0.4, 0.1], target) == share


@pytest.mark.parametrize(("pods", "sizes"), [(1, [1.0]), (2, [2.0]), (8, [6.0, 1.0, 1.0])])
def test_the_first_pods_have_the_sizes_that_the_orchestrator_gives_them(pods: int, sizes: list[float]) -> None:
    assert Growth(GrowthRules(0.8), pods).first_sizes() == sizes
