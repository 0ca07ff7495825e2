"""Values of enums that this build does not know are read as the contract says."""

import pytest

from podrace.cli.terminal import formats
from podrace.cli.views import json_shapes, progress
from podrace.cli.views.tables import NOTHING, pods_table
from podrace.client.calls.tournaments import END_STATES
from podrace.client.enum_values import state_of, word_of
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_CLONE, Agent, Origin
from podrace.orchestrator.v1.orchestrator_pb2 import POD_ACTIVITY_TRAINING, Pod, PodActivity
from podrace.tournament.v1.tournament_pb2 import (
    TOURNAMENT_STATE_FAILED,
    TOURNAMENT_STATE_RUNNING,
    TOURNAMENT_STATE_UNSPECIFIED,
    Layout,
    Tournament,
)

UNKNOWN = 99


@pytest.mark.parametrize("state", [UNKNOWN, TOURNAMENT_STATE_UNSPECIFIED])
def test_an_unknown_state_of_a_tournament_is_running(state, tmp_path):
    tournament = Tournament(state=state)
    tournament.running_duration.FromSeconds(5)
    assert state_of(tournament) == TOURNAMENT_STATE_RUNNING
    assert state_of(tournament) not in END_STATES
    assert state not in END_STATES, "a client keeps watching"
    assert formats.state(tournament) == "RUNNING"
    assert json_shapes.listed(tournament, tmp_path, {})["state"] == "RUNNING"
    assert progress.elapsed_seconds(tournament, 2.0) == 7.0, "its clock runs between two messages"


def test_a_known_state_of_a_tournament_is_itself():
    assert state_of(Tournament(state=TOURNAMENT_STATE_FAILED)) == TOURNAMENT_STATE_FAILED


def test_the_word_of_a_value_has_no_prefix():
    assert word_of(PodActivity.DESCRIPTOR, POD_ACTIVITY_TRAINING) == "training"
    assert word_of(Origin.DESCRIPTOR, ORIGIN_CLONE) == "clone"
    assert word_of(Layout.DESCRIPTOR, 0) == word_of(Layout.DESCRIPTOR, UNKNOWN) == "unspecified"


def test_unknown_values_are_shown_as_unspecified():
    pod = Pod(pod_id="t-p0", activity=UNKNOWN, layout=UNKNOWN)
    shown = json_shapes.pod(pod, {})
    assert (shown["activity"], shown["layout"]) == ("unspecified", "unspecified")
    assert str(next(iter(pods_table([pod], "t").columns[1].cells))) == NOTHING
    assert json_shapes.agent(Agent(agent_id="t-a0", origin=UNKNOWN))["origin"] == "unspecified"
