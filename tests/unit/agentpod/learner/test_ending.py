"""The end of an assignment: whose fault it was, and whether the pod continues."""

import pytest

from agentpod.fusion.reachability import LeaderIsolated
from agentpod.learner.ending import EXIT_DONE, EXIT_ROLE_LOST, Ending, ending_of_error, ending_of_stop
from agentpod.session.role_faults import RoleLost, RoleRefused
from podrace import errors
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


@pytest.mark.parametrize(
    ("error", "opened", "outcome"),
    [
        (errors.InvalidArgument("no such environment"), False, pb.OUTCOME_SPEC_FAILED),
        (errors.Unimplemented("install mujoco"), False, pb.OUTCOME_SPEC_FAILED),
        (errors.ResourceExhausted("/dev/shm is full"), False, pb.OUTCOME_SPEC_FAILED),
        (errors.Internal("the factory raised"), False, pb.OUTCOME_SPEC_FAILED),
        (
            errors.InvalidArgument("choices only", reason="ERROR_REASON_UNSUITABLE_SPACE"),
            False,
            pb.OUTCOME_AGENT_FAILED,
        ),
        (errors.ResourceExhausted("replay_capacity"), True, pb.OUTCOME_AGENT_FAILED),
        (errors.InvalidArgument("minibatch"), True, pb.OUTCOME_AGENT_FAILED),
        (errors.DataLoss("not finite"), True, pb.OUTCOME_AGENT_FAILED),
        (errors.DataLoss("the parent's files are damaged"), False, pb.OUTCOME_AGENT_FAILED),
        (errors.NotFound("the parent's files are gone"), False, pb.OUTCOME_AGENT_FAILED),
        (errors.FailedPrecondition("stale"), True, pb.OUTCOME_DRAINED),
        (errors.Unavailable("no leaderboard"), True, pb.OUTCOME_DRAINED),
    ],
)
def test_errors_of_the_agent_of_the_specification_and_of_the_services_have_different_outcomes(error, opened, outcome):
    ending = ending_of_error(error, opened=opened)
    assert ending.outcome == outcome
    assert ending.message == error.message
    assert ending.exit_code is None


@pytest.mark.parametrize("opened", [False, True])
def test_an_agent_that_a_restored_leaderboard_does_not_know_is_published_and_given_back_and_has_not_failed(opened):
    ending = ending_of_error(errors.NotFound("never generated here", reason=errors.AGENT_UNKNOWN), opened=opened)
    assert (ending.outcome, ending.publish, ending.gave_up, ending.exit_code) == (pb.OUTCOME_DRAINED, True, False, None)
    assert "never generated here" in ending.message


def test_a_lost_role_ends_the_pod_after_publishing():
    ending = ending_of_error(RoleLost("gone"), opened=True)
    assert (ending.outcome, ending.exit_code, ending.publish) == (pb.OUTCOME_DRAINED, EXIT_ROLE_LOST, True)


@pytest.mark.parametrize("opened", [False, True])
def test_a_role_that_refuses_makes_the_pod_publish_and_give_the_agent_back_as_one_that_may_be_at_fault(opened):
    ending = ending_of_error(RoleRefused("no"), opened=opened)
    assert ending == Ending(pb.OUTCOME_DRAINED, "no", publish=True, gave_up=True)
    assert ending_of_error(LeaderIsolated("no"), opened=opened) == ending
    assert not ending_of_error(errors.Unavailable("no leaderboard"), opened=opened).gave_up


@pytest.mark.parametrize(
    ("finished", "held", "ending"),
    [
        (True, True, Ending(pb.OUTCOME_FINISHED, exit_code=EXIT_DONE)),
        (True, False, Ending(pb.OUTCOME_FINISHED)),
        (False, True, Ending(pb.OUTCOME_DRAINED, "SIGTERM", EXIT_DONE)),
        (False, False, Ending(pb.OUTCOME_DRAINED, "SIGTERM")),
    ],
)
def test_a_stop_ends_the_pod_unless_only_the_agent_was_taken_from_it(
    finished: bool, held: bool, ending: Ending
) -> None:
    assert ending_of_stop("SIGTERM", finished=finished, held=held) == ending


@pytest.mark.parametrize(
    ("finished", "ending"), [(True, Ending(pb.OUTCOME_FINISHED)), (False, Ending(pb.OUTCOME_DRAINED, "a check waits"))]
)
def test_a_pod_that_yields_its_agent_takes_other_work(finished: bool, ending: Ending) -> None:
    assert ending_of_stop("a check waits", finished=finished, held=True, yielded=True) == ending
