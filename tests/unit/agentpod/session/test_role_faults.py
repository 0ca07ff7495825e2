"""What the error of a role means."""

import pytest

from agentpod.session.role_faults import RoleLost, RoleRefused, role_error
from podrace import errors
from podrace.tensor_transport.probe import PLANE_UNUSABLE

SETTING = "pod.worker = 'grpc://w:1'"


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidArgument("no such environment", reason="ERROR_REASON_UNSUITABLE_SPACE"),
        errors.DataLoss("not finite"),
        errors.Internal("it raised"),
        errors.NotFound("no file"),
        errors.ResourceExhausted("memory"),
        errors.Unimplemented("no recurrence"),
        errors.DeadlineExceeded("late"),
        errors.FailedPrecondition("no copy", reason=PLANE_UNUSABLE),
    ],
)
def test_an_error_about_the_work_keeps_its_class_and_reason_and_names_the_worker(error: errors.PodraceError) -> None:
    assert type(role_error(error)) is type(error)
    assert role_error(error).message == error.message
    named = role_error(error, SETTING)
    assert (type(named), named.reason) == (type(error), error.reason)
    assert named.message == str(named) == f"{SETTING}: {error.message}"


@pytest.mark.parametrize(
    "error", [errors.Unavailable("gone"), errors.FailedPrecondition("restarted", reason=errors.NOT_OPEN)]
)
def test_a_role_that_does_not_answer_or_was_restarted_is_lost(error: errors.PodraceError) -> None:
    assert isinstance(role_error(error), RoleLost)


@pytest.mark.parametrize(
    "error",
    [
        errors.FailedPrecondition("the disk is full"),
        errors.PermissionDenied("no"),
        errors.Unauthenticated("who?"),
        errors.Aborted("busy"),
        errors.AlreadyExists("twice"),
        errors.Cancelled("stopped"),
    ],
)
def test_every_other_error_is_a_refusal_with_its_code(error: errors.PodraceError) -> None:
    refused = role_error(error, SETTING)
    assert isinstance(refused, RoleRefused)
    assert refused.message == f"{SETTING}: {error.message} ({error.code})"


def test_the_message_of_a_third_party_is_one_line_of_limited_length() -> None:
    refused = role_error(errors.PermissionDenied("a\nb\x1b" + "x" * 10_000), SETTING)
    assert refused.message.startswith(f"{SETTING}: a b\\x1bx")
    assert "\n" not in refused.message
    assert len(refused.message) < 400
