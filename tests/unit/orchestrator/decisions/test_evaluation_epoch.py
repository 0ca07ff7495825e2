"""Evaluation episodes change seven times, by whichever of clock and steps is further."""

import pytest
from google.protobuf.duration_pb2 import Duration

from orchestrator.decisions.evaluation_epoch import EPOCHS, evaluation_epoch
from podrace.tournament.v1.tournament_pb2 import ObjectiveSpec

CLOCK = Duration(seconds=800)


@pytest.mark.parametrize(
    ("running_seconds", "epoch"), [(0.0, 0), (99.9, 0), (100.0, 1), (250.0, 2), (799.0, 7), (800.0, 7), (9e9, 7)]
)
def test_the_clock_is_divided_into_eight_epochs(running_seconds, epoch):
    assert EPOCHS == 8
    assert evaluation_epoch(ObjectiveSpec(wall_clock_duration=CLOCK), running_seconds, 10**9) == epoch


@pytest.mark.parametrize(("steps", "epoch"), [(0, 0), (1249, 0), (1250, 1), (9999, 7), (10_000, 7), (20_000, 7)])
def test_steps_are_divided_into_eight_epochs(steps, epoch):
    assert evaluation_epoch(ObjectiveSpec(environment_steps=10_000), 1e9, steps) == epoch


def test_the_larger_share_counts():
    objective = ObjectiveSpec(wall_clock_duration=CLOCK, environment_steps=10_000)
    assert evaluation_epoch(objective, 500.0, 0) == 5
    assert evaluation_epoch(objective, 0.0, 5000) == 4
    assert evaluation_epoch(objective, 500.0, 7500) == 6


def test_a_target_return_alone_has_one_epoch():
    assert evaluation_epoch(ObjectiveSpec(target_return=100.0), 1e9, 10**12) == 0
