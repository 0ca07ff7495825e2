import pytest

from orchestrator.decisions.objective import TournamentProgress, met
from orchestrator.decisions.target import CheckState, TargetCheck
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec


def objective(target: float | None = None, seconds: int = 0, steps: int | None = None) -> ObjectiveSpec:
    spec = ObjectiveSpec(target_return=target, environment_steps=steps)
    if seconds:
        spec.wall_clock_duration.FromSeconds(seconds)
    return spec


REACHED = TargetCheck(0, "cartpole-abc123-a7", "digest", CheckState.DONE, 480.5, 2.25, 32, 1.5)
"""A check that reached the target."""


def progress(
    reached: TargetCheck | None = None, seconds: float = 0.0, steps: int = 0, between_rounds: bool = True
) -> TournamentProgress:
    return TournamentProgress(reached, seconds, steps, between_rounds)


@pytest.mark.parametrize(
    ("spec", "before", "after"),
    [
        (objective(target=475.0), progress(), progress(reached=REACHED)),
        (objective(seconds=60), progress(seconds=59.9), progress(seconds=60.0)),
        (objective(steps=1000), progress(steps=999), progress(steps=1000)),
    ],
)
def test_each_objective_is_met_exactly_when_it_is_reached(
    spec: ObjectiveSpec, before: TournamentProgress, after: TournamentProgress
) -> None:
    assert met(spec, before) == ""
    assert met(spec, after)


def test_one_met_objective_ends_the_tournament() -> None:
    assert met(objective(target=475.0, seconds=60), progress(seconds=61.0)).startswith("wall clock")


def test_results_are_checked_between_rounds_only() -> None:
    spec = objective(target=1.0, steps=10)
    assert met(spec, progress(reached=REACHED, steps=20, between_rounds=False)) == ""
    assert met(spec, progress(reached=REACHED, steps=20, between_rounds=True)).startswith("target return")


def test_the_wall_clock_is_checked_within_a_round() -> None:
    assert met(objective(seconds=60), progress(seconds=60.0, between_rounds=False))


def test_the_reason_has_the_score_and_the_target() -> None:
    assert met(objective(target=475.0), progress(reached=REACHED)) == (
        "target return: a7 scores 480.5 ± 2.2 on 32 new episodes, the target is 475"
    )
